"""Converting files of any kind to a packed store: one pass, constant memory, resumable."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from huefield import __version__
from huefield.core.structure import Block, Precision
from huefield.data.readers.ase_files import GROUP_KEYS
from huefield.data.readers.base import BadFrameError, Fault, LeftOut, Remark, warn_of
from huefield.data.readers.detect import OnFault, OnLeftOut, OnRemark, ReaderConfig, detect, read_blocks
from huefield.data.readers.transition1x import Transition1xReader
from huefield.data.store.format import MANIFEST, Provenance, ReadingPosition, SourceInfo, StoreError
from huefield.data.store.publish import partial_path
from huefield.data.store.store import Store, is_store
from huefield.data.store.writer import StoreWriter
from huefield.support.errors import HuefieldError


@dataclass(frozen=True)
class ConvertProgress:
    """Progress of a conversion."""

    source: str
    source_number: int
    num_sources: int
    structures: int
    resumed: int
    """Structures that an earlier, interrupted run converted."""
    faults: int
    seconds: float
    """Duration of this run."""

    @property
    def rate(self) -> float:
        """Structures per second in this run."""
        return (self.structures - self.resumed) / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class Converted:
    """Result of a conversion."""

    path: Path
    structures: int
    atoms: int
    faults: int
    left_out: int
    resumed: int
    remarks: tuple[Remark, ...]
    """Labels under other names, charges and unpaired electrons in the sources that this run read."""


class ConversionStoppedError(Exception):
    """A conversion was asked to stop; the message says how to resume it."""


def convert(
    sources: Sequence[Path],
    dest: Path,
    *,
    reader: ReaderConfig | None = None,
    precision: Precision = "float64",
    skip_bad: bool = False,
    resume: bool = True,
    overwrite: bool = False,
    report: Callable[[ConvertProgress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    journal_every: int = 50_000,
) -> Converted:
    """Write the structures of all sources, in order, to a store.

    The result is identical, bit for bit, whether the conversion was interrupted or not. Resuming reads the source in
    which it was interrupted from its beginning, and skips the structures that the store has. Remarks on the sources,
    such as labels under other names, are shown as warnings.

    Args:
        sources: files that readers know, or stores.
        dest: the store, ``NAME.hues``.
        reader: how to read the sources; None to find out from each.
        precision: of positions and forces; energies, cells and stresses are always double.
        skip_bad: whether to leave bad frames out and list them in ``faults.txt``, instead of raising.
        resume: whether to continue an interrupted conversion; otherwise it is deleted.
        overwrite: whether a store at ``dest`` is replaced.
        report: receives the progress after each block.
        should_stop: asked after each block; if true, everything is saved and a ConversionStoppedError is raised.
        journal_every: structures between two journals, after which a kill loses nothing.
    """
    if not sources:
        raise HuefieldError("there is nothing to convert: give at least one file")
    infos = tuple(source_info(path, reader) for path in sources)
    if resume:
        infos = _as_begun(infos, partial_path(dest))
    provenance = Provenance(huefield=__version__, precision=precision, sources=infos)
    start = time.monotonic()
    remarks: list[Remark] = []
    with StoreWriter(dest, provenance, resume=resume, overwrite=overwrite, journal_every=journal_every) as writer:
        resumed, position = writer.structures, writer.position
        if writer.faults and not skip_bad:
            raise StoreError(
                f"{writer.partial} has left out {writer.faults} bad frames: resume it with --skip-bad, or start again "
                "with --no-resume"
            )
        for number, path in enumerate(sources):
            if number < position.source:
                continue
            done = position if number == position.source else ReadingPosition(source=number)
            for block in _remaining(path, infos[number].reader, number, done, writer, skip_bad, remarks):
                writer.append(block, number)
                seconds = time.monotonic() - start
                counts = (writer.structures, resumed, writer.faults)
                report(ConvertProgress(str(path), number + 1, len(sources), *counts, seconds))
                if should_stop():
                    raise ConversionStoppedError(
                        f"stopped after {writer.structures} structures, which are saved in {writer.partial}: "
                        "run the same command again to resume"
                    )
        if not writer.structures:
            faults = writer.faults
            writer.discard()
            raise BadFrameError(f"no frame can be stored in {dest.name}: all {faults} are bad")
        path = writer.finish()
        return Converted(path, writer.structures, writer.atoms, writer.faults, writer.left_out, resumed, tuple(remarks))


def source_info(path: Path, reader: ReaderConfig | None) -> SourceInfo:
    """Path, size, time, reader and official split of a source, by which a resumed conversion notices changes."""
    file, config, parts = path, None, dict[str, str]()
    if is_store(path):
        store = Store.open(path)
        file = store.path / MANIFEST
        parts = {formula: part for each in store.provenance.sources for formula, part in each.official_parts.items()}
    else:
        chosen = reader or detect(path)
        config = chosen.model_dump(mode="json")
        parts = chosen.official_parts(path) if isinstance(chosen, Transition1xReader) else parts
    stat = file.stat()
    return SourceInfo(
        path=str(path), bytes=stat.st_size, modified_ns=stat.st_mtime_ns, reader=config, official_parts=parts
    )


def _as_begun(infos: tuple[SourceInfo, ...], partial: Path) -> tuple[SourceInfo, ...]:
    """The sources, read without groups if that was the default when the conversion began: a store must not mix both."""
    try:
        before = Provenance.model_validate_json((partial / "provenance.json").read_bytes()).sources
    except (ValidationError, OSError):  # there is none, or the writer says what is wrong
        return infos
    return tuple(_without_groups(info) if _without_groups(info) in before else info for info in infos)


def _without_groups(info: SourceInfo) -> SourceInfo:
    """The source without groups where it has the groups by default."""
    if info.reader is None or info.reader.get("group_key") != list(GROUP_KEYS):
        return info
    return info.model_copy(update={"reader": {**info.reader, "group_key": None}})


def read_any(
    path: Path,
    reader: ReaderConfig | None = None,
    *,
    on_fault: OnFault = None,
    on_left_out: OnLeftOut = None,
    on_remark: OnRemark = None,
) -> Iterator[Block]:
    """Blocks of a store or of a file; arguments as for :func:`huefield.data.readers.detect.read_blocks`."""
    if is_store(path):
        return Store.open(path).blocks()
    return read_blocks(path, reader, on_fault=on_fault, on_left_out=on_left_out, on_remark=on_remark)


def _remaining(
    path: Path,
    settings: dict[str, Any] | None,
    number: int,
    done: ReadingPosition,
    writer: StoreWriter,
    skip_bad: bool,
    remarks: list[Remark],
) -> Iterator[Block]:
    """Blocks of a source without the structures that the store has; faults of the rest go to the writer."""
    faults, rules = done.faults, done.rules

    def note(fault: Fault) -> None:
        nonlocal faults
        faults -= 1
        if faults < 0:
            writer.note(fault, number)

    def leave_out(left_out: LeftOut) -> None:
        nonlocal rules
        rules -= 1
        if rules < 0:
            writer.leave_out(left_out, number)

    def refuse(fault: Fault) -> None:
        raise BadFrameError(f"{fault}. Correct it, or leave such frames out with --skip-bad")

    def remark_on(remark: Remark) -> None:
        remarks.append(remark)
        warn_of(remark)

    reader = None if settings is None else TypeAdapter[ReaderConfig](ReaderConfig).validate_python(settings)
    on_fault = note if skip_bad else refuse
    blocks = read_any(path, reader, on_fault=on_fault, on_left_out=leave_out, on_remark=remark_on)
    return skipped(blocks, done.structures)


def skipped(blocks: Iterator[Block], count: int) -> Iterator[Block]:
    """Blocks without their first ``count`` structures."""
    for block in blocks:
        if count < len(block):
            yield block.select(np.arange(len(block)) >= count) if count else block
        count = max(count - len(block), 0)
