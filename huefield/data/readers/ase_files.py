"""Whatever ASE reads: extended xyz, databases, trajectories, outputs of electronic-structure codes.

ASE's conventions are ours: eV, Å, stress positive under tension. Extended xyz files are cut into frames here and parsed
by ASE, so that a damaged frame costs only itself, and a file that ends early is noticed.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import ase.db
import ase.io
import numpy as np
from ase import Atoms
from ase.io.extxyz import read_extxyz
from ase.io.formats import UnknownFileTypeError, filetype, get_ioformat, open_with_compression
from pydantic import Field

from huefield.core.structure import Structure, pack
from huefield.data.readers.base import (
    EnergyUnit,
    Fault,
    Frames,
    LengthUnit,
    OnLeftOut,
    Units,
    UnknownUnitsError,
    UnreadableFileError,
    naming,
    require_elements,
)
from huefield.support.checks import require_shape
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

FRAMES_PER_BLOCK = 256
LAST_WORDS = {"vasp-xml": b"</modeling>"}
"""How a whole file ends, of formats from which ASE silently reads as much as there is."""
STATE_FORMAT = """state it: --reader '{"kind": "ase", "ase_format": "extxyz"}', or vasp-xml, traj, db, ..."""
"""What people can do where the format of a file is not known."""
VOIGT = {
    "ase": np.array([[0, 5, 4], [5, 1, 3], [4, 3, 2]]),
    "vasp": np.array([[0, 3, 5], [3, 1, 4], [5, 4, 2]]),
}
"""Which of six components stands where in a stress tensor."""


class AseReader(FrozenConfig):
    """Reads files through ASE. A label comes from the first of its keys that ``info``, ``arrays`` or calculator has."""

    kind: Literal["ase"] = "ase"
    ase_format: str | None = Field(None, description="ASE's name of the file format; None to let ASE find out")
    energy_keys: tuple[str, ...] = Field(
        ("REF_energy", "energy"), description="names of the energy, the first wins; free_energy is VASP's with forces"
    )
    forces_keys: tuple[str, ...] = Field(("REF_forces", "forces"), description="names of the forces, the first wins")
    stress_keys: tuple[str, ...] = Field(("REF_stress", "stress"), description="names of the stress, the first wins")
    stress_order: Literal["ase", "vasp"] = Field(
        "ase", description="order of six components: ase has xx yy zz yz xz xy, vasp has xx yy zz xy yz xz"
    )
    stress_scale: float = Field(
        1.0, description="factor of the stress besides its units, for instance -1/1602.1766 for VASP's kbar"
    )
    group_key: str | tuple[str, ...] | None = Field(
        None,
        description="entry of info that is the group; of several, the first that is there; None for no groups",
    )
    energy_unit: EnergyUnit | None = Field(None, description="unit of energies; None for ASE's, eV")
    length_unit: LengthUnit | None = Field(None, description="unit of lengths; None for ASE's, Å")

    def read(self, path: Path, *, on_left_out: OnLeftOut = None) -> Frames:
        """Blocks of consecutive frames."""
        with naming(path):
            images = images_in(path, ase_format_of(path) if self.ase_format is None else self.ase_format)
            yield from _in_blocks((self._structure(image) for image in images), str(path))

    def _structure(self, image: "Image | Fault") -> "_Numbered | Fault":
        if isinstance(image, Fault):
            return image
        try:
            return _Numbered(image.frame, self.convert(image.parse(), convention=image.convention))
        except UnknownUnitsError as error:
            raise UnknownUnitsError(f"{image.source}, frame {image.frame}: {error}") from error
        except Exception as error:  # ASE raises anything on damaged text
            return Fault(image.source, image.frame, explained(error))

    def convert(self, atoms: Atoms, *, convention: bool = True) -> Structure:
        """An ASE ``Atoms`` with its labels in eV and Å; ``convention`` says whether its source follows ASE's units."""
        energy, forces, stress = (_find(atoms, keys) for keys in (self.energy_keys, self.forces_keys, self.stress_keys))
        if not convention and self.energy_unit is None and any(x is not None for x in (energy, forces, stress)):
            raise UnknownUnitsError(
                "a plain xyz frame (without Properties= or Lattice=) does not fix the unit of its labels; state it: "
                """--reader '{"kind": "ase", "energy_unit": "eV"}', or hartree, kcal/mol, kJ/mol, meV"""
            )
        units = Units.named(self.energy_unit or "eV", self.length_unit or "angstrom")
        require_elements(atoms.numbers)
        return Structure(
            atomic_numbers=atoms.numbers.astype(np.uint8),
            positions=atoms.positions.astype(float) * units.length,
            cell=np.array(atoms.cell, float) * units.length,
            pbc=np.array(atoms.pbc, bool),
            energy=None if energy is None else _energy(energy) * units.energy,
            forces=None if forces is None else _forces(forces, len(atoms)) * units.force,
            stress=None
            if stress is None
            else stress_tensor(stress, self.stress_order) * units.stress * self.stress_scale,
            group="" if self.group_key is None else _group(atoms, self.group_key),
        )


def ase_format_of(path: Path, *, cure: str = STATE_FORMAT) -> str:
    """ASE's name of a file's format; where it has none, an error that says what people can do."""
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


@dataclass(frozen=True, eq=False)
class _Numbered:
    frame: int
    structure: Structure


@dataclass(frozen=True, eq=False)
class Image:
    """A frame of a file: already read, or as lines of extended xyz."""

    source: str
    frame: int
    content: Atoms | list[str]

    def parse(self) -> Atoms:
        """The frame; raises whatever ASE raises on damaged text."""
        if isinstance(self.content, Atoms):
            return self.content
        return next(iter(read_extxyz(io.StringIO("".join(self.content)), index=0)))

    @property
    def convention(self) -> bool:
        """Whether the frame follows ASE's conventions for units."""
        return isinstance(self.content, Atoms) or any(key in self.content[1] for key in ("Properties=", "Lattice="))


def _in_blocks(items: Iterable[_Numbered | Fault], source: str) -> Frames:
    """Pack structures into blocks, with faults at their place between them."""
    waiting: list[_Numbered] = []

    def packed() -> Frames:
        if waiting:
            yield pack([w.structure for w in waiting], np.array([w.frame for w in waiting]), source)
            waiting.clear()

    for item in items:
        if isinstance(item, Fault):
            yield from packed()
            yield item
            continue
        waiting.append(item)
        if len(waiting) == FRAMES_PER_BLOCK:
            yield from packed()
    yield from packed()


def images_in(path: Path, format_name: str) -> Iterator[Image | Fault]:
    """Frames of a file; those of xyz files can be damaged one by one."""
    return xyz_images(path) if format_name in ("xyz", "extxyz") else images_of(path, format_name)


def images_of(path: Path, format_name: str) -> Iterator[Image | Fault]:
    """Frames as ASE reads them. ASE cannot go on behind a frame that it fails on: that is an error."""
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
        raise UnreadableFileError(f"{path}, frame {frame + 1}: {explained(error)}") from error
    if not _ends_with(path, LAST_WORDS.get(format_name, b"")):
        last = LAST_WORDS[format_name].decode()
        yield Fault(
            str(path), frame + 1, f"the file ends before {last}: it is truncated, or its calculation unfinished"
        )


def _rows(path: Path) -> Iterator[Atoms]:
    """Rows of an ASE database; their key-value pairs and data are found in ``info``."""
    with ase.db.connect(path, serial=True) as database:
        for row in database.select():
            atoms = row.toatoms()
            atoms.info = {**row.data, **row.key_value_pairs}
            yield atoms


def _ends_with(path: Path, last_words: bytes) -> bool:
    if not last_words:
        return True
    tail = b""
    with open_with_compression(str(path), "rb") as file:
        while piece := file.read(1 << 20):
            tail = (tail + piece)[-1024:]
    return tail.rstrip().endswith(last_words)


def xyz_images(path: Path) -> Iterator[Image | Fault]:
    """Cut an xyz file into frames: the number of atoms, a comment, a line for each atom, lattice vectors."""
    with open_with_compression(str(path), "rb") as binary, io.TextIOWrapper(binary, "utf-8", "replace") as lines:
        frame, line = 0, next(lines, "")
        while line:
            if not line.strip():
                line = next(lines, "")
                continue
            count = line.strip()
            if not (count.isascii() and count.isdecimal()):
                raise UnreadableFileError(
                    f"{path}, frame {frame}: expected a line with the number of atoms, but found {count[:60]!r}; this "
                    "frame or the one before is damaged, and the frames behind it cannot be told apart"
                )
            content = [line, *islice(lines, int(count) + 1)]
            line = next(lines, "")
            while line.startswith("VEC"):
                content.append(line)
                line = next(lines, "")
            reason = _cut_off(content, int(count))
            yield Image(str(path), frame, content) if reason is None else Fault(str(path), frame, reason)
            frame += 1


def _cut_off(content: list[str], atoms: int) -> str | None:
    """Why a frame is not whole; None if it is."""
    found = content[2:]
    if len(content) < 2 or len(found) < atoms:
        return f"the file is truncated: it announces {atoms} atoms and ends after {len(found)} of them"
    if atoms and not found[-1].endswith("\n") and _decimals(found[-1]) < min(map(_decimals, found[:-1]), default=0):
        return "the file is truncated in its last line; if it is whole, end it with a newline"
    return None


def _decimals(line: str) -> int:
    """Characters behind the point of the last number of a line."""
    return len(line.rstrip().rpartition(" ")[2].partition(".")[2])


def _find(atoms: Atoms, keys: tuple[str, ...]) -> Any:
    """The first of the labels that is there; forces as calculated, whatever constraints say."""
    results = {} if atoms.calc is None else atoms.calc.results
    for key in keys:
        for place in (atoms.info, atoms.arrays, results):
            if place.get(key) is not None:
                return place[key]
    return None


def _numbers(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise HuefieldError(f"the {name} must be numbers, but is {str(value)[:60]!r}")
    return array.astype(float)


def _energy(value: Any) -> float:
    array = _numbers("energy", value)
    if array.size != 1:
        raise HuefieldError(f"the energy must be one number, but has shape {array.shape}")
    return float(array.reshape(()))


def _forces(value: Any, atoms: int) -> np.ndarray:
    array = _numbers("forces", value)
    require_shape("forces", array, (atoms, 3))
    return array


def stress_tensor(value: Any, order: str) -> np.ndarray:
    """3 × 3 from six components in ASE's or VASP's order, from nine, or from a tensor."""
    array = _numbers("stress", value)
    if array.shape == (6,):
        return array[VOIGT[order]]
    if array.shape not in ((9,), (3, 3)):
        raise HuefieldError(f"the stress must have 6 or 3 × 3 components, but has shape {array.shape}")
    return array.reshape(3, 3)


def _group(atoms: Atoms, key: str | tuple[str, ...]) -> str:
    """Of several entries none needs to be there."""
    if isinstance(key, tuple):
        return next((str(atoms.info[each]) for each in key if each in atoms.info), "")
    if key not in atoms.info:
        raise HuefieldError(f"no group: info has no {key!r}; it has {', '.join(sorted(atoms.info)) or 'nothing'}")
    return str(atoms.info[key])


def explained(error: Exception) -> str:
    """What ASE said, with the kind of error where that alone is not clear."""
    if type(error) is ValueError:
        return str(error)
    if isinstance(error, KeyError):
        return f"unknown element or key {error}"
    return f"{type(error).__name__}: {error}"
