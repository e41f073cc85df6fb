"""Bands of images as optimisers see them."""

from collections.abc import Iterator, Sequence

import numpy as np
from ase import Atoms
from ase.mep import NEB
from ase.utils.abc import Optimizable
from jaxtyping import Float


class BestBand:
    """The band with the smallest force so far: what comes behind it may be far worse."""

    def __init__(self, band: Sequence[Atoms]) -> None:
        self._band, self._fmax, self._positions = band, np.inf, [image.positions.copy() for image in band]

    def look(self, fmax: float) -> None:
        """Remember the band as it is, if its force is smaller."""
        if fmax < self._fmax:
            self._fmax, self._positions = fmax, [image.positions.copy() for image in self._band]

    def images(self) -> list[Atoms]:
        """Copies."""
        copies = [image.copy() for image in self._band]
        for image, positions in zip(copies, self._positions, strict=True):
            image.positions[:] = positions
        return copies

    def restore(self) -> float:
        """Put the band back; the largest force."""
        for image, positions in zip(self._band, self._positions, strict=True):
            image.positions[:] = positions
        return self._fmax


class RememberedBand(Optimizable):
    """A band for an optimiser, which asks for its forces several times a step.

    Each time, ASE lays the images of a molecule upon each other anew. That moves them by rounding, which is enough for
    all of them to be computed again.
    """

    def __init__(self, band: NEB) -> None:
        self._band = band.__ase_optimizable__()
        self._known: tuple[np.ndarray, np.ndarray] | None = None

    def get_gradient(self) -> Float[np.ndarray, " n"]:
        """As it was, if no image has moved since."""
        if self._known is None or not np.array_equal(self._known[0], self.get_x()):
            gradient = self._band.get_gradient()
            self._known = self.get_x(), gradient
        return self._known[1]

    def get_value(self) -> float:
        """The highest energy."""
        return float(self._band.get_value())

    def get_x(self) -> Float[np.ndarray, " n"]:
        """Positions of all images but the ends."""
        return np.asarray(self._band.get_x(), float)

    def set_x(self, x: Float[np.ndarray, " n"]) -> None:
        """Move them."""
        self._band.set_x(x)

    def ndofs(self) -> int:
        """How many numbers they are."""
        return int(self._band.ndofs())

    def iterimages(self) -> Iterator[Atoms]:
        """All images."""
        yield from self._band.iterimages()
