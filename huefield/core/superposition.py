"""Superposition of structures of the same atoms, so that distances between them are meaningful.

Energies do not change when a structure is shifted, rotated, reflected or has like atoms exchanged; the distance
|r − r'| in the kernel of the noise ([J23] arXiv:2312.04174v1, Eq. e_cov) must not change either. All structures are
superposed on one common mean (generalised Procrustes analysis) rather than pair by pair: their coordinates then lie in
one Euclidean space, in which exp(−γ|Δr|²/2) is positive semi-definite. For two structures it is the optimal
superposition of both. Copies of one structure (:mod:`huefield.core.copies`) are found first and laid upon each other,
since a superposition on a mean of other structures may have several equally good solutions.

Crystals are shifted and their atoms taken at the nearest images; unless one is a copy of the other, they are not
rotated or reflected, and like atoms not exchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Integer
from scipy.optimize import linear_sum_assignment

from huefield.core.copies import Isometries, find_copies
from huefield.core.rigid import rotation_onto
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
    original: Int[np.ndarray, " n"]
    """Number of the first structure that each is a copy of; its own number if it is not a copy."""


def superpose(structures: Sequence[Structure], *, match: bool = True, reflect: bool = True) -> Superposed:
    """Superpose structures of the same atoms.

    Args:
        structures: molecules, or crystals with one cell.
        match: whether atoms of one element may be exchanged to bring structures closer; otherwise atoms correspond by
            their numbers. Atoms of crystals are exchanged only where this gives a copy.
        reflect: whether structures may be reflected, and crystals mapped by any operation of their lattice. A reaction
            path may lead from a structure to its mirror image, so that there the two are different.
    """
    numbers = _common_numbers(structures, match)
    lattice = _common_lattice(structures)
    order = np.stack([_sorted_like(s.atomic_numbers, numbers) for s in structures])
    placed = np.stack([s.positions[o] for s, o in zip(structures, order, strict=True)]).astype(float)
    if not lattice.any():
        placed -= placed.mean(1, keepdims=True)
    copies = find_copies(placed, Isometries(numbers, lattice, match, reflect))
    distinct, group = np.unique(copies.original, return_inverse=True)
    if lattice.any():
        laid = _crystals(placed[distinct], lattice)
    else:
        laid = _molecules(placed[distinct], numbers, match, reflect)
    places, turns = laid.order[group], laid.turns[group]
    order = np.take_along_axis(np.take_along_axis(order, copies.order, 1), places, 1)
    left = np.take_along_axis(copies.displacement, places[..., None], 1) @ turns
    return Superposed(laid.positions[group] + left, order, copies.original)


class Laid(NamedTuple):
    """Structures after superposition, in which places may have been exchanged."""

    positions: Float[np.ndarray, "n N 3"]
    order: Int[np.ndarray, "n N"]
    """The former place of the atom at each place."""
    turns: Float[np.ndarray, "n 3 3"]
    """Rotation of each structure."""


def _molecules(placed: Float[np.ndarray, "n N 3"], numbers: Int[np.ndarray, " N"], match: bool, reflect: bool) -> Laid:
    """Molecules superposed on the first one, then on their mean, again and again until it no longer changes."""
    given, laid = placed, [(placed[0], np.arange(len(numbers)))]
    laid += [_laid_upon(each, placed[0], numbers, match, reflect) for each in placed[1:]]
    placed, order = (np.stack(each) for each in zip(*laid, strict=True))
    before = np.inf
    for _ in range(MOST_ROUNDS):
        target = placed.mean(0)
        spread = float(((placed - target) ** 2).sum())
        if before - spread <= CONVERGED * before:
            break
        before = spread
        for index, each in enumerate(placed):
            placed[index], exchanged = _refined(each @ rotation_onto(each, target), target, numbers, match)
            order[index] = order[index][exchanged]
    turns = [_nearest_turn(own[o], new, reflect) for own, o, new in zip(given, order, placed, strict=True)]
    return Laid(placed, order, np.stack(turns))


def _laid_upon(
    positions: Float[np.ndarray, "N 3"],
    target: Float[np.ndarray, "N 3"],
    numbers: Int[np.ndarray, " N"],
    match: bool,
    reflect: bool,
) -> tuple[Float[np.ndarray, "N 3"], Int[np.ndarray, " N"]]:
    """Rotated, and with like atoms exchanged: the best result from several initial orientations."""
    starts = _turns(positions, target, reflect)
    if match:
        starts += _axes_onto(positions, target, reflect)
    found = [_refined(positions @ start, target, numbers, match) for start in starts]
    return min(found, key=lambda each: float(((each[0] - target) ** 2).sum()))


def _turns(
    positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"], reflect: bool
) -> list[Float[np.ndarray, "3 3"]]:
    """The best proper rotation, and the best one with a reflection."""
    return [rotation_onto(positions, target, handed=handed) for handed in ((1, -1) if reflect else (1,))]


def _nearest_turn(
    positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"], reflect: bool
) -> Float[np.ndarray, "3 3"]:
    """The best of all rotations."""
    return min(_turns(positions, target, reflect), key=lambda turn: float(((positions @ turn - target) ** 2).sum()))


def _refined(
    turned: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"], numbers: Int[np.ndarray, " N"], match: bool
) -> tuple[Float[np.ndarray, "N 3"], Int[np.ndarray, " N"]]:
    """Exchange like atoms and rotate again, until the distance no longer decreases."""
    order = np.arange(len(turned))
    for _ in range(MOST_ROUNDS if match else 0):
        better = _exchanged(turned, target, numbers)
        if (better == np.arange(len(better))).all():
            break
        order, turned = order[better], turned[better]
        turned = turned @ rotation_onto(turned, target)
    return turned, order


def _axes_onto(
    positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"], reflect: bool
) -> list[Float[np.ndarray, "3 3"]]:
    """The four proper rotations that superpose principal axes, and four with a reflection, for atoms in any order."""
    own, other = (np.linalg.eigh(each.T @ each)[1] for each in (positions, target))
    handed = np.linalg.det(own @ other) * np.array([1, -1] if reflect else [1])
    return [own @ np.diag([x, y, x * y * z]) @ other.T for z in handed for x in (1, -1) for y in (1, -1)]


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


def _crystals(placed: Float[np.ndarray, "n N 3"], lattice: Float[np.ndarray, "3 3"]) -> Laid:
    """Each structure at the images nearest to the first one, without a common shift.

    A shift is found before images are, as a mean on the circle of fractional coordinates, or images would depend on it.
    """
    inverse = np.linalg.pinv(lattice)
    moved = placed - placed[0]
    shift = np.angle(np.exp(2j * np.pi * (moved @ inverse)).mean(1, keepdims=True)) / (2 * np.pi)
    moved -= shift @ lattice
    moved -= np.round(moved @ inverse) @ lattice
    positions = placed[0] + moved - moved.mean(1, keepdims=True)
    count, atoms = positions.shape[:2]
    return Laid(positions, np.tile(np.arange(atoms), (count, 1)), np.tile(np.eye(3), (count, 1, 1)))


def _common_lattice(structures: Sequence[Structure]) -> Float[np.ndarray, "3 3"]:
    """Lattice vectors of the periodic directions, which all structures must share, and zeros for the others."""
    cell, pbc = structures[0].cell, structures[0].pbc
    if pbc.any() and any(not np.allclose(s.cell, cell) for s in structures):
        raise HuefieldError("energies of crystals are compared in one cell, but the cells of these structures differ")
    return np.where(pbc[:, None], cell, 0.0)


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
