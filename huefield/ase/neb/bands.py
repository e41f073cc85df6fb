"""Bands of images for optimisers."""

from collections.abc import Iterator, Sequence

import numpy as np
from ase import Atoms
from ase.mep import NEB
from ase.utils.abc import Optimizable
from jaxtyping import Float


class BestBand:
    """The band with the smallest force so far; later ones may be far worse."""

    def __init__(self, band: Sequence[Atoms]) -> None:
        self._band, self._fmax, self._positions = band, np.inf, [image.positions.copy() for image in band]

    def look(self, fmax: float) -> None:
        """Remember the current band if its force is smaller."""
        if fmax < self._fmax:
            self._fmax, self._positions = fmax, [image.positions.copy() for image in self._band]

    def images(self) -> list[Atoms]:
        """Copies of the images of the best band."""
        copies = [image.copy() for image in self._band]
        for image, positions in zip(copies, self._positions, strict=True):
            image.positions[:] = positions
        return copies

    def restore(self) -> float:
        """Move the images back to the best band, and return its largest force."""
        for image, positions in zip(self._band, self._positions, strict=True):
            image.positions[:] = positions
        return self._fmax


class RememberedBand(Optimizable):
    """A band for an optimiser, which asks for the forces several times per step.

    Each time, ASE superposes the images of a molecule again. This moves them by rounding errors, so that all of them
    would be computed again.
    """

    def __init__(self, band: NEB) -> None:
        self._band = band.__ase_optimizable__()
        self._known: tuple[np.ndarray, np.ndarray] | None = None

    def get_gradient(self) -> Float[np.ndarray, " n"]:
        """Gradient, computed again only if an image has moved."""
        if self._known is None or not np.array_equal(self._known[0], self.get_x()):
            gradient = self._band.get_gradient()
            self._known = self.get_x(), gradient
        return self._known[1]

    def get_value(self) -> float:
        """Highest energy of the images."""
        return float(self._band.get_value())

    def get_x(self) -> Float[np.ndarray, " n"]:
        """Positions of all images except the ends."""
        return np.asarray(self._band.get_x(), float)

    def set_x(self, x: Float[np.ndarray, " n"]) -> None:
        """Set the positions of all images except the ends."""
        self._band.set_x(x)

    def ndofs(self) -> int:
        """Number of these coordinates."""
        return int(self._band.ndofs())

    def iterimages(self) -> Iterator[Atoms]:
        """All images."""
        yield from self._band.iterimages()
