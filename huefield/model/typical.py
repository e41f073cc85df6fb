"""How uncertain a model is about data like those it was trained on: what thresholds for new structures refer to."""

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field

from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

PartOfUncertainty = Literal["total", "aleatoric", "epistemic"]
Measure = Literal["energy", "atom", "max", "mean"]
"""The standard deviation of the energy; of the force on an atom; the largest and the mean of a structure's atoms."""

SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9999, 1.0)
"""That quantiles are kept of."""


class PartQuantiles(FrozenConfig):
    """Quantiles of a measure, one for each of ``SHARES``, [eV] or [eV/Å]."""

    total: tuple[float, ...] = Field(min_length=len(SHARES), max_length=len(SHARES))
    aleatoric: tuple[float, ...] = Field(min_length=len(SHARES), max_length=len(SHARES))
    epistemic: tuple[float, ...] = Field(min_length=len(SHARES), max_length=len(SHARES))


class TypicalUncertainty(FrozenConfig):
    """Quantiles of the uncertainties of some structures, as a model keeps them."""

    source: str = Field(description="the data, in words")
    structures: int = Field(ge=1, description="how many")
    energy: PartQuantiles
    atom: PartQuantiles
    max: PartQuantiles
    mean: PartQuantiles

    @classmethod
    def of(
        cls,
        energy_var: Mapping[PartOfUncertainty, Float[np.ndarray, " n"]],
        forces_var: Mapping[PartOfUncertainty, Float[np.ndarray, "A 3"]],
        owners: Int[np.ndarray, " A"],
        source: str,
    ) -> "TypicalUncertainty":
        """From calibrated variances.

        Args:
            energy_var: of each structure.
            forces_var: of the forces on all atoms, one structure after the other.
            owners: the structure of each atom.
            source: the data, in words.
        """
        count = len(energy_var["total"])
        if not count:
            raise HuefieldError("there are no structures whose uncertainty could be called typical")
        quantiles: dict[str, dict[str, tuple[float, ...]]] = {measure: {} for measure in get_args(Measure)}
        for part in get_args(PartOfUncertainty):
            atoms = force_deviations(forces_var[part])
            largest = np.zeros(count)
            np.maximum.at(largest, owners, atoms)
            mean = np.bincount(owners, atoms, count) / np.maximum(np.bincount(owners, minlength=count), 1)
            values = {"energy": np.sqrt(energy_var[part]), "atom": atoms, "max": largest, "mean": mean}
            for measure, found in values.items():
                quantiles[measure][part] = tuple(np.quantile(found, SHARES).tolist()) if found.size else NOTHING
        parts = {measure: PartQuantiles(**found) for measure, found in quantiles.items()}
        return cls(source=source, structures=count, **parts)

    def quantile(self, share: float, measure: Measure, part: PartOfUncertainty = "total") -> float:
        """The uncertainty that this share of the data is below."""
        if not 0 <= share <= 1:
            raise HuefieldError(f"a share of the data lies between 0 and 1, but is {share:g}")
        return float(np.interp(share, SHARES, getattr(getattr(self, measure), part)))


NOTHING = (0.0,) * len(SHARES)


def force_deviations(variance: Float[np.ndarray, "A 3"]) -> Float[np.ndarray, " A"]:
    """One standard deviation for the force on each atom, whichever way the structure is turned: √(mean variance)."""
    return np.sqrt(np.mean(np.asarray(variance, float), axis=1))
