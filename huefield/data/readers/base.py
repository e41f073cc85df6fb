"""The results of readers: blocks of structures, faults, and remarks; and the checks of structures."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import h5py
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial import cKDTree

from huefield.core.structure import Block
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
    kind: Literal["electrons", "labels"]
    """``electrons``: a charge or unpaired electrons; ``labels``: labels may be there under other names."""
    text: str
    frame: int | None = None
    """The first frame that it is about; None for the whole file."""

    def __str__(self) -> str:
        return f"{self.source}{'' if self.frame is None else f', frame {self.frame}'}: {self.text}"


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
        except ValueError as error:
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
        require_shape("atomic numbers", self.atomic_numbers, (None,))
        require_elements(self.atomic_numbers)
        n, atoms = len(self.rows), len(self.atomic_numbers)
        require_shape("positions", self.positions, (n, atoms, 3))
        require_shape("energy", self.energy, (n,))
        if self.forces is not None:
            require_shape("forces", self.forces, (n, atoms, 3))


def require_elements(atomic_numbers: np.ndarray) -> None:
    """Raise unless all atomic numbers are those of elements; to call before a conversion to eight bits."""
    if atomic_numbers.dtype.kind not in "iuf":
        raise HuefieldError(f"atomic numbers must be numbers, but are of type {atomic_numbers.dtype}")
    bad = ~((atomic_numbers >= 1) & (atomic_numbers <= MAX_ATOMIC_NUMBER) & (atomic_numbers % 1 == 0))
    if bad.any():
        raise HuefieldError(f"unknown element: atomic numbers {np.unique(atomic_numbers[bad]).tolist()}")


MAX_ATOMIC_NUMBER = 118
CLOSEST_ANGSTROM = 0.1
FLAT = 1e-12
"""Squared volume of unit lattice vectors above which they are linearly independent."""
LARGE = 64
"""Number of atoms above which a tree finds close pairs faster than a loop over all pairs."""


def checked(frames: Iterable[Block | Fault]) -> Frames:
    """Pass good structures on, and turn bad ones into faults.

    A structure is bad if it has no atoms, unknown elements, NaN or infinite positions, cells or labels, a periodic
    direction without a lattice vector, linearly dependent lattice vectors, or two atoms closer than 0.1 Å within the
    given cell image. Checks act on whole blocks, since data sets have millions of structures.
    """
    for item in frames:
        if isinstance(item, Fault):
            yield item
            continue
        reasons = fault_reasons(item)
        yield from (Fault(item.source, int(item.frames[i]), reasons[i]) for i in sorted(reasons))
        if len(reasons) < len(item):
            keep = np.ones(len(item), bool)
            keep[list(reasons)] = False
            yield item if not reasons else item.select(keep)


def fault_reasons(block: Block) -> dict[int, str]:
    """The first reason for which a structure of a block is bad, by its index."""
    reasons: dict[int, str] = {}

    def note(bad: np.ndarray, reason: Callable[[int], str], *, of_atoms: bool = False) -> None:
        if not bad.any():
            return
        rows = np.nonzero(bad)[0]
        for index in np.unique(np.searchsorted(block.starts, rows, side="right") - 1 if of_atoms else rows).tolist():
            reasons.setdefault(index, reason(index))

    numbers = block.atomic_numbers
    note(block.sizes == 0, lambda i: "it has no atoms")
    note(
        (numbers == 0) | (numbers > MAX_ATOMIC_NUMBER),
        lambda i: f"unknown element: atomic numbers {sorted(set(block[i].atomic_numbers.tolist()))}",
        of_atoms=True,
    )
    note(~np.isfinite(block.positions), lambda i: "a position is NaN or infinite", of_atoms=True)
    note(~np.isfinite(block.cells), lambda i: "the cell is NaN or infinite")
    note(~np.isfinite(block.energy), lambda i: f"the energy is {block.energy[i]}")
    note(~np.isfinite(block.forces), lambda i: "a force is NaN or infinite", of_atoms=True)
    note(~np.isfinite(block.stress), lambda i: "the stress is NaN or infinite")
    note(block.pbc & ~block.cells.any(2), lambda i: "a periodic direction has no lattice vector")
    note(_degenerate(block), lambda i: "the lattice vectors of the periodic directions are linearly dependent")
    note(_crowded(block), lambda i: f"two atoms are closer than {CLOSEST_ANGSTROM} Å")
    return reasons


def _degenerate(block: Block) -> Bool[np.ndarray, " n"]:
    """Mask of structures whose periodic directions span no volume (or area)."""
    degenerate = np.zeros(len(block), bool)
    periodic = np.flatnonzero(block.pbc.any(1))
    if not periodic.size:
        return degenerate
    axes = block.pbc[periodic, :, None]
    with np.errstate(all="ignore"):
        vectors = np.where(axes, block.cells[periodic], np.eye(3))
        unit = vectors / np.linalg.norm(vectors, axis=2, keepdims=True)
        gram = np.where(axes & axes.swapaxes(1, 2), unit @ unit.swapaxes(1, 2), np.eye(3))
        degenerate[periodic] = ~(np.linalg.det(gram) > FLAT)
    return degenerate


def _crowded(block: Block) -> Bool[np.ndarray, " n"]:
    """Mask of structures with two atoms in one place."""
    crowded, starts = np.zeros(len(block), bool), block.starts[:-1]
    for size in np.unique(block.sizes[block.sizes > 1]):
        members = np.flatnonzero(block.sizes == size)
        positions = block.positions[starts[members, None] + np.arange(size)]
        if size > LARGE:
            crowded[members] = [np.isfinite(p).all() and _crowded_tree(p) for p in positions]
        else:
            crowded[members] = _crowded_rows(positions)
    return crowded


def _crowded_tree(positions: Float[np.ndarray, "N 3"]) -> bool:
    """Whether two of many atoms are in one place. Equal positions are found first: they make a tree slow."""
    if len(np.unique(positions, axis=0)) < len(positions):
        return True
    nearest, _ = cKDTree(positions).query(positions, k=2, distance_upper_bound=CLOSEST_ANGSTROM)
    return bool(np.isfinite(nearest[:, 1]).any())


def _crowded_rows(positions: Float[np.ndarray, "n N 3"]) -> Bool[np.ndarray, " n"]:
    """Mask of small structures with two atoms in one place. Comparing x first leaves few pairs."""
    crowded = np.zeros(len(positions), bool)
    axes = np.ascontiguousarray(positions.transpose(2, 1, 0))
    with np.errstate(invalid="ignore", over="ignore"):
        for shift in range(1, positions.shape[1]):
            first, row = np.nonzero(np.abs(axes[0, shift:] - axes[0, :-shift]) < CLOSEST_ANGSTROM)
            distance2 = ((axes[:, first + shift, row] - axes[:, first, row]) ** 2).sum(0)
            crowded[row[distance2 < CLOSEST_ANGSTROM**2]] = True
    return crowded
