"""Elements that a model was trained for."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from ase.data import atomic_numbers as number_of_symbol
from jaxtyping import Bool, Integer

from huefield.core.structure import TAG, Block
from huefield.data.composition import symbol
from huefield.data.dataset import Part
from huefield.model.datasets import energy_table
from huefield.model.ensemble import Ensemble


class KnownElements:
    """Tells structures that a model can predict from those with unknown elements."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.symbols = ensemble.members.potential.atomic_config.elements
        self._known = np.isin(np.arange(256), [number_of_symbol[element] for element in self.symbols])
        self._datasets = ensemble.datasets

    def unknown(self, atomic_numbers: Integer[np.ndarray, " A"], tag: str = TAG) -> Bool[np.ndarray, " A"]:
        """Atoms of elements that the model was not trained for, or that a data set has no energies of.

        Args:
            atomic_numbers: the atoms.
            tag: data set of the structure; ``TAG`` for the one that the model has chosen.
        """
        unknown = ~self._known[atomic_numbers]
        if self._datasets is not None:
            unknown |= np.isnan(energy_table(self._datasets.energies(tag)))[atomic_numbers]
        return unknown

    def unknown_in(self, block: Block) -> Bool[np.ndarray, " A"]:
        """Atoms of a block that are :meth:`unknown`, each in the data set of its structure."""
        if self._datasets is None:
            return self.unknown(block.atomic_numbers)
        unknown, tags = np.zeros(len(block.atomic_numbers), bool), np.array(block.tags)[block.owners]
        for tag in set(block.tags):
            atoms = tags == tag
            unknown[atoms] = self.unknown(block.atomic_numbers[atoms], tag)
        return unknown

    def part(self, part: Part) -> Part:
        """The structures of a part that the model can predict."""
        known = [np.bincount(block.owners, self.unknown_in(block), len(block)) == 0 for block in part.blocks()]
        return part if not known else replace(part, indices=part.indices[np.concatenate(known)])

    def complaint(self, unknown: Iterable[int]) -> str:
        """The end of a message about these elements."""
        numbers = sorted(set(unknown))
        names = ", ".join(symbol(number) for number in numbers)
        if self._known[numbers].all():
            return f"{names}, for which the model has no reference energies in this data set"
        return f"{names}, but the model was trained for {', '.join(self.symbols)} only"
