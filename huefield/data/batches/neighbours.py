"""Pairs of atoms within a cutoff, and the neighbour matrix of a batch made from them.

Pairs come from `vesin`, each once; reversing them gives the other half, so that the reverse of every pair is known
without a search. Lattice vectors are rows: pair (i, j, S) has the vector r_j + S·cell − r_i, shorter than the cutoff.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial import cKDTree
from vesin import NeighborList

from huefield.core.neighbours import EMPTY_SLOT_ANGSTROM, Neighbours
from huefield.core.structure import Block, Structure, pack
from huefield.support.errors import HuefieldError, NoPredictionError

MAX_IMAGES = 100
"""Largest number of images of a cell on either side: shifts are kept in 8 bits, and more mean wrong units."""
LONGEST_ROW = 2000
"""Molecules are searched together, in a row of about this many cutoffs, in which float64 still resolves 1e-10 Å."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Ordered pairs within a cutoff, with integer lattice shifts. The second half is the first half reversed."""

    first: Int[np.ndarray, " P"]
    second: Int[np.ndarray, " P"]
    shifts: Int[np.ndarray, "P 3"]
    cutoff_angstrom: float

    def __len__(self) -> int:
        return len(self.first)


def neighbour_pairs(structure: Structure, cutoff_angstrom: float) -> Pairs:
    """All ordered pairs (i, j, S) of a structure closer than the cutoff, images of an atom itself included."""
    return block_pairs(pack([structure], np.zeros(1, int), "the structure"), cutoff_angstrom)


def block_pairs(block: Block, cutoff_angstrom: float) -> Pairs:
    """The pairs of all structures of a block, numbered by the rows of the block."""
    if not 0 < cutoff_angstrom < EMPTY_SLOT_ANGSTROM:
        limits = f"between 0 and {EMPTY_SLOT_ANGSTROM:g} Å"
        raise HuefieldError(f"cutoff_angstrom must be {limits}, but is {cutoff_angstrom}")
    finite = np.isfinite(block.positions).all(1)
    if not finite.all():
        raise NoPredictionError(
            f"{_place(block, block.owners[~finite][0])}: a position is NaN or infinite: remove the structure"
        )
    # More threads would change the order of pairs, and so the rounding of sums, from run to run.
    search = NeighborList(cutoff=cutoff_angstrom, full_list=False, n_threads=1)
    halves = [*_open_pairs(block, cutoff_angstrom, search), *_periodic_pairs(block, cutoff_angstrom, search)]
    ends = np.concatenate([np.zeros((0, 2), np.int64), *(ends for ends, _ in halves)])
    shifts = np.concatenate([np.zeros((0, 3), np.int32), *(shifts for _, shifts in halves)])
    first, second = np.r_[ends[:, 0], ends[:, 1]], np.r_[ends[:, 1], ends[:, 0]]
    return Pairs(first, second, np.concatenate([shifts, -shifts]), float(cutoff_angstrom))


def most_neighbours(block: Block, cutoff_angstrom: float) -> Int[np.ndarray, " n"]:
    """The largest number of neighbours that an atom has, for each structure of a block."""
    most = np.zeros(len(block), np.int64)
    counts = np.bincount(block_pairs(block, cutoff_angstrom).first, minlength=len(block.positions))
    np.maximum.at(most, block.owners, counts)
    return most


def neighbour_matrix(pairs: Pairs, num_atoms: int, num_slots: int) -> Neighbours:
    """Pairs in the slots of their first atom.

    Args:
        pairs: as :func:`block_pairs` gives them.
        num_atoms: rows of the matrix; atoms that are in no pair have empty slots only.
        num_slots: slots of each atom.
    """
    counts = np.bincount(pairs.first, minlength=num_atoms)
    if len(counts) > num_atoms:
        raise HuefieldError(f"a pair names atom {len(counts) - 1}, but the matrix has {num_atoms} atoms: give it more")
    if counts.max(initial=0) > num_slots:
        found = f"atom {counts.argmax()} has {counts.max()} neighbours"
        raise HuefieldError(
            f"{found}, but the matrix has {num_slots} slots: give it more slots or use a smaller cutoff"
        )
    if np.abs(pairs.shifts).max(initial=0) > np.iinfo(np.int8).max:
        farthest = int(np.abs(pairs.shifts).max())
        raise HuefieldError(
            f"a pair is {farthest} cells apart, but at most 127 are kept: wrap the atoms with near_origin"
        )
    order = np.argsort(pairs.first, kind="stable")
    slot = np.empty(len(pairs), np.int32)
    starts = np.cumsum(counts) - counts
    slot[order] = pairs.first[order] * num_slots + np.arange(len(pairs)) - starts[pairs.first[order]]
    reverse = np.arange(num_atoms * num_slots, dtype=np.int32)
    reverse[slot] = np.roll(slot, len(pairs) // 2)
    mask = np.zeros(num_atoms * num_slots, bool)
    mask[slot] = True
    shifts = np.zeros((num_atoms * num_slots, 3), np.int8)
    shifts[slot] = pairs.shifts
    matrix = (num_atoms, num_slots)
    index = reverse // max(num_slots, 1)
    parts = (index.reshape(matrix), mask.reshape(matrix), shifts.reshape(*matrix, 3), reverse.reshape(matrix))
    index, mask, shifts, reverse = jax.device_put(parts)
    return Neighbours(index, mask, shifts, reverse, pairs.cutoff_angstrom)


def near_origin(block: Block) -> Float[np.ndarray, "A 3"]:
    """Positions with each structure's mean at the origin, and atoms wrapped along periodic directions.

    Nothing physical changes, but float32 keeps more digits, and lattice shifts stay small.
    """
    owner, sizes = block.owners, np.maximum(block.sizes, 1)
    sums = [np.bincount(owner, weights=x, minlength=len(block)) for x in block.positions.T]
    moved = block.positions - (np.stack(sums, axis=1) / sizes[:, None])[owner]
    starts = block.starts
    for index in np.flatnonzero(block.pbc.any(1)):
        atoms, pbc = slice(starts[index], starts[index + 1]), block.pbc[index]
        cell = completed_cell(block.cells[index], pbc, _place(block, index))
        moved[atoms] -= np.round(np.linalg.solve(cell.T, moved[atoms].T).T) * pbc @ cell
    return moved


def completed_cell(cell: Float[np.ndarray, "3 3"], pbc: Bool[np.ndarray, " 3"], place: str) -> Float[np.ndarray, "3 3"]:
    """A cell with unit vectors normal to the periodic directions in place of the open ones, which are ignored.

    Args:
        cell: lattice vectors as rows.
        pbc: which directions are periodic.
        place: the source of the cell, for messages.
    """
    lattice = np.asarray(cell, float)[pbc]
    lengths = np.linalg.norm(lattice, axis=1)
    if not (np.isfinite(lengths).all() and (lengths > 0).all()):
        raise NoPredictionError(
            f"{place}: a periodic direction has the lattice vector {lattice.tolist()}: give the cell"
        )
    _, singular, normals = np.linalg.svd(lattice / lengths[:, None])
    if singular.min(initial=1.0) < 1e-6:
        raise NoPredictionError(
            f"{place}: the lattice vectors {lattice.tolist()} are linearly dependent: correct the cell"
        )
    full = np.empty((3, 3))
    full[pbc], full[~pbc] = lattice, normals[len(lattice) :]
    return full


_Half = tuple[Int[np.ndarray, "P 2"], Int[np.ndarray, "P 3"]]
"""Each pair once: the rows of its atoms, and its shift."""


def _place(block: Block, index: np.integer[Any]) -> str:
    return f"{block.source}, frame {block.frames[index]}"


def _open_pairs(block: Block, cutoff: float, search: NeighborList) -> Iterator[_Half]:
    """Pairs of structures without periodic directions: many are searched together, in a row with gaps."""
    members = ~block.pbc.any(1) & (block.sizes > 1)
    if not members.any():
        return
    sizes, atoms = block.sizes[members], np.flatnonzero(np.repeat(members, block.sizes))
    positions, firsts = block.positions[atoms].astype(float), np.cumsum(sizes) - sizes
    low = np.minimum.reduceat(positions, firsts)
    width = np.maximum.reduceat(positions[:, 0], firsts) - low[:, 0] + 1.1 * cutoff
    begin = np.cumsum(width) - width
    row = np.floor(begin / (LONGEST_ROW * cutoff))
    low[:, 0] -= begin - begin[np.searchsorted(row, row)]
    positions -= np.repeat(low, sizes, axis=0)
    for number in np.unique(row):
        inside = np.repeat(row == number, sizes)
        found = _close(positions[inside], cutoff, search)
        yield atoms[inside][found], np.zeros((len(found), 3), np.int32)


def _close(positions: Float[np.ndarray, "N 3"], cutoff: float, search: NeighborList) -> Int[np.ndarray, "P 2"]:
    """Each pair within the cutoff once, without any periodic direction."""
    if not _too_thin(np.ptp(positions, axis=0), cutoff):
        return search.compute(positions, np.zeros((3, 3)), False, "P")[0].astype(np.int64)
    found = cKDTree(positions).query_pairs(cutoff, output_type="ndarray").astype(np.int64)
    return found[np.linalg.norm(positions[found[:, 0]] - positions[found[:, 1]], axis=1) < cutoff]


def _too_thin(extent: Float[np.ndarray, " 3"], cutoff: float) -> bool:
    """Whether `vesin` 0.6 would divide by zero, which ends the process.

    It sorts atoms into bins as wide as the cutoff. Beyond 1e5 bins it takes fewer, by one factor for all directions,
    which may leave none in the thinnest. The limits here are half as many bins, and two in the thinnest direction.
    """
    bins = np.maximum(np.floor(extent / cutoff), 1)
    return bool(bins.prod() > 5e4 and bins.min() ** 3 * 1e5 < 8 * bins.prod())


def _periodic_pairs(block: Block, cutoff: float, search: NeighborList) -> Iterator[_Half]:
    """Pairs of structures with periodic directions, one by one."""
    starts = block.starts
    for index in np.flatnonzero(block.pbc.any(1)):
        pbc, place = block.pbc[index], _place(block, index)
        cell = completed_cell(block.cells[index], pbc, place)
        heights = 1.0 / np.linalg.norm(np.linalg.inv(cell), axis=0)
        if (cutoff > MAX_IMAGES * heights[pbc]).any():
            height = f"a cell only {heights[pbc].min():.3g} Å high"
            raise NoPredictionError(f"{place}: {height} for a cutoff of {cutoff} Å: are the lattice vectors in Å?")
        positions = block.positions[starts[index] : starts[index + 1]].astype(float)
        extent = np.where(pbc, heights, np.ptp(positions @ np.linalg.inv(cell), axis=0))
        if len(positions) and _too_thin(extent, cutoff):
            raise NoPredictionError(
                f"{place}: it is {extent.max():.3g} Å long, but {extent.min():.3g} Å thin: are atoms lost?"
            )
        ends, shifts = search.compute(positions, cell, pbc, "PS")
        yield ends.astype(np.int64) + starts[index], shifts
