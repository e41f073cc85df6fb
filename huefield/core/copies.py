"""Copies: structures that differ by a shift, a rotation, a reflection or an exchange of like atoms only.

Copies have the same energy. An isometry that brings one structure onto another is found from few atoms: it maps two
atoms of the first onto two atoms of the same elements of the second, at the same distances from the centre and from
each other. In a crystal it maps one atom onto one with the same distances to all others, after an operation that maps
the lattice onto itself. Each such guess is checked with all atoms. This also finds copies of symmetric molecules, whose
principal axes are not defined.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Int

from huefield.core.rigid import rotation_onto

SAME_ANGSTROM = 2e-3
"""Largest distance of an atom of a copy from its place. Coordinates with three decimals, the fewest in use, put atoms
up to 0.9e-3 Å from their places, and so two copies up to 1.7e-3 Å apart. Vibrations are 50 times larger."""
NEAR_ANGSTROM = 0.05
"""Largest distance before the superposition of two atoms is refined with that of all others."""
SAME_LENGTH = 1e-4
"""Relative tolerance of lattice vectors."""


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies among n structures of N atoms."""

    original: Int[np.ndarray, " n"]
    """Number of the first structure that each is a copy of; its own number if it is not a copy."""
    order: Int[np.ndarray, "n N"]
    """The atom of each structure at the place of each atom of its original."""
    displacement: Float[np.ndarray, "n N 3"]
    """Distances that remain after superposition on the original, zero but for rounding and the tolerance."""


@dataclass(frozen=True, eq=False)
class Isometries:
    """Motions that may turn one structure into another of the same atoms."""

    numbers: Int[np.ndarray, " N"]
    lattice: Float[np.ndarray, "3 3"]
    """Lattice vectors as rows; zeros for directions that are not periodic."""
    match: bool
    """Whether like atoms may be exchanged."""
    reflect: bool
    """Whether to try reflections, and all operations of a lattice; otherwise crystals are only shifted."""

    @property
    def periodic(self) -> bool:
        """Whether there is a lattice."""
        return bool(self.lattice.any())

    def wrapped(self, vectors: Float[np.ndarray, "*n 3"]) -> Float[np.ndarray, "*n 3"]:
        """Vectors without lattice vectors."""
        return vectors - np.round(vectors @ self._inverse) @ self.lattice

    def signature(self, positions: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, " k"]:
        """Sorted distances that differ by at most 2 × ``SAME_ANGSTROM`` between copies."""
        if self.periodic:
            return np.sort(self._surroundings(positions), axis=0).ravel()
        distances = np.linalg.norm(positions, axis=1)
        return distances[np.lexsort((distances, self.numbers))]

    def superposed(
        self, positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"]
    ) -> tuple[Int[np.ndarray, " N"], Float[np.ndarray, "N 3"]] | None:
        """Order of the atoms and displacements of a copy; None for a structure that is not a copy."""
        for moved in self._guesses(positions, target):
            order = self._order(moved, target)
            if order is None:
                continue
            if self.periodic:
                left = self.wrapped(moved[order] - target)
                left = left - left.mean(0)
            else:
                left = moved[order] @ rotation_onto(moved[order], target) - target
            if np.linalg.norm(left, axis=1).max() <= SAME_ANGSTROM:
                return order, left
        return None

    def _guesses(
        self, positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"]
    ) -> Iterator[Float[np.ndarray, "N 3"]]:
        """Structures moved by each isometry that fits the anchors: few atoms, with few others like them."""
        return (self._crystals if self.periodic else self._molecules)(positions, target)

    def _crystals(
        self, positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"]
    ) -> Iterator[Float[np.ndarray, "N 3"]]:
        anchor, choices = self._anchor(positions, target)
        for operation in lattice_operations(self.lattice) if self.reflect else [np.eye(3)]:
            turned = positions @ operation
            for atom in choices:
                yield turned + (target[anchor] - turned[atom])

    def _molecules(
        self, positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"]
    ) -> Iterator[Float[np.ndarray, "N 3"]]:
        anchors, choices = self._anchors(positions, target)
        wanted = np.linalg.norm(target[anchors[0]] - target[anchors[1]])
        for atoms in product(*choices):
            if abs(np.linalg.norm(positions[atoms[0]] - positions[atoms[1]]) - wanted) > 2 * SAME_ANGSTROM:
                continue
            for handed in (1, -1) if self.reflect else (1,):
                yield positions @ rotation_onto(positions[list(atoms)], target[anchors], handed=handed)

    def _anchor(
        self, positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"]
    ) -> tuple[int, Int[np.ndarray, " k"]]:
        """The atom of a crystal that the fewest atoms may correspond to, and these."""
        rare, own, others = self._rarest(), self._surroundings(target), self._surroundings(positions)
        fitting = np.stack([np.abs(others - each).max(1) <= 2 * SAME_ANGSTROM for each in own])
        fitting &= self._exchangeable()[np.ix_(rare, rare)]
        anchor = int(fitting.sum(1).argmin())
        return int(rare[anchor]), rare[fitting[anchor]]

    def _surroundings(self, positions: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, "k N"]:
        """Distances from each atom of the rarest element of a crystal to all atoms, sorted for each element.

        Distances over half the width of the cell are all set to it: only shorter ones are those to the nearest image.
        """
        apart = np.linalg.norm(self.wrapped(positions - positions[self._rarest()][:, None]), axis=-1)
        directions = np.linalg.norm(self._inverse, axis=0)
        apart = np.minimum(apart, 0.5 / directions.max())
        return np.concatenate([np.sort(apart[:, self.numbers == each], axis=1) for each in np.unique(self.numbers)], 1)

    def _anchors(
        self, positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"]
    ) -> tuple[list[int], list[Int[np.ndarray, " k"]]]:
        """Two atoms far from the centre and in different directions, and the atoms that each may correspond to."""
        lengths, others = np.linalg.norm(target, axis=1), np.linalg.norm(positions, axis=1)
        fitting = np.abs(lengths[:, None] - others) <= SAME_ANGSTROM
        fitting &= self._exchangeable()
        anchors: list[int] = []
        for _ in range(2):
            axis = target[anchors] / np.maximum(lengths[anchors, None], 1e-300)
            arms = np.linalg.norm(target - target @ axis.T @ axis, axis=1)
            anchors.append(int(np.where(arms >= 0.5 * arms.max(), fitting.sum(1), len(target) + 1).argmin()))
        return anchors, [np.flatnonzero(fitting[anchor]) for anchor in anchors]

    def _order(self, moved: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"]) -> Int[np.ndarray, " N"] | None:
        """The atom nearest to each place; None unless all are near and of the right element."""
        order = np.arange(len(target))
        if self.match:
            for number in np.unique(self.numbers):
                (places,) = np.nonzero(self.numbers == number)
                apart = self.wrapped(target[places][:, None] - moved[places])
                order[places] = places[(apart**2).sum(-1).argmin(1)]
        near = np.linalg.norm(self.wrapped(moved[order] - target), axis=1).max() <= NEAR_ANGSTROM
        return order if near and len(np.unique(order)) == len(order) else None

    @cached_property
    def _inverse(self) -> Float[np.ndarray, "3 3"]:
        """Maps vectors to multiples of lattice vectors."""
        return np.linalg.pinv(self.lattice)

    def _rarest(self) -> Int[np.ndarray, " k"]:
        """Places of the element with the fewest atoms."""
        elements, counts = np.unique(self.numbers, return_counts=True)
        return np.flatnonzero(self.numbers == elements[counts.argmin()])

    def _exchangeable(self) -> Bool[np.ndarray, "N N"]:
        """Which atoms may come to each place."""
        return self.numbers[:, None] == self.numbers if self.match else np.eye(len(self.numbers), dtype=bool)


def find_copies(positions: Float[np.ndarray, "n N 3"], isometries: Isometries) -> Copies:
    """The copies among structures; molecules have their mean at the origin.

    Each structure is compared with those before it that are not copies themselves. Copies thus form groups, although
    "equal up to a tolerance" alone is not transitive.
    """
    count, atoms = positions.shape[:2]
    found = Copies(np.arange(count), np.tile(np.arange(atoms), (count, 1)), np.zeros_like(positions))
    signatures = np.stack([isometries.signature(each) for each in positions]) if count > 1 else positions
    for index in range(1, count):
        earlier = np.flatnonzero(found.original[:index] == np.arange(index))
        close = np.abs(signatures[earlier] - signatures[index]).max(1, initial=0.0) <= 2 * SAME_ANGSTROM
        for first in earlier[close]:
            laid = isometries.superposed(positions[index], positions[first])
            if laid is not None:
                found.original[index] = first
                found.order[index], found.displacement[index] = laid
                break
    return found


def lattice_operations(lattice: Float[np.ndarray, "3 3"]) -> list[Float[np.ndarray, "3 3"]]:
    """Rotations and reflections that map a lattice onto itself, the identity first.

    Lattice vectors become sums and differences of lattice vectors: all operations of a reduced cell, maybe not of a
    skewed one. Directions that are not periodic are inverted or not.

    Args:
        lattice: vectors as rows; zeros for directions that are not periodic.
    """
    vectors = lattice[lattice.any(1)]
    free = np.linalg.svd(vectors)[2][len(vectors) :]
    metric = vectors @ vectors.T
    scale = SAME_LENGTH * metric.max()
    sums = np.array(list(product((0, 1, -1), repeat=len(vectors)))) @ vectors
    lengths = (sums**2).sum(1)
    images = product(*(sums[np.abs(lengths - own) <= scale] for own in np.diag(metric)))
    kept = [np.stack(each) for each in images]
    kept = [each for each in kept if np.abs(each @ each.T - metric).max() <= scale]
    inverse = np.linalg.inv(np.vstack([vectors, free]))
    found = [
        inverse @ np.vstack([each, np.diag(signs) @ free]) if len(free) else inverse @ each
        for each in kept
        for signs in product((1.0, -1.0), repeat=len(free))
    ]
    return sorted(found, key=lambda each: float(np.abs(each - np.eye(3)).max()))
