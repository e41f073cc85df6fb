"""The results of readers: blocks of structures, faults and remarks."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import h5py
import numpy as np
from jaxtyping import Int

from huefield.core.structure import MAX_ATOMIC_NUMBER, Block
from huefield.core.units import ENERGY_UNITS_EV, LENGTH_UNITS_ANGSTROM
from huefield.support.checks import require_shape
from huefield.support.errors import HuefieldError


@dataclass(frozen=True)
class Fault:
    """A frame that cannot be used."""

    source: str
    frame: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source}, frame {self.frame}: {self.reason}"


class BadFrameError(HuefieldError):
    """A frame cannot be used; the message names file, frame and reason."""


class UnknownUnitsError(HuefieldError):
    """Neither a file nor its format states the units; the message says how to state them."""


class UnreadableFileError(HuefieldError):
    """A file is damaged, or its layout is not what its reader expects; the message names the file and the place."""


Advice: TypeAlias = Callable[[Mapping[str, Any]], str]
"""Words settings of a reader in the way that the user of a command can give them."""


def reader_option(settings: Mapping[str, Any]) -> str:
    """Settings of a reader as an option of the commands that read files."""
    return f"--reader '{json.dumps(settings)}'"


def reader_of_training(settings: Mapping[str, Any]) -> str:
    """Settings of a reader as an option of ``huefield train`` and as a key of its configuration."""
    return f"--set 'data.reader={json.dumps(settings)}' (in a configuration: data: {{reader: {json.dumps(settings)}}})"


class MixedLabelsError(UnreadableFileError):
    """Frames of a file have a label under different names.

    Args:
        fault: the names and frames.
        settings: settings of the reader that choose one name for each quantity.
        advice: how to give settings.
    """

    def __init__(self, fault: str, settings: Mapping[str, Any], advice: Advice = reader_option) -> None:
        super().__init__(
            f"{fault}. Choose one name: {advice(settings)}; frames with the other name only then count as frames "
            "without this label. Or rename the labels"
        )
        self._fault, self._settings = fault, settings

    def advised(self, advice: Advice) -> "MixedLabelsError":
        """The same error for the user of another command."""
        return MixedLabelsError(self._fault, self._settings, advice)


@dataclass(frozen=True)
class LeftOut:
    """Structures that a reader left out by its own rule, such as rows without a label; they are not faults."""

    source: str
    count: int
    reason: str


Frames: TypeAlias = Iterator[Block | Fault]
"""Results of every reader, in the order of the file."""


@dataclass(frozen=True)
class Remark:
    """Something about a file that its user should know, at most one of each kind for a file."""

    source: str
    kind: Literal["electrons", "labels", "stress"]
    """``electrons``: a charge or unpaired electrons; ``labels``: labels may be there under other names; ``stress``: a
    stress or virial may be there whose sign and unit are not known."""
    text: str
    frame: int | None = None
    """The first frame that it is about; None for the whole file."""
    settings: Mapping[str, Any] | None = None
    """Settings of the reader that find the labels; None for other remarks."""

    def advised(self, advice: Advice) -> str:
        """The remark, and how to give the settings."""
        return f"{self}; to use it: {advice(self.settings)}" if self.settings else str(self)

    def __str__(self) -> str:
        return f"{self.source}{'' if self.frame is None else f', frame {self.frame}'}: {self.text}"


def warn_of(remark: Remark) -> None:
    """Show a remark as a Python warning, which the CLI prints as one line."""
    warnings.warn(remark.advised(reader_option), stacklevel=2)


Notify: TypeAlias = Callable[[LeftOut | Remark], None]
"""Receives everything that a reader reports besides structures and faults."""


def ignore(note: LeftOut | Remark) -> None:
    """A :data:`Notify` that drops everything."""


EnergyUnit: TypeAlias = Literal["eV", "meV", "hartree", "kcal/mol", "kJ/mol"]
LengthUnit: TypeAlias = Literal["angstrom", "bohr", "nm"]


@dataclass(frozen=True)
class Units:
    """Factors that convert the units of a file to eV, Å, eV/Å and eV/Å³."""

    energy: float
    length: float

    @classmethod
    def named(cls, energy: EnergyUnit, length: LengthUnit) -> "Units":
        """The factors of units by their names."""
        return cls(ENERGY_UNITS_EV[energy], LENGTH_UNITS_ANGSTROM[length])

    @property
    def force(self) -> float:
        """Factor to eV/Å."""
        return self.energy / self.length

    @property
    def stress(self) -> float:
        """Factor to eV/Å³."""
        return self.energy / self.length**3


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn any exception of a library into an error that names the file."""
    try:
        yield
    except (BadFrameError, UnknownUnitsError, UnreadableFileError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise UnreadableFileError(f"{path} cannot be read; it may be truncated or damaged ({what})") from error


MAX_ROWS = 4096
"""Conformations that are read from arrays at a time."""


def row_slices(length: int) -> Iterator[slice]:
    """Consecutive slices of rows, each read at a time."""
    return (slice(start, min(start + MAX_ROWS, length)) for start in range(0, length, MAX_ROWS))


def numbers_in(group: h5py.Group | h5py.Dataset, key: str, source: str) -> h5py.Dataset:
    """The data set ``key`` of a group; raises if it is absent or not an array of numbers."""
    if not isinstance(group, h5py.Group):
        raise UnreadableFileError(
            f"{source} is not a group with the data set {key!r}: the layout of the file is another one"
        )
    found = group.get(key)
    if found is None:
        raise UnreadableFileError(f"{source} has no data set {key!r}; it has {', '.join(sorted(group)) or 'nothing'}")
    if not isinstance(found, h5py.Dataset) or found.ndim == 0 or found.dtype.kind not in "iuf":
        what = f"{found.ndim}-dimensional {found.dtype}" if isinstance(found, h5py.Dataset) else "a group"
        raise UnreadableFileError(f"{source}/{key} must be an array of numbers, but is {what}")
    return found


@dataclass(frozen=True, eq=False)
class Conformations:
    """Conformations of the same atoms in arrays, as in public HDF5 and npz sets; in eV and Å, not yet checked."""

    source: str
    atomic_numbers: np.ndarray
    positions: np.ndarray
    energy: np.ndarray
    forces: np.ndarray | None
    rows: Int[np.ndarray, " n"]
    group: str = ""

    def frames(self) -> Frames:
        """One block; or one fault for each row if the shapes of the arrays disagree."""
        try:
            self._require_fit()
        except HuefieldError as error:
            yield from (Fault(self.source, int(row), str(error)) for row in self.rows)
            return
        n, atoms = len(self.rows), len(self.atomic_numbers)
        forces = np.zeros((n, atoms, 3)) if self.forces is None else self.forces
        yield Block(
            sizes=np.full(n, atoms),
            atomic_numbers=np.tile(self.atomic_numbers.astype(np.uint8), n),
            positions=self.positions.reshape(n * atoms, 3),
            cells=np.zeros((n, 3, 3)),
            pbc=np.zeros((n, 3), bool),
            energy=self.energy,
            has_energy=np.ones(n, bool),
            forces=forces.reshape(n * atoms, 3),
            has_forces=np.full(n, self.forces is not None),
            stress=np.zeros((n, 3, 3)),
            has_stress=np.zeros(n, bool),
            groups=(self.group,) * n,
            frames=self.rows,
            source=self.source,
        )

    def _require_fit(self) -> None:
        _require_array("atomic numbers", self.atomic_numbers, (None,))
        require_elements(self.atomic_numbers)
        n, atoms = len(self.rows), len(self.atomic_numbers)
        _require_array("positions", self.positions, (n, atoms, 3))
        _require_array("energy", self.energy, (n,))
        if self.forces is not None:
            _require_array("forces", self.forces, (n, atoms, 3))


def _require_array(name: str, array: np.ndarray, expected: Sequence[int | None]) -> None:
    """Raise an error about the file unless an array in it has the expected shape."""
    try:
        require_shape(name, array, expected)
    except ValueError as error:
        raise HuefieldError(str(error)) from None


def require_elements(atomic_numbers: np.ndarray) -> None:
    """Raise unless all atomic numbers are those of elements; to call before a conversion to eight bits."""
    if atomic_numbers.dtype.kind not in "iuf":
        raise HuefieldError(f"atomic numbers must be numbers, but are of type {atomic_numbers.dtype}")
    bad = ~((atomic_numbers >= 1) & (atomic_numbers <= MAX_ATOMIC_NUMBER) & (atomic_numbers % 1 == 0))
    if bad.any():
        raise HuefieldError(f"unknown element: atomic numbers {np.unique(atomic_numbers[bad]).tolist()}")
