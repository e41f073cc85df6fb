"""Elements that a model was trained for."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from ase.data import atomic_numbers as number_of_symbol
from jaxtyping import Bool, Integer

from huefield.data.composition import symbol
from huefield.data.dataset import Part
from huefield.model.ensemble import Ensemble


class KnownElements:
    """Tells structures that a model can predict from those with unknown elements."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.symbols = ensemble.members.potential.atomic_config.elements
        self._known = np.isin(np.arange(256), [number_of_symbol[element] for element in self.symbols])

    def unknown(self, atomic_numbers: Integer[np.ndarray, " A"]) -> Bool[np.ndarray, " A"]:
        """Atoms of elements that the model was not trained for."""
        return ~self._known[atomic_numbers]

    def part(self, part: Part) -> Part:
        """The structures of a part that the model can predict."""
        known = [
            np.bincount(block.owners, self.unknown(block.atomic_numbers), len(block)) == 0 for block in part.blocks()
        ]
        return part if not known else replace(part, indices=part.indices[np.concatenate(known)])

    def complaint(self, unknown: Iterable[int]) -> str:
        """The end of a message about these elements."""
        names = ", ".join(symbol(number) for number in sorted(set(unknown)))
        return f"{names}, but the model was trained for {', '.join(self.symbols)} only"
