"""Reading any file: detect its format, read it, check its structures."""

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeAlias

import h5py
from ase import Atoms
from pydantic import Field

from huefield.core.structure import Block, Structure
from huefield.data.readers.ani1x import Ani1xReader
from huefield.data.readers.ase_files import AseReader
from huefield.data.readers.base import (
    BadFrameError,
    Fault,
    Frames,
    LeftOut,
    Remark,
    UnreadableFileError,
    naming,
)
from huefield.data.readers.checks import checked
from huefield.data.readers.images import Image, ase_format_of
from huefield.data.readers.md17 import Md17Reader, array_names
from huefield.data.readers.transition1x import Transition1xReader

ReaderConfig: TypeAlias = Annotated[
    AseReader | Md17Reader | Ani1xReader | Transition1xReader,
    Field(discriminator="kind"),
]
"""Any reader, chosen by its ``kind``."""

OnFault: TypeAlias = Callable[[Fault], None] | None
OnLeftOut: TypeAlias = Callable[[LeftOut], None] | None
OnRemark: TypeAlias = Callable[[Remark], None] | None

BUNDLE_FILES = ("metadata.json", "metadata", "metadata.ulm")
"""Files by which a folder is recognised as one of ASE's bundle trajectories."""
HDF5_SUFFIXES = (".h5", ".hdf5")
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def detect(path: Path) -> ReaderConfig:
    """The reader for a file, from its suffix and content."""
    if path.is_dir():
        if not any((path / name).exists() for name in BUNDLE_FILES):
            raise UnreadableFileError(f"{path} is a folder, and neither a store nor a trajectory: name the files in it")
        return AseReader(ase_format=ase_format_of(path))
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    with path.open("rb") as file:
        signature = file.read(len(HDF5_SIGNATURE))
    if not signature:
        raise UnreadableFileError(f"{path} is empty: write it again, or name another file")
    if signature == HDF5_SIGNATURE or path.suffix.lower() in HDF5_SUFFIXES:
        return _detect_hdf5(path)
    if path.suffix.lower() == ".npz":
        with naming(path), zipfile.ZipFile(path) as archive:
            Md17Reader().keys_in(path, array_names(archive))
        return Md17Reader()
    with naming(path):
        return AseReader(ase_format=ase_format_of(path))


def read_blocks(
    path: str | Path,
    reader: ReaderConfig | None = None,
    *,
    on_fault: OnFault = None,
    on_left_out: OnLeftOut = None,
    on_remark: OnRemark = None,
) -> Iterator[Block]:
    """Checked structures of a file, many at a time, in its order and in constant memory.

    Args:
        path: the file.
        reader: how to read it; None to find out from the file.
        on_fault: receives each frame that cannot be used, which is then skipped; None to raise a
            :class:`BadFrameError` instead.
        on_left_out: receives what the reader leaves out by its own rules.
        on_remark: receives remarks on the file, such as labels under other names.
    """
    file = Path(path)
    chosen = detect(file) if reader is None else reader
    if file.is_dir() and not isinstance(chosen, AseReader):
        raise UnreadableFileError(f"{file} is a folder: name a file")
    notes: list[LeftOut | Remark] = []
    return _told(
        _required(chosen.read(file, notify=notes.append), file, chosen, notes), notes, on_fault, on_left_out, on_remark
    )


def read_atoms(
    atoms: Iterable[Atoms],
    reader: AseReader | None = None,
    *,
    source: str = "atoms",
    on_fault: OnFault = None,
    on_remark: OnRemark = None,
) -> Iterator[Block]:
    """Checked structures from ``Atoms`` in memory; arguments as for :func:`read_blocks`, ``source`` for messages."""
    notes: list[LeftOut | Remark] = []
    images = (Image(source, frame, each) for frame, each in enumerate(atoms))
    frames = (AseReader() if reader is None else reader).frames(images, source, notify=notes.append)
    return _told(frames, notes, on_fault, None, on_remark)


def read(
    path: str | Path,
    reader: ReaderConfig | None = None,
    *,
    on_fault: OnFault = None,
    on_left_out: OnLeftOut = None,
    on_remark: OnRemark = None,
) -> Iterator[Structure]:
    """Checked structures of a file one by one; arguments as for :func:`read_blocks`."""
    blocks = read_blocks(path, reader, on_fault=on_fault, on_left_out=on_left_out, on_remark=on_remark)
    return (structure for block in blocks for structure in block)


def _told(
    frames: Frames,
    notes: list[LeftOut | Remark],
    on_fault: OnFault,
    on_left_out: OnLeftOut,
    on_remark: OnRemark,
) -> Iterator[Block]:
    """The checked blocks. Listeners are called here, so that their errors are not taken for errors of the file."""

    def tell() -> None:
        for note in notes:
            if isinstance(note, Remark) and on_remark is not None:
                on_remark(note)
            if isinstance(note, LeftOut) and on_left_out is not None:
                on_left_out(note)
        notes.clear()

    for item in checked(frames):
        tell()
        if isinstance(item, Block):
            yield item
        elif on_fault is None:
            raise BadFrameError(str(item))
        else:
            on_fault(item)
    tell()


def _required(frames: Frames, path: Path, reader: ReaderConfig, notes: list[LeftOut | Remark]) -> Frames:
    """The frames; an error if there are none and nothing was left out."""
    empty = True
    for frame in frames:
        empty = False
        yield frame
    if empty and not notes:
        chosen = json.dumps({"kind": reader.kind, **reader.model_dump(mode="json", exclude_defaults=True)})
        raise UnreadableFileError(
            f"{path} holds no structures for the reader {chosen}; if it is of another kind, state it with --reader"
        )


def _detect_hdf5(path: Path) -> Ani1xReader | Transition1xReader:
    """Distinguish the two layouts by their first groups."""
    with naming(path), h5py.File(path, "r") as file:
        names = sorted(file)
        if "data" in names:
            return Transition1xReader()
        first = file.get(names[0]) if names else None
        if isinstance(first, h5py.Group) and "coordinates" in first and "atomic_numbers" in first:
            return Ani1xReader()
        found = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise UnreadableFileError(
            f"{path} is an HDF5 file of an unknown layout; known are transition1x (/data/<formula>/<reaction>) and "
            f"ani1x (/<formula>/coordinates); it has {found or 'nothing'}. Convert it to extended xyz or ASE's db"
        )
