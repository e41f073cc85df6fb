"""The graph of a structure that moves a little from call to call, as in dynamics, relaxations and reaction paths.

Neighbours are searched within the cutoff and a skin, and kept until a pair that was left out may have come closer than
the cutoff. Pairs beyond the cutoff do no harm: a potential that ends smoothly at its cutoff gives them zero.

The search is needed again when 2 max_i |r_i − F r⁰_i| exceeds σ_min(F) (cutoff + skin) − cutoff. Here r⁰ are the
positions of the last search and F is the linear map of its cell to the present one, whose smallest singular value
bounds how far it brings two atoms together; without a change of the cell this is the usual criterion of half the skin.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from huefield.core import Graph, Partition
from huefield.core.structure import Structure, pack
from huefield.data.batches.batching import slots_up
from huefield.data.batches.neighbours import Pairs, block_pairs, completed_cell, near_origin, neighbour_matrix
from huefield.support.errors import HuefieldError

SPARE_SLOTS = 1.15
"""Slots relative to the largest number of neighbours at the first search, as numbers fluctuate in liquids."""
MORE_SPARE_SLOTS = 1.3
"""The same if these were too few, so that another compilation is rare."""


class Moved(NamedTuple):
    """A graph with the present positions of its atoms."""

    graph: Graph
    """Graph of the last search, with its positions and cells."""
    positions: Float[np.ndarray, "N 3"]
    cells: Float[np.ndarray, "1 3 3"] | None


@dataclass(frozen=True, eq=False)
class _Search:
    """Result of a neighbour search."""

    structure: Structure
    graph: Graph
    shift: Float[np.ndarray, " 3"]
    """Shift from the mean of the positions to the origin, in a crystal."""
    wraps: Int[np.ndarray, "N 3"]
    """Lattice vectors that each atom was moved by, to be near the origin."""
    has_all_pairs: bool
    """Whether all atoms are neighbours of each other, so that no further search is needed."""

    def positions_in_graph(self, structure: Structure) -> Float[np.ndarray, "N 3"]:
        """Positions in the graph: near the origin, where single precision is best."""
        if not structure.pbc.any():
            return structure.positions - structure.positions.mean(0)
        return structure.positions + self.shift + self.wraps @ structure.cell


class MovingGraph:
    """Graphs of one structure after the other, with as few searches and as few shapes as possible."""

    def __init__(self, cutoff_angstrom: float, skin_angstrom: float) -> None:
        if not (np.isfinite(skin_angstrom) and skin_angstrom >= 0):
            raise HuefieldError(f"skin_angstrom must be zero or positive, but is {skin_angstrom}")
        self.cutoff_angstrom = cutoff_angstrom
        self.skin_angstrom = skin_angstrom
        self.searches = 0
        """Number of neighbour searches so far."""
        self._last: _Search | None = None
        self._slots: dict[tuple[int, bool], int] = {}

    def sibling(self) -> "MovingGraph":
        """Another moving graph with the same shapes, for a structure of its own."""
        other = MovingGraph(self.cutoff_angstrom, self.skin_angstrom)
        other._slots = self._slots
        return other

    def at(self, structure: Structure) -> Moved:
        """The graph of a structure, which may differ from the one before."""
        if self._last is None or not self._holds(self._last, structure):
            self._last = self._searched(structure)
            self.searches += 1
        cells = structure.cell[None] if structure.pbc.any() else None
        return Moved(self._last.graph, self._last.positions_in_graph(structure), cells)

    def _holds(self, last: _Search, structure: Structure) -> bool:
        """Whether all neighbours of the structure are among those that were found."""
        known = last.structure
        if not (
            np.array_equal(known.atomic_numbers, structure.atomic_numbers) and np.array_equal(known.pbc, structure.pbc)
        ):
            return False
        if last.has_all_pairs:
            return bool(np.isfinite(structure.positions).all())
        expected, closest = known.positions, self.cutoff_angstrom + self.skin_angstrom
        if known.pbc.any() and not np.array_equal(known.cell, structure.cell):
            old, new = (completed_cell(s.cell, s.pbc, "the structure") for s in (known, structure))
            change = np.linalg.solve(old, new)
            expected, closest = expected @ change, closest * np.linalg.svd(change, compute_uv=False).min()
        moved = structure.positions - expected
        farthest = np.sqrt(np.einsum("nx,nx->n", moved, moved).max(initial=0.0))
        return bool(2 * farthest <= closest - self.cutoff_angstrom)  # False for NaN, which the search then names

    def _searched(self, structure: Structure) -> _Search:
        block = pack([structure], np.zeros(1, int), "the structure")
        positions = near_origin(block)
        moved = Structure(structure.atomic_numbers, positions, structure.cell, structure.pbc)
        cutoff = self.cutoff_angstrom + self.skin_angstrom
        pairs = block_pairs(pack([moved], np.zeros(1, int), "the structure"), cutoff)
        count, periodic = len(structure), bool(structure.pbc.any())
        most = int(np.bincount(pairs.first, minlength=1).max())
        slots = self._slots_for(count, periodic, most)
        has_all_pairs = not periodic and slots == count - 1
        if has_all_pairs:  # they fit, and no further search is needed
            pairs = _all_pairs(count, cutoff)
        neighbours = neighbour_matrix(pairs, count, slots)
        neighbours = replace(neighbours, cutoff_angstrom=self.cutoff_angstrom)
        dtype = jnp.result_type(float)
        arrays = (
            positions.astype(dtype),
            structure.atomic_numbers.astype(np.int32),
            np.zeros(count, np.int32),
            structure.cell[None].astype(dtype) if periodic else None,
        )
        placed, numbers, index, cells = jax.device_put(arrays)
        graph = Graph(placed, numbers, Partition(index, 1), neighbours, cells)
        shift = -structure.positions.mean(0) if count else np.zeros(3)
        wraps = np.zeros((count, 3), np.int64)
        if periodic:
            cell = completed_cell(structure.cell, structure.pbc, "the structure")
            wraps = np.rint(np.linalg.solve(cell.T, (positions - structure.positions - shift).T).T).astype(np.int64)
        return _Search(_copied(structure), graph, shift, wraps, has_all_pairs)

    def _slots_for(self, count: int, periodic: bool, most: int) -> int:
        """As many slots as before if they suffice, since each shape is compiled."""
        kind = (count, periodic)
        if most > self._slots.get(kind, -1):
            spare = MORE_SPARE_SLOTS if kind in self._slots else SPARE_SLOTS
            wanted = slots_up(int(np.ceil(spare * most)))
            self._slots[kind] = wanted if periodic else min(wanted, max(count - 1, 1))
        return self._slots[kind]


def _all_pairs(count: int, cutoff_angstrom: float) -> Pairs:
    first, second = np.triu_indices(count, 1)
    both = np.r_[first, second], np.r_[second, first]
    return Pairs(*both, np.zeros((len(both[0]), 3), np.int32), cutoff_angstrom)


def _copied(structure: Structure) -> Structure:
    """A copy, since engines change arrays in place."""
    return Structure(
        structure.atomic_numbers.copy(), structure.positions.copy(), structure.cell.copy(), structure.pbc.copy()
    )
