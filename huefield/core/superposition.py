"""Superposition of structures of the same atoms, so that distances between them are meaningful.

Energies do not change when a structure is shifted, turned or has like atoms exchanged; the distance |r − r'| in
the kernel of the noise ([J23] arXiv:2312.04174v1, Eq. e_cov) must not change either. All structures are superposed on
one common mean (generalised Procrustes analysis) rather than pair by pair: their coordinates then lie in one Euclidean
space, in which exp(−γ|Δr|²/2) is positive semi-definite. For two structures it is the optimal superposition of both.

Crystals are shifted and their atoms taken at the nearest images; they are not rotated, and like atoms not exchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Integer
from scipy.optimize import linear_sum_assignment

from huefield.core.structure import Structure
from huefield.support.errors import HuefieldError

MOST_ROUNDS = 20
CONVERGED = 1e-10


@dataclass(frozen=True, eq=False)
class Superposed:
    """n superposed structures of N atoms."""

    positions: Float[np.ndarray, "n N 3"]
    order: Int[np.ndarray, "n N"]
    """The atom of each structure at each place; atoms at one place correspond to each other."""


def superpose(structures: Sequence[Structure], *, match: bool = True) -> Superposed:
    """Superpose structures of the same atoms.

    Args:
        structures: molecules, or crystals with one cell.
        match: whether atoms of one element may be exchanged to bring structures closer; otherwise atoms correspond by
            their numbers. Atoms of crystals are never exchanged.
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
    """Rotated, and with like atoms exchanged: the best result from several initial orientations."""
    starts = [rotation_onto(positions, target)]
    if not match:
        return positions @ starts[0], np.arange(len(positions))
    found = [_matched(positions @ start, target, numbers) for start in (*starts, *_axes_onto(positions, target))]
    return min(found, key=lambda each: float(((each[0] - target) ** 2).sum()))


def _matched(
    turned: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"], numbers: Int[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, "N 3"], Int[np.ndarray, " N"]]:
    """Exchange like atoms and rotate again, until the distance no longer decreases."""
    order = np.arange(len(turned))
    for _ in range(MOST_ROUNDS):
        better = _exchanged(turned, target, numbers)
        if (better == np.arange(len(better))).all():
            break
        order, turned = order[better], turned[better]
        turned = turned @ rotation_onto(turned, target)
    return turned, order


def _axes_onto(positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"]) -> list[np.ndarray]:
    """The four proper rotations that superpose principal axes, whatever the order of the atoms."""
    own, other = (np.linalg.eigh(each.T @ each)[1] for each in (positions, target))
    signs = (np.diag([x, y, x * y * np.linalg.det(own @ other)]) for x in (1, -1) for y in (1, -1))
    return [own @ sign @ other.T for sign in signs]


def _exchanged(
    positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"], numbers: Int[np.ndarray, " N"]
) -> Int[np.ndarray, " N"]:
    """The best atom of its element for each place."""
    order = np.arange(len(positions))
    for number in np.unique(numbers):
        (places,) = np.nonzero(numbers == number)
        cost = ((target[places][:, None] - positions[places][None]) ** 2).sum(-1)
        rows, columns = linear_sum_assignment(cost)
        order[places[rows]] = places[columns]
    return order


def _crystals(placed: Float[np.ndarray, "n N 3"], structures: Sequence[Structure]) -> Float[np.ndarray, "n N 3"]:
    """Each structure at the images nearest to the first one, without a common shift.

    A shift is found before images are, as a mean on the circle of fractional coordinates, or images would depend on it.
    """
    cell, pbc = structures[0].cell, structures[0].pbc
    if any(not np.allclose(s.cell, cell) for s in structures):
        raise HuefieldError("energies of crystals are compared in one cell, but the cells of these structures differ")
    lattice = np.where(pbc[:, None], cell, 0.0)
    inverse = np.linalg.pinv(lattice)
    moved = placed - placed[0]
    shift = np.angle(np.exp(2j * np.pi * (moved @ inverse)).mean(1, keepdims=True)) / (2 * np.pi)
    moved -= shift @ lattice
    moved -= np.round(moved @ inverse) @ lattice
    return placed[0] + moved - moved.mean(1, keepdims=True)


def _common_numbers(structures: Sequence[Structure], match: bool) -> Int[np.ndarray, " N"]:
    """Atomic numbers of the places, which all structures must share."""
    if not structures:
        raise HuefieldError("there are no structures to compare: give at least one")
    first = structures[0]
    for index, other in enumerate(structures):
        same = (np.sort if match else np.asarray)(other.atomic_numbers)
        if not np.array_equal(same, (np.sort if match else np.asarray)(first.atomic_numbers)):
            raise HuefieldError(
                f"structures {0} and {index} are not made of the same atoms"
                f"{'' if match else ' in the same order'}: the difference of their energies has no common error"
            )
        if not np.array_equal(other.pbc, first.pbc):
            raise HuefieldError(f"structures 0 and {index} are not periodic in the same directions")
    return first.atomic_numbers.astype(np.int64)


def _sorted_like(numbers: Integer[np.ndarray, " N"], places: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """The atoms of each element in their order, in the places of that element."""
    order = np.empty(len(numbers), np.int64)
    order[np.argsort(places, kind="stable")] = np.argsort(numbers, kind="stable")
    return order
