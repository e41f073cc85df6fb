"""What a run looks out for: forces that are too uncertain, and structures that have exploded."""

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from ase import Atoms
from jaxtyping import Bool, Float, Int

from huefield.ase.calculator import structure_of
from huefield.ase.md.config import ForceMeasure, MDConfig
from huefield.ase.thresholds import Threshold
from huefield.data.batches.neighbours import neighbour_pairs
from huefield.model.forcefield import Ensemble
from huefield.model.typical import PartOfUncertainty, force_deviations
from huefield.noise import VanillaNoise
from huefield.predict.evaluator import named_atoms
from huefield.support.errors import HuefieldError

EXPLODED = 10.0
"""Times the threshold, or the most that validation data had: where nothing is believed any more."""
EXPLODED_WITHOUT_DATA = 10.0
"""The same [eV/Å] where nothing is known of validation data."""
HOTTEST_FACTOR, HOTTEST_KELVIN = 10.0, 2000.0
"""A temperature beyond so many times that of the run, and so much more, is no fluctuation."""


@dataclass(frozen=True)
class Levels:
    """Uncertainties of forces [eV/Å] that something happens at; None where nothing does."""

    lower: float | None
    upper: float | None

    @classmethod
    def of(cls, config: MDConfig, ensemble: Ensemble) -> "Levels":
        """Numbers for the thresholds of a configuration."""
        typical = ensemble.typical
        lower, upper = (
            None if given is None else Threshold.parse(given).level(typical, config.measure, config.part)
            for given in (config.threshold, config.refuse_above)
        )
        if lower is not None or upper is not None:
            _require_part(ensemble, config.part)
        if upper is None and lower is not None:
            upper = EXPLODED * lower
        elif upper is None and config.uncertainty_every:
            largest = 0.0 if typical is None else typical.quantile(1.0, config.measure, config.part)
            upper = EXPLODED * largest or EXPLODED_WITHOUT_DATA
        if lower is not None and upper is not None and upper <= lower:
            raise HuefieldError(
                f"structures would be refused above {upper:g} eV/Å, not above the threshold of {lower:g} eV/Å: raise "
                "refuse_above (--refuse-above)"
            )
        return cls(lower, upper)


Deviations = dict[PartOfUncertainty, Float[np.ndarray, " N"]]


def deviations_in(results: dict[str, Any]) -> Deviations:
    """One standard deviation for the force on each atom, and its parts; nothing where they were not computed."""
    names = {part: name_of_part(part) for part in get_args(PartOfUncertainty)}
    return {part: force_deviations(results[name] ** 2) for part, name in names.items() if name in results}


def name_of_part(part: PartOfUncertainty) -> str:
    """Under which the calculator has the uncertainty of forces."""
    return "forces_uncertainty" + ("" if part == "total" else f"_{part}")


def measured(deviations: Float[np.ndarray, " N"], measure: ForceMeasure) -> float:
    """The number that is compared with a threshold."""
    return float(deviations.mean() if measure == "mean" else deviations.max())


def atoms_beyond(deviations: Float[np.ndarray, " N"], level: float) -> Int[np.ndarray, " n"]:
    """Atoms whose force is more uncertain than a level, the worst first; the worst alone where none is."""
    order = np.argsort(-deviations, kind="stable")
    return order[: max(int((deviations > level).sum()), 1)]


class Watch:
    """Knows what a structure of the run may look like."""

    def __init__(self, start: Atoms, config: MDConfig, levels: Levels, cutoff_angstrom: float, kelvin: float) -> None:
        """Look at the start.

        Args:
            start: atoms that are alone in it may stay so.
            config: of the run.
            levels: of the uncertainty.
            cutoff_angstrom: how far the model looks.
            kelvin: temperature of the run.
        """
        self.config, self.levels, self.cutoff_angstrom = config, levels, cutoff_angstrom
        self.hottest_kelvin = HOTTEST_FACTOR * kelvin + HOTTEST_KELVIN
        self._alone_at_start = alone(start, cutoff_angstrom)

    def too_hot(self, kelvin: float) -> str:
        """Why a structure has exploded, by its temperature; empty if it has not."""
        if kelvin <= self.hottest_kelvin:
            return ""
        return f"the temperature is {kelvin:.0f} K, beyond {self.hottest_kelvin:.0f} K"

    def exploded(self, atoms: Atoms, deviations: Deviations) -> str:
        """Why a structure has exploded, by its shape or its uncertainty; empty if it has not."""
        lost = np.flatnonzero(alone(atoms, self.cutoff_angstrom) & ~self._alone_at_start)
        if lost.size:
            names = named_atoms(structure_of(atoms), lost)
            return f"{names} has flown off: no other atom is within the {self.cutoff_angstrom:g} Å that the model sees"
        upper = self.levels.upper
        return self._beyond(atoms, deviations, upper) if upper is not None else ""

    def uncertain(self, atoms: Atoms, deviations: Deviations) -> str:
        """Which forces are beyond the threshold; empty if none is."""
        lower = self.levels.lower
        return self._beyond(atoms, deviations, lower) if lower is not None else ""

    def _beyond(self, atoms: Atoms, deviations: Deviations, level: float) -> str:
        part, measure = self.config.part, self.config.measure
        if not deviations or not measured(deviations[part], measure) > level:
            return ""
        worst = atoms_beyond(deviations[part], level)
        kind = "" if part == "total" else f"{part} "
        return (
            f"the {'mean ' if measure == 'mean' else ''}{kind}uncertainty of forces is "
            f"{measured(deviations[part], measure):.3g} eV/Å, beyond {level:.3g} eV/Å, most of all on "
            f"{named_atoms(structure_of(atoms), worst)}"
        )


def alone(atoms: Atoms, cutoff_angstrom: float) -> Bool[np.ndarray, " N"]:
    """Atoms without any other within the cutoff."""
    pairs = neighbour_pairs(structure_of(atoms), cutoff_angstrom)
    return np.bincount(pairs.first, minlength=len(atoms)) == 0


def _require_part(ensemble: Ensemble, part: PartOfUncertainty) -> None:
    """A threshold for what is always zero would never be passed."""
    noisy = not isinstance(ensemble.members.noise, VanillaNoise)
    several = ensemble.num_members > 1
    if not {"total": noisy or several, "aleatoric": noisy, "epistemic": several}[part]:
        reason = "has no noise model" if part == "aleatoric" else "has one member only"
        raise HuefieldError(
            f"the model {reason}, so its {part} uncertainty is zero and no threshold for it is ever passed"
        )
