"""Monitoring of a run: forces that are too uncertain, and structures that have exploded."""

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from ase import Atoms
from jaxtyping import Bool, Float, Int

from huefield.ase.calculator import structure_of
from huefield.ase.md.config import ForceMeasure, MDConfig
from huefield.ase.thresholds import Threshold
from huefield.data.batches.neighbours import neighbour_pairs
from huefield.model.ensemble import Ensemble
from huefield.model.typical import PartOfUncertainty, force_deviations
from huefield.noise import VanillaNoise
from huefield.predict.evaluator import named_atoms
from huefield.support.errors import HuefieldError

EXPLODED = 10.0
"""Multiple of the threshold, or of the largest uncertainty of the validation data, that counts as exploded."""
EXPLODED_WITHOUT_DATA = 10.0
"""Uncertainty [eV/Å] that counts as exploded if the model does not know the uncertainties of its validation data."""
HOTTEST_FACTOR, HOTTEST_KELVIN = 10.0, 2000.0
"""A temperature above factor × (temperature of the run) + offset is no fluctuation."""


@dataclass(frozen=True)
class Limits:
    """Limits of the force uncertainty [eV/Å]; None for no limit."""

    threshold: float | None
    """The run stops, or saves the structure, above it."""
    refuse_above: float | None
    """A structure above it counts as exploded."""

    @classmethod
    def of(cls, config: MDConfig, ensemble: Ensemble) -> "Limits":
        """Compute the limits that a configuration means for a model."""
        typical = ensemble.typical
        threshold, refuse_above = (
            None if given is None else Threshold.parse(given).limit(typical, config.measure, config.part)
            for given in (config.threshold, config.refuse_above)
        )
        if threshold is not None or refuse_above is not None:
            _require_part(ensemble, config.part)
        if refuse_above is None and threshold is not None:
            refuse_above = EXPLODED * threshold
        elif refuse_above is None and config.uncertainty_every:
            largest = 0.0 if typical is None else typical.quantile(1.0, config.measure, config.part)
            refuse_above = EXPLODED * largest or EXPLODED_WITHOUT_DATA
        if threshold is not None and refuse_above is not None and refuse_above <= threshold:
            raise HuefieldError(
                f"refuse_above ({refuse_above:g} eV/Å) is not above the threshold ({threshold:g} eV/Å): raise "
                "refuse_above (--refuse-above)"
            )
        return cls(threshold, refuse_above)


Deviations = dict[PartOfUncertainty, Float[np.ndarray, " N"]]


def deviations_in(results: dict[str, Any]) -> Deviations:
    """Standard deviation of the force on each atom, total and by part; empty if the calculator has none."""
    names = {part: name_of_part(part) for part in get_args(PartOfUncertainty)}
    return {part: force_deviations(results[name] ** 2) for part, name in names.items() if name in results}


def name_of_part(part: PartOfUncertainty) -> str:
    """Name of a force uncertainty in the results of the calculator."""
    return "forces_uncertainty" + ("" if part == "total" else f"_{part}")


def measured(deviations: Float[np.ndarray, " N"], measure: ForceMeasure) -> float:
    """Reduce the uncertainties of all atoms to the number that is compared with a threshold."""
    return float(deviations.mean() if measure == "mean" else deviations.max())


def atoms_above(deviations: Float[np.ndarray, " N"], limit: float) -> Int[np.ndarray, " n"]:
    """Atoms whose force uncertainty is above a limit, in descending order; if there is none, the most uncertain one."""
    order = np.argsort(-deviations, kind="stable")
    return order[: max(int((deviations > limit).sum()), 1)]


class Watch:
    """Decides whether a structure of the run is too uncertain or has exploded."""

    def __init__(self, start: Atoms, config: MDConfig, limits: Limits, cutoff_angstrom: float, kelvin: float) -> None:
        """Remember the properties of the start.

        Args:
            start: first structure; atoms that are isolated in it may stay isolated.
            config: settings of the run.
            limits: limits of the uncertainty.
            cutoff_angstrom: cutoff of the model.
            kelvin: temperature of the run.
        """
        self.config, self.limits, self.cutoff_angstrom = config, limits, cutoff_angstrom
        self.hottest_kelvin = HOTTEST_FACTOR * kelvin + HOTTEST_KELVIN
        self._isolated_at_start = isolated(start, cutoff_angstrom)

    def too_hot(self, kelvin: float) -> str:
        """Reason for an explosion by temperature; empty if there is none."""
        if kelvin <= self.hottest_kelvin:
            return ""
        return f"the temperature is {kelvin:.0f} K, above {self.hottest_kelvin:.0f} K"

    def exploded(self, atoms: Atoms, deviations: Deviations) -> str:
        """Reason for an explosion by geometry or uncertainty; empty if there is none."""
        lost = np.flatnonzero(isolated(atoms, self.cutoff_angstrom) & ~self._isolated_at_start)
        if lost.size:
            names = named_atoms(structure_of(atoms), lost)
            return f"{names} left: no other atom is within the cutoff of {self.cutoff_angstrom:g} Å"
        reason = self._above(atoms, deviations, self.limits.refuse_above)
        if reason and self.limits.threshold is not None:
            origin = (
                "as set" if self.config.refuse_above is not None else f"{EXPLODED:g} times the threshold unless set"
            )
            reason += (
                f" (refuse_above is {self.limits.refuse_above:.3g} eV/Å, {origin}; the threshold is "
                f"{self.limits.threshold:.3g} eV/Å)"
            )
        return reason

    def uncertain(self, atoms: Atoms, deviations: Deviations) -> str:
        """Forces above the threshold, in words; empty if there are none."""
        return self._above(atoms, deviations, self.limits.threshold)

    def _above(self, atoms: Atoms, deviations: Deviations, limit: float | None) -> str:
        part, measure = self.config.part, self.config.measure
        if limit is None or not deviations or not measured(deviations[part], measure) > limit:
            return ""
        worst = atoms_above(deviations[part], limit)
        kind = "" if part == "total" else f"{part} "
        return (
            f"the {'mean ' if measure == 'mean' else ''}{kind}uncertainty of forces is "
            f"{measured(deviations[part], measure):.3g} eV/Å, above {limit:.3g} eV/Å, most of all on "
            f"{named_atoms(structure_of(atoms), worst)}"
        )


def isolated(atoms: Atoms, cutoff_angstrom: float) -> Bool[np.ndarray, " N"]:
    """Atoms without any other atom within the cutoff."""
    pairs = neighbour_pairs(structure_of(atoms), cutoff_angstrom)
    return np.bincount(pairs.first, minlength=len(atoms)) == 0


def _require_part(ensemble: Ensemble, part: PartOfUncertainty) -> None:
    """Refuse a threshold for an uncertainty that is always zero."""
    noisy = not isinstance(ensemble.members.noise, VanillaNoise)
    several = ensemble.num_members > 1
    if not {"total": noisy or several, "aleatoric": noisy, "epistemic": several}[part]:
        reason = "has no noise model" if part == "aleatoric" else "has only one member"
        raise HuefieldError(
            f"the model {reason}: its {part} uncertainty is zero, so no structure is ever above a threshold for it"
        )
