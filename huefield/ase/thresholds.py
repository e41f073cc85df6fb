"""Thresholds of the uncertainty: numbers, or shares of the validation data."""

import warnings
from dataclasses import dataclass

import numpy as np

from huefield.core.structure import Structure
from huefield.model.ensemble import Ensemble
from huefield.model.typical import Measure, PartOfUncertainty, TypicalUncertainty, force_deviations
from huefield.predict.evaluator import named_atoms
from huefield.predict.marginals import EnergyForcesMarginals
from huefield.support.errors import HuefieldError

LARGEST_OF_VALIDATION = "100%"
LARGEST = 20.0
"""Force uncertainty [eV/Å] above which a number is probably a share without its percent sign."""


class UncertaintyWarning(UserWarning):
    """A model is more uncertain about a structure than about data like its training data."""


@dataclass(frozen=True)
class Threshold:
    """A number in eV or eV/Å (``0.3``), or a share of the model's validation data (``99.9%``)."""

    value: float
    is_share: bool

    @classmethod
    def parse(cls, given: str | float) -> "Threshold":
        """Read ``0.3`` or ``"99.9%"``."""
        text = str(given).strip()
        is_share = text.endswith("%")
        try:
            value = float(text.removesuffix("%")) / (100 if is_share else 1)
        except ValueError:
            raise HuefieldError(
                f"a threshold is a number in eV/Å such as 0.3, or a share of the validation data such as 99.9%, not "
                f"{given!r}"
            ) from None
        if is_share and not 0 <= value <= 1:
            raise HuefieldError(f"a share of the data lies between 0% and 100%, but is {text}")
        if not value > 0:
            raise HuefieldError(f"a threshold must be above 0, but is {text}")
        return cls(value, is_share)

    @property
    def doubt(self) -> str:
        """A question to the user if the number looks like a share; else empty."""
        if self.is_share or not LARGEST < self.value <= 100:
            return ""
        return f"{self} eV/Å is far above any uncertainty of a useful model: did you mean {self}%?"

    def limit(self, typical: TypicalUncertainty | None, measure: Measure, part: PartOfUncertainty) -> float:
        """The threshold in eV or eV/Å, given the uncertainties of the validation data."""
        if not self.is_share:
            return self.value
        if typical is None:
            raise HuefieldError(
                "the model does not know the uncertainties of its validation data, which a threshold of "
                f"{self} needs: give a number in eV/Å, or run `huefield calibrate MODEL DATA`. With --no-growth they "
                "do not apply: give a number"
            )
        return typical.quantile(self.value, measure, part)

    def __str__(self) -> str:
        return f"{100 * self.value:.15g}%" if self.is_share else f"{self.value:.15g}"


@dataclass(frozen=True)
class WarningLimits:
    """Limits of the uncertainty above which the calculator warns; None for no limit."""

    energy: float | None = None
    """[eV]"""
    force: float | None = None
    """Limit for the force on an atom [eV/Å]."""
    source: str = ""
    """Origin of the limits in words."""
    most_atoms: int | None = None
    """Atoms of the largest structure that the limit of the energy is from; larger ones have a larger limit."""

    @classmethod
    def of(cls, ensemble: Ensemble, given: str | float | None) -> "WarningLimits":
        """Limits for ``warn_above`` of the calculator."""
        if given is None:
            return cls()
        threshold, typical = Threshold.parse(given), ensemble.typical
        if threshold.doubt:
            warnings.warn(threshold.doubt, stacklevel=4)
        if not threshold.is_share:
            return cls(None, threshold.value, "the threshold")
        if typical is None and given == LARGEST_OF_VALIDATION:
            return cls()
        force = threshold.limit(typical, "atom", "total")
        assert typical is not None  # noqa: S101 - otherwise the line above raises
        source = f"{threshold} of the {typical.source} ({typical.structures} structures)"
        most_atoms = typical.most_atoms if ensemble.members.noise.is_size_consistent else None
        return cls(threshold.limit(typical, "energy", "total"), force, source, most_atoms)

    def exceeded(self, found: EnergyForcesMarginals, structure: Structure) -> str:
        """Uncertainties above the limits, in words; empty if there are none."""
        assert found.energy is not None and found.forces is not None  # noqa: S101, PT018 - of a model
        complaints = []
        forces, energy = force_deviations(found.forces.variance), float(found.energy.deviation[0])
        if self.force is not None and (forces > self.force).any():
            worst = np.flatnonzero(forces > self.force)
            worst = worst[np.argsort(-forces[worst])]
            complaints.append(
                f"forces on {named_atoms(structure, worst)} are uncertain by up to {forces.max():.3g} eV/Å, more than "
                f"{self.source}: {self.force:.3g} eV/Å"
            )
        if complaint := self.exceeded_by_energy(energy, len(structure)):
            complaints.append(complaint)
        return "; ".join(complaints)

    def exceeded_by_energy(self, deviation: float, atoms: int) -> str:
        """The uncertainty of an energy [eV] in words if it is above the limit; otherwise empty.

        Uncertainties of energies add up over atoms, so that the limit is proportional to the size of structures that
        are larger than those it is from.
        """
        if self.energy is None:
            return ""
        limit = self.energy * max(1.0, atoms / (self.most_atoms or atoms))
        if not deviation > limit:
            return ""
        return f"the energy is uncertain by {deviation:.3g} eV, more than {self.source}: {limit:.3g} eV"
