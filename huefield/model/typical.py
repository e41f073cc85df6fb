"""Quantiles of a model's uncertainty on data like its training data, which thresholds for new structures refer to."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field

from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

PartOfUncertainty = Literal["total", "aleatoric", "epistemic"]
Measure = Literal["energy", "atom", "max", "mean"]
"""Standard deviation of the energy, of the force on an atom, and its maximum and mean over a structure's atoms."""

SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9999, 1.0)
"""Shares of the data for which quantiles are kept."""


Quantiles = Annotated[
    tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(min_length=len(SHARES), max_length=len(SHARES))
]


class PartQuantiles(FrozenConfig):
    """Quantiles of a measure, one for each of ``SHARES``, [eV] or [eV/Å]."""

    total: Quantiles
    aleatoric: Quantiles
    epistemic: Quantiles


class TypicalUncertainty(FrozenConfig):
    """Quantiles of the uncertainties of some structures, kept in the model file."""

    source: str = Field(description="name of the data")
    structures: int = Field(ge=1, description="number of structures")
    most_atoms: int | None = Field(None, ge=1, description="atoms of the largest structure; null if it is not known")
    energy: PartQuantiles
    atom: PartQuantiles
    max: PartQuantiles
    mean: PartQuantiles

    @classmethod
    def of(cls, blocks: "Sequence[Deviations]", source: str) -> "TypicalUncertainty":
        """Compute the quantiles from the calibrated standard deviations of some blocks of structures."""
        found = {
            measure: {
                part: np.concatenate([block.values[measure][part] for block in blocks])
                for part in blocks[0].values[measure]
            }
            for measure in get_args(Measure)
        }
        count = len(found["energy"]["total"])
        if not count:
            raise HuefieldError("there are no structures to take quantiles of the uncertainty from")
        quantiles = {
            measure: PartQuantiles(**{part: _quantiles(values) for part, values in parts.items()})
            for measure, parts in found.items()
        }
        most_atoms = max(block.most_atoms for block in blocks)
        return cls(source=source, structures=count, most_atoms=most_atoms or None, **quantiles)

    def quantile(self, share: float, measure: Measure, part: PartOfUncertainty = "total") -> float:
        """The uncertainty that this share of the data does not exceed."""
        if not 0 <= share <= 1:
            raise HuefieldError(f"the share of the data must lie between 0 and 1, but is {share:g}")
        return float(np.interp(share, SHARES, getattr(getattr(self, measure), part)))


NOTHING = (0.0,) * len(SHARES)


class Deviations(NamedTuple):
    """Standard deviations of a block of structures."""

    values: Mapping[Measure, Mapping[PartOfUncertainty, Float[np.ndarray, " n"]]]
    """By measure and part."""
    most_atoms: int
    """Atoms of the largest structure."""


def deviations(
    energy_var: Mapping[PartOfUncertainty, Float[np.ndarray, " n"]],
    forces_var: Mapping[PartOfUncertainty, Float[np.ndarray, "A 3"]],
    owners: Int[np.ndarray, " A"],
) -> Deviations:
    """All measures of the uncertainty of a block of structures.

    Args:
        energy_var: variance of the energy of each structure.
        forces_var: variances of the forces on all atoms, one structure after the other.
        owners: number of the structure of each atom.
    """
    count = len(energy_var["total"])
    found: dict[Measure, dict[PartOfUncertainty, Float[np.ndarray, " n"]]] = {m: {} for m in get_args(Measure)}
    for part, variance in forces_var.items():
        atoms, largest = force_deviations(variance), np.zeros(count)
        np.maximum.at(largest, owners, atoms)
        mean = np.bincount(owners, atoms, count) / np.maximum(np.bincount(owners, minlength=count), 1)
        columns = (np.sqrt(energy_var[part]), atoms, largest, mean)
        for measure, column in zip(found, columns, strict=True):
            found[measure][part] = column
    return Deviations(found, int(np.bincount(owners, minlength=1).max()))


def _quantiles(values: Float[np.ndarray, " n"]) -> tuple[float, ...]:
    return tuple(np.quantile(values, SHARES).tolist()) if values.size else NOTHING


def force_deviations(variance: Float[np.ndarray, "A 3"]) -> Float[np.ndarray, " A"]:
    """One rotation-invariant standard deviation for the force on each atom: √(mean variance of its components)."""
    return np.sqrt(np.mean(np.asarray(variance, float), axis=1))
