"""MD17 and revised MD17: trajectories of one molecule in an npz file, in kcal/mol and Å.

Arrays are read from the archive in pieces, so that memory does not grow with the file, and are never unpickled.
"""

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast

import numpy as np
from pydantic import Field

from huefield.data.readers.base import (
    Conformations,
    EnergyUnit,
    Frames,
    LengthUnit,
    Notify,
    Units,
    UnknownUnitsError,
    UnreadableFileError,
    ignore,
    naming,
    row_slices,
)
from huefield.support.config import FrozenConfig

Unit = TypeVar("Unit")


class NpzKeys(FrozenConfig):
    """The names of the arrays in an npz file."""

    atomic_numbers: str
    positions: str
    energy: str
    forces: str | None


MD17 = NpzKeys(atomic_numbers="z", positions="R", energy="E", forces="F")
RMD17 = NpzKeys(atomic_numbers="nuclear_charges", positions="coords", energy="energies", forces="forces")

ENERGY_NAMES: dict[str, EnergyUnit] = {
    "kcal/mol": "kcal/mol", "kj/mol": "kJ/mol", "ev": "eV", "mev": "meV", "hartree": "hartree", "ha": "hartree",
}  # fmt: skip
LENGTH_NAMES: dict[str, LengthUnit] = {
    "ang": "angstrom", "angstrom": "angstrom", "å": "angstrom", "bohr": "bohr", "a0": "bohr", "nm": "nm",
}  # fmt: skip
HOW = (
    """--reader '{"kind": "md17", "keys": {"atomic_numbers": "z", "positions": "R", "energy": "E", "forces": "F"}, """
    """"energy_unit": "eV", "length_unit": "angstrom"}' with the names and units of the file"""
)


class Md17Reader(FrozenConfig):
    """Reads MD17, revised MD17 and npz files like them.

    Units are taken from these settings, else from ``e_unit`` and ``r_unit`` of the file, else from the two data sets.
    Arrays under other names need stated units.
    """

    kind: Literal["md17"] = "md17"
    keys: NpzKeys | None = Field(None, description="names of the arrays; null for those of MD17 or revised MD17")
    energy_unit: EnergyUnit | None = Field(None, description="unit of the energies")
    length_unit: LengthUnit | None = Field(None, description="unit of the positions, and of lengths in the forces")
    group: str = Field("", description="group of all structures of the file")

    def read(self, path: Path, *, notify: Notify = ignore) -> Frames:
        """Blocks of consecutive frames."""
        with naming(path), zipfile.ZipFile(path) as archive:
            keys = self.keys_in(path, array_names(archive))
            units = self._units(path, archive)
            for part in self._parts(path, archive, keys, units):
                yield from part.frames()

    def keys_in(self, path: Path, names: set[str]) -> NpzKeys:
        """The names of the arrays in this file."""
        found = ", ".join(sorted(names)) or "nothing"
        if self.keys is not None:
            absent = {name for name in self.keys.model_dump().values() if name is not None} - names
            if absent:
                raise UnreadableFileError(f"{path} has no arrays {', '.join(sorted(absent))}; it has {found}")
            return self.keys
        for keys in (MD17, RMD17):
            if {keys.atomic_numbers, keys.positions, keys.energy} <= names:
                return keys if keys.forces in names else keys.model_copy(update={"forces": None})
        raise UnknownUnitsError(
            f"{path} has neither the arrays of MD17 (z, R, E, F) nor those of revised MD17 (nuclear_charges, coords, "
            f"energies, forces), so its units are unknown; it has {found}. State them: {HOW}"
        )

    def _units(self, path: Path, archive: zipfile.ZipFile) -> Units:
        energy, length = self.energy_unit, self.length_unit
        if energy is None:
            energy = _stated(path, archive, "e_unit", ENERGY_NAMES) or ("kcal/mol" if self.keys is None else None)
        if length is None:
            length = _stated(path, archive, "r_unit", LENGTH_NAMES) or ("angstrom" if self.keys is None else None)
        if energy is None or length is None:
            raise UnknownUnitsError(f"{path} does not state its units. State them: {HOW}")
        return Units.named(energy, length)

    def _parts(self, path: Path, archive: zipfile.ZipFile, keys: NpzKeys, units: Units) -> Iterator[Conformations]:
        atomic_numbers = _whole(archive, keys.atomic_numbers)
        positions = _RowReader.open(path, archive, keys.positions)
        energy = _RowReader.open(path, archive, keys.energy)
        forces = None if keys.forces is None else _RowReader.open(path, archive, keys.forces)
        columns = [column for column in (positions, energy, forces) if column is not None]
        if len({len(column) for column in columns}) != 1:
            lengths = ", ".join(f"{column.name}: {len(column)}" for column in columns)
            raise UnreadableFileError(f"{path} has arrays of different lengths ({lengths})")
        for rows in row_slices(len(positions)):
            n = rows.stop - rows.start
            values = energy.take(n)
            yield Conformations(
                source=str(path),
                atomic_numbers=atomic_numbers,
                positions=positions.take(n) * units.length,
                energy=(values[:, 0] if values.shape[1:] == (1,) else values) * units.energy,
                forces=None if forces is None else forces.take(n) * units.force,
                rows=np.arange(rows.start, rows.stop),
                group=self.group,
            )
        for column in columns:
            column.finish()


def array_names(archive: zipfile.ZipFile) -> set[str]:
    """The names of the arrays in an npz archive."""
    return {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}


def _whole(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """A small array, read completely."""
    with archive.open(f"{name}.npy") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _stated(path: Path, archive: zipfile.ZipFile, name: str, known: dict[str, Unit]) -> Unit | None:
    """The unit that a file states under ``name``; None if it states none."""
    if name not in array_names(archive):
        return None
    value = _whole(archive, name)
    text = str(value.astype(str).ravel()[0] if value.size == 1 else value)
    if text.strip().lower() not in known:
        raise UnknownUnitsError(
            f"{path} states the unit {name} = {text!r}, known are {', '.join(known)}. State it: {HOW}"
        )
    return known[text.strip().lower()]


@dataclass(frozen=True, eq=False)
class _RowReader:
    """An array of an npz archive that is read row by row."""

    path: Path
    name: str
    file: zipfile.ZipExtFile
    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def open(cls, path: Path, archive: zipfile.ZipFile, name: str) -> "_RowReader":
        file = cast(zipfile.ZipExtFile, archive.open(f"{name}.npy"))
        version = np.lib.format.read_magic(file)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in header:
            raise UnreadableFileError(f"{path}: array {name} has the npy version {version}, known are {list(header)}")
        shape, fortran, dtype = header[version](file)
        if dtype.kind not in "iuf" or not shape or min(shape) < 0:
            raise UnreadableFileError(
                f"{path}: array {name} must be an array of numbers, but is {dtype} of shape {shape}"
            )
        if fortran and len(shape) > 1:
            raise UnreadableFileError(f"{path}: array {name} is in Fortran order; save it with numpy.ascontiguousarray")
        return cls(path, name, file, shape, dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, rows: int) -> np.ndarray:
        """The next rows, in double precision."""
        shape = (rows, *self.shape[1:])
        wanted = int(np.prod(shape, dtype=object)) * self.dtype.itemsize
        content = self.file.read(wanted)
        if len(content) != wanted:
            raise UnreadableFileError(f"{self.path}: array {self.name} ends early; the file is truncated")
        return np.frombuffer(content, self.dtype).reshape(shape).astype(float)

    def finish(self) -> None:
        """Read to the end, where zipfile compares the checksum."""
        if self.file.read(1):
            raise UnreadableFileError(f"{self.path}: array {self.name} is longer than its shape {self.shape} says")
        self.file.close()
