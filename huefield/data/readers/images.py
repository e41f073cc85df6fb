"""Frames of files that ASE reads: extended xyz, databases, trajectories, outputs of electronic-structure codes.

Extended xyz files are cut into frames here and each frame is parsed by ASE, so that a damaged frame costs only itself
and a truncated file is noticed.
"""

import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import ase.db
import ase.io
from ase import Atoms
from ase.io.extxyz import read_extxyz
from ase.io.formats import UnknownFileTypeError, filetype, get_ioformat, open_with_compression

from huefield.data.readers.base import Fault, UnreadableFileError
from huefield.support.errors import HuefieldError
from huefield.support.tensorfile import format_of

LAST_WORDS = {"vasp-xml": b"</modeling>"}
"""The end of a complete file, for formats of which ASE silently reads an incomplete one."""
STATE_FORMAT = """state it: --reader '{"kind": "ase", "ase_format": "extxyz"}', or vasp-xml, traj, db, ..."""
MAX_ATOMS = 5_000_000
"""Larger frames are taken for damaged: their lines are held in memory."""
MAX_COUNT_CHARACTERS = 1000
"""Characters that are read to find the number of atoms."""
PROPERTIES = re.compile(r'Properties="?([^\s"]+)')
ENTRIES = re.compile(r"""([^\s="']+)=("(?:\\.|[^"\\])*"|\S+)""")


@dataclass(frozen=True, eq=False)
class Image:
    """A frame of a file: parsed by ASE, or as lines of extended xyz."""

    source: str
    frame: int
    content: Atoms | list[str]

    def parse(self) -> Atoms:
        """The atoms of the frame; ASE raises any exception on damaged text."""
        if isinstance(self.content, Atoms):
            return self.content
        _require_consistent(self.content)
        return next(iter(read_extxyz(io.StringIO("".join(self.content)), index=0)))

    @property
    def convention(self) -> bool:
        """Whether the frame follows ASE's conventions for units."""
        return isinstance(self.content, Atoms) or any(key in self.content[1] for key in ("Properties=", "Lattice="))


def ase_format_of(path: Path, *, cure: str = STATE_FORMAT) -> str:
    """ASE's name of a file's format; ``cure`` ends the error message for an unknown format."""
    if path.is_file() and (mark := format_of(path)) is not None:
        raise UnreadableFileError(
            f"{path} is a {mark} file, but a file of structures is needed here: check the order of the arguments, the "
            "model comes before the data"
        )
    plain = path.with_suffix("") if path.suffix in (".gz", ".bz2", ".xz") else path
    if plain.suffix.lower() in (".xyz", ".extxyz"):
        return "extxyz"
    try:
        found = filetype(str(path))
        get_ioformat(found)
    except UnknownFileTypeError as error:
        raise UnreadableFileError(
            f"{path}: ASE does not know this kind of file ({error}); {cure} (`ase info --formats` lists them)"
        ) from error
    return found


def images_in(path: Path, format_name: str) -> Iterator[Image | Fault]:
    """Frames of a file. Damaged frames of xyz files are faults; in other formats they raise an error."""
    return xyz_images(path) if format_name in ("xyz", "extxyz") else _ase_images(path, format_name)


def xyz_images(path: Path) -> Iterator[Image | Fault]:
    """Cut an xyz file into frames: the number of atoms, a comment, a line for each atom, lattice vectors."""
    with open_with_compression(str(path), "rb") as binary, io.TextIOWrapper(binary, "utf-8-sig", "replace") as lines:
        frame, line = 0, lines.readline(MAX_COUNT_CHARACTERS)
        while line:
            if not line.strip():
                line = lines.readline(MAX_COUNT_CHARACTERS)
                continue
            atoms = _number_of_atoms(line.strip(), f"{path}, frame {frame}", first=frame == 0)
            content = [line, *islice(lines, atoms + 1)]
            line = lines.readline(MAX_COUNT_CHARACTERS)
            while line.startswith("VEC"):
                content.append(line)
                line = lines.readline(MAX_COUNT_CHARACTERS)
            reason = _cut_off(content, atoms)
            yield Image(str(path), frame, content) if reason is None else Fault(str(path), frame, reason)
            frame += 1


def _number_of_atoms(count: str, where: str, *, first: bool) -> int:
    if not (count.isascii() and count.isdecimal()):
        cure = (
            "is it an xyz file? If not, give it the suffix of its format"
            if first
            else "this frame or the one before is damaged, and later frames cannot be found"
        )
        raise UnreadableFileError(
            f"{where}: expected a line with the number of atoms, but found {count[:60]!r}; {cure}"
        )
    if len(count) > 18 or int(count) > MAX_ATOMS:
        raise UnreadableFileError(
            f"{where}: the first line announces {count[:30]} atoms, but at most {MAX_ATOMS} are read; correct the line"
        )
    return int(count)


def _cut_off(content: list[str], atoms: int) -> str | None:
    """Why a frame is incomplete; None if it is complete."""
    found = content[2:]
    if len(content) < 2 or len(found) < atoms:
        return f"the file is truncated: it announces {atoms} atoms and ends after {len(found)} of them"
    if atoms and not found[-1].endswith("\n") and _decimals(found[-1]) < min(map(_decimals, found[:-1]), default=0):
        return "the file is truncated in its last line; if it is complete, end it with a newline"
    return None


def _decimals(line: str) -> int:
    """Characters after the decimal point of the last number of a line."""
    return len(line.rstrip().rpartition(" ")[2].partition(".")[2])


def _require_consistent(content: Sequence[str]) -> None:
    """Raise for damage that ASE does not notice: columns in excess, no positions, an entry with two values."""
    if (stated := PROPERTIES.search(content[1])) is None:
        return
    entries: dict[str, str] = {}
    for name, value in ENTRIES.findall(content[1]):
        if entries.setdefault(name, value) != value:
            raise HuefieldError(f"the comment has {name} twice, as {entries[name]} and {value}: remove one")
    _require_columns(stated[1], content[2 : 2 + int(content[0])])


def _require_columns(properties: str, rows: Sequence[str]) -> None:
    parts = properties.split(":")
    if len(parts) % 3 or not all(width.isdecimal() for width in parts[2::3]):
        raise HuefieldError(f"Properties must be NAME:TYPE:COLUMNS, repeated, but is {properties[:80]!r}")
    twice = [name for name, count in Counter(parts[::3]).items() if count > 1]
    if twice:
        raise HuefieldError(f"Properties names the column {twice[0]!r} twice: rename or remove one")
    if not {"pos", "positions"} & set(parts[::3]):
        raise HuefieldError(f"Properties has no positions (pos:R:3), but {', '.join(parts[::3])}")
    columns = sum(map(int, parts[2::3]))
    if len("".join(rows).split()) != columns * len(rows):
        number, found = next((i, len(row.split())) for i, row in enumerate(rows) if len(row.split()) != columns)
        raise HuefieldError(f"the line of atom {number} has {found} columns, but Properties names {columns}")


def _ase_images(path: Path, format_name: str) -> Iterator[Image | Fault]:
    """Frames as ASE reads them. ASE cannot continue after a damaged frame, which is an error."""
    frame = -1
    images = (
        _rows(path)
        if format_name in ("db", "json")
        else ase.io.iread(str(path), index=":", format=format_name, parallel=False, do_not_split_by_at_sign=True)
    )
    try:
        for frame, atoms in enumerate(images):
            yield Image(str(path), frame, atoms)
    except Exception as error:
        raise UnreadableFileError(
            f"{path}, frame {frame + 1}: {explained(error)}; the file is damaged or not a {format_name} file"
        ) from error
    if not _ends_with(path, LAST_WORDS.get(format_name, b"")):
        last = LAST_WORDS[format_name].decode()
        yield Fault(
            str(path), frame + 1, f"the file ends before {last}: it is truncated, or its calculation unfinished"
        )


def _rows(path: Path) -> Iterator[Atoms]:
    """Rows of an ASE database, with their key-value pairs and data in ``info``."""
    with ase.db.connect(path, serial=True) as database:
        for row in database.select():
            atoms = row.toatoms()
            atoms.info = {**row.data, **row.key_value_pairs}
            yield atoms


def units_of_database(path: Path) -> dict[str, str]:
    """Units of the properties that the metadata of a database name, as SchNetPack writes them; empty if none do."""
    try:
        with ase.db.connect(path, serial=True) as database:
            return {name: str(unit) for name, unit in database.metadata.get("_property_unit_dict", {}).items()}
    except Exception:  # damaged files are reported where their rows are read
        return {}


def _ends_with(path: Path, last_words: bytes) -> bool:
    if not last_words:
        return True
    tail = b""
    with open_with_compression(str(path), "rb") as file:
        while piece := file.read(1 << 20):
            tail = (tail + piece)[-1024:]
    return tail.rstrip().endswith(last_words)


def explained(error: Exception) -> str:
    """The message of an exception of ASE, with its type where the message alone is not clear."""
    if type(error) in (ValueError, HuefieldError):
        return str(error)
    if isinstance(error, KeyError):
        return f"unknown element or key {error}"
    return f"{type(error).__name__}: {error}"
