"""Structures of the same atoms laid upon each other, so that distances between them mean something.

Energies do not change when a structure is shifted, turned or has like atoms exchanged; the distance |r − r'| that the
kernel of the noise sees ([J23] arXiv:2312.04174v1, Eq. e_cov) should not either. All structures are superposed on one
common mean (generalised Procrustes analysis) rather than pair by pair: their coordinates then lie in one Euclidean
space, in which exp(−γ|Δr|²/2) is positive semi-definite. For two structures it is the optimal superposition of both.

Crystals are shifted, and atoms taken at their nearest images, but crystals are not turned and like atoms of them not
exchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Integer
from scipy.optimize import linear_sum_assignment

from huefield.core.structure import Structure

MOST_ROUNDS = 20
CONVERGED = 1e-10


@dataclass(frozen=True, eq=False)
class Superposed:
    """n structures of N atoms in one frame."""

    positions: Float[np.ndarray, "n N 3"]
    order: Int[np.ndarray, "n N"]
    """Which atom of a structure stands in each place: those in one place are thought of as the same."""


def superpose(structures: Sequence[Structure], *, match: bool = True) -> Superposed:
    """Lay structures of the same atoms upon each other.

    Args:
        structures: molecules, or crystals with one cell.
        match: whether atoms of one element may be exchanged where that brings structures closer; else they are the
            same by their numbers. Those of crystals never are.
    """
    numbers = _common_numbers(structures, match)
    crystal = bool(structures[0].pbc.any())
    order = np.stack([_sorted_like(s.atomic_numbers, numbers) for s in structures])
    placed = np.stack([s.positions[o] for s, o in zip(structures, order, strict=True)]).astype(float)
    if crystal:
        return Superposed(_crystals(placed, structures), order)
    placed -= placed.mean(1, keepdims=True)
    target, before = placed[0], np.inf
    for _ in range(MOST_ROUNDS):
        for index in range(len(placed)):
            placed[index], exchanged = _laid_upon(placed[index], target, numbers, match)
            order[index] = order[index][exchanged]
        target = placed.mean(0)
        spread = float(((placed - target) ** 2).sum())
        if before - spread <= CONVERGED * before:
            break
        before = spread
    return Superposed(placed, order)


def rotation_onto(positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, "3 3"]:
    """The proper rotation R that brings ``positions @ R`` closest to the target, both about the origin (Kabsch)."""
    left, _, right = np.linalg.svd(positions.T @ target)
    left[:, -1] *= np.sign(np.linalg.det(left @ right))
    return left @ right


def _laid_upon(
    positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"], numbers: Int[np.ndarray, " N"], match: bool
) -> tuple[Float[np.ndarray, "N 3"], Int[np.ndarray, " N"]]:
    """Turned, and with like atoms exchanged: the best of what is found from several orientations to begin with."""
    starts = [rotation_onto(positions, target)]
    if not match:
        return positions @ starts[0], np.arange(len(positions))
    found = [_matched(positions @ start, target, numbers) for start in (*starts, *_axes_onto(positions, target))]
    return min(found, key=lambda each: float(((each[0] - target) ** 2).sum()))


def _matched(
    turned: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"], numbers: Int[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, "N 3"], Int[np.ndarray, " N"]]:
    """Like atoms exchanged and the structure turned again, as long as that helps."""
    order = np.arange(len(turned))
    for _ in range(MOST_ROUNDS):
        better = _exchanged(turned, target, numbers)
        if (better == np.arange(len(better))).all():
            break
        order, turned = order[better], turned[better]
        turned = turned @ rotation_onto(turned, target)
    return turned, order


def _axes_onto(positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"]) -> list[np.ndarray]:
    """The four proper rotations that lay principal axes upon each other, in whatever order the atoms are."""
    own, other = (np.linalg.eigh(each.T @ each)[1] for each in (positions, target))
    signs = (np.diag([x, y, x * y * np.linalg.det(own @ other)]) for x in (1, -1) for y in (1, -1))
    return [own @ sign @ other.T for sign in signs]


def _exchanged(
    positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"], numbers: Int[np.ndarray, " N"]
) -> Int[np.ndarray, " N"]:
    """The atom that suits each place best, among those of its element."""
    order = np.arange(len(positions))
    for number in np.unique(numbers):
        (places,) = np.nonzero(numbers == number)
        cost = ((target[places][:, None] - positions[places][None]) ** 2).sum(-1)
        rows, columns = linear_sum_assignment(cost)
        order[places[rows]] = places[columns]
    return order


def _crystals(placed: Float[np.ndarray, "n N 3"], structures: Sequence[Structure]) -> Float[np.ndarray, "n N 3"]:
    """Each at the images nearest to the first one, without a common shift.

    A shift is found before images are, as a mean on the circle of fractional coordinates, or images would depend on it.
    """
    cell, pbc = structures[0].cell, structures[0].pbc
    if any(not np.allclose(s.cell, cell) for s in structures):
        raise ValueError("energies of crystals are compared in one cell, but the cells of these structures differ")
    lattice = np.where(pbc[:, None], cell, 0.0)
    inverse = np.linalg.pinv(lattice)
    moved = placed - placed[0]
    shift = np.angle(np.exp(2j * np.pi * (moved @ inverse)).mean(1, keepdims=True)) / (2 * np.pi)
    moved -= shift @ lattice
    moved -= np.round(moved @ inverse) @ lattice
    return placed[0] + moved - moved.mean(1, keepdims=True)


def _common_numbers(structures: Sequence[Structure], match: bool) -> Int[np.ndarray, " N"]:
    """Atomic numbers of the places."""
    if not structures:
        raise ValueError("there are no structures to lay upon each other")
    first = structures[0]
    for index, other in enumerate(structures):
        same = (np.sort if match else np.asarray)(other.atomic_numbers)
        if not np.array_equal(same, (np.sort if match else np.asarray)(first.atomic_numbers)):
            raise ValueError(
                f"structures {0} and {index} are not made of the same atoms"
                f"{'' if match else ' in the same order'}: the difference of their energies has no common error"
            )
        if not np.array_equal(other.pbc, first.pbc):
            raise ValueError(f"structures 0 and {index} are not periodic in the same directions")
    return first.atomic_numbers.astype(np.int64)


def _sorted_like(numbers: Integer[np.ndarray, " N"], places: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """The atoms of each element in their order, in the places of that element."""
    order = np.empty(len(numbers), np.int64)
    order[np.argsort(places, kind="stable")] = np.argsort(numbers, kind="stable")
    return order
