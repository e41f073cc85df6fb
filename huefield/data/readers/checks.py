"""Checks of structures: good ones pass, bad ones become faults with a reason."""

from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Bool, Float
from scipy.spatial import cKDTree

from huefield.core.structure import DEPENDENT, MAX_ATOMIC_NUMBER, Block
from huefield.data.readers.base import Fault, Frames

CLOSEST_ANGSTROM = 0.1
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
        degenerate[periodic] = ~(np.linalg.det(gram) > DEPENDENT**2)  # squared volume of unit vectors
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
