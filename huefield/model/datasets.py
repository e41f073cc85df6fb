"""Energies of isolated atoms in each data set that a model was trained on.

The same functional in another basis shifts all energies: a model of several data sets learns one energy surface,
relative to the isolated atoms of each set, and predicts total energies as one of the sets has them.
"""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from ase.data import chemical_symbols
from jaxtyping import Float
from pydantic import Field, model_validator

from huefield.core.structure import TAG
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

AtomEnergies = tuple[tuple[Annotated[int, Field(ge=1, lt=len(chemical_symbols))], float], ...]
"""Atomic number and energy of the isolated atom [eV] of each element, by atomic number."""


def atom_energies(energies_ev: Mapping[int, float]) -> AtomEnergies:
    """Energies by atomic number as a tuple, which can be compared and hashed."""
    return tuple(sorted((int(number), float(energy)) for number, energy in energies_ev.items()))


def energy_table(energies: AtomEnergies) -> Float[np.ndarray, " Z"]:
    """Energy of each atomic number [eV]; NaN for elements that have none."""
    table = np.full(256, np.nan)
    for number, energy in energies:
        table[number] = energy
    return table


class DatasetReferences(FrozenConfig):
    """The energies of isolated atoms of one data set."""

    tag: str
    atom_energies: AtomEnergies


class Datasets(FrozenConfig):
    """Several data sets, and the one whose energies are predicted for structures that name none."""

    chosen: str
    references: tuple[DatasetReferences, ...] = Field(min_length=2)

    @model_validator(mode="after")
    def _names_are_clear(self) -> "Datasets":
        if len(set(self.tags)) < len(self.tags):
            raise HuefieldError(f"data sets must have different names, but are {list(self.tags)}")
        self.energies(self.chosen)
        return self

    @property
    def tags(self) -> tuple[str, ...]:
        """Names of the data sets, in the order of training."""
        return tuple(each.tag for each in self.references)

    def energies(self, tag: str = TAG) -> AtomEnergies:
        """Energies of isolated atoms of a data set; ``TAG`` for the chosen one."""
        wanted = self.chosen if tag == TAG else tag
        found = next((each.atom_energies for each in self.references if each.tag == wanted), None)
        if found is None:
            raise HuefieldError(
                f"the model does not know the data set {wanted!r}: it was trained on {', '.join(self.tags)}"
            )
        return found

    def choosing(self, tag: str) -> "Datasets":
        """The same data sets with another one chosen."""
        self.energies(tag)
        return self.model_copy(update={"chosen": tag})
