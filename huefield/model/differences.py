"""Energies of several structures of the same atoms, with the covariance of their errors.

Errors of similar structures are similar and cancel in differences: barriers and reaction energies are more certain than
each energy. The noise is correlated through the kernel of its process
(:mod:`huefield.noise.correlation`), the members' errors through the covariance of the members:

    Cov(E(r), E(r')) = mean_m Σ_c R_mc(r, r') ρ_mc(r) ρ_mc(r') + Cov_members(E_m(r), E_m(r')).

White noise is one number for one structure: copies (:mod:`huefield.core.copies`) share it, so that the energy of a
structure less that of its copy is 0 ± 0, and other structures have independent numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from huefield.core.structure import Structure
from huefield.core.superposition import superpose
from huefield.core.tails import interval_width
from huefield.model.calibration import ONE_SIGMA
from huefield.model.joint_calibration import AbstractJointCalibration, EnergyForcesCalibration
from huefield.noise.correlation import correlation
from huefield.support.errors import HuefieldError, NoPredictionError

UNCALIBRATED = EnergyForcesCalibration()


@dataclass(frozen=True, repr=False)
class EnergyDifference:
    """One energy less another [eV], with standard deviations."""

    value: float
    uncertainty: float
    """Total: noise plus members."""
    uncertainty_aleatoric: float
    uncertainty_epistemic: float
    uncertainty_if_independent: float
    """The uncertainty if the errors of both energies were independent."""
    calibration: AbstractJointCalibration = UNCALIBRATED
    """The calibration that the energies contain already."""

    def half_width(self, coverage: float) -> float:
        """Half-width of an interval that contains the true difference with this probability.

        From observed quantiles if the model is calibrated for differences, otherwise from the distribution of energies.
        """
        return self.uncertainty * self.calibration.difference_width(coverage) / self.calibration.difference_scale

    def as_dict(self) -> dict[str, float]:
        """Values for JSON."""
        return {
            "value": self.value,
            "uncertainty": self.uncertainty,
            "uncertainty_aleatoric": self.uncertainty_aleatoric,
            "uncertainty_epistemic": self.uncertainty_epistemic,
            "uncertainty_if_independent": self.uncertainty_if_independent,
            "half_width_95": self.half_width(0.95),
        }

    def __repr__(self) -> str:
        return f"EnergyDifference({self})"

    def __str__(self) -> str:
        return f"{round(self.value, 3) + 0.0:.3f} ± {self.uncertainty:.3f} eV"


@dataclass(frozen=True, eq=False, repr=False)
class EnergyCovariance:
    """Energies of n structures and the covariance of their errors, calibrated."""

    energy: Float[np.ndarray, " n"]
    """Total energies [eV]."""
    aleatoric: Float[np.ndarray, "n n"]
    epistemic: Float[np.ndarray, "n n"]
    members: Float[np.ndarray, "M n"]
    """Total energies of each member."""
    calibration: AbstractJointCalibration = field(default=UNCALIBRATED, repr=False)
    """The calibration that these numbers contain already; that of differences is applied here."""

    @property
    def total(self) -> Float[np.ndarray, "n n"]:
        """Total covariance, noise plus members [eV²]: positive semi-definite."""
        return self.aleatoric + self.epistemic

    def of_differences(self, coverage: float = ONE_SIGMA) -> Float[np.ndarray, "n n"]:
        """The total covariance with the calibration of differences.

        Intervals of the distribution of energies (Student t with ``dof``) with this covariance have, at this coverage,
        the half-widths of differences.
        """
        return (self.calibration.difference_width(coverage) / interval_width(coverage, self.dof)) ** 2 * self.total

    @property
    def dof(self) -> float | None:
        """Degrees of freedom of the Student t distribution of the errors; None for a normal distribution."""
        return self.calibration.tails.energy

    def profiles(self, count: int, *, coverage: float, seed: int) -> Float[np.ndarray, "count n"]:
        """Draws of all energies together, relative to the first mean, with the covariance of differences.

        Args:
            count: number of draws.
            coverage: of the intervals whose width the draws shall have, see :meth:`of_differences`.
            seed: of the random numbers.
        """
        rng = np.random.default_rng(seed)
        deviations = rng.multivariate_normal(np.zeros(len(self)), self.of_differences(coverage), count, method="eigh")
        if self.dof is not None:
            deviations *= np.sqrt((self.dof - 2.0) / rng.chisquare(self.dof, count))[:, None]
        return self.energy - self.energy[0] + deviations

    @property
    def uncertainty(self) -> Float[np.ndarray, " n"]:
        """Standard deviation of each energy."""
        return np.sqrt(np.diag(self.total))

    def __len__(self) -> int:
        return len(self.energy)

    def __repr__(self) -> str:
        pairs = (f"{e:.3f} ± {u:.3f}" for e, u in zip(self.energy, self.uncertainty, strict=True))
        return f"EnergyCovariance([{', '.join(pairs)}] eV)"

    def difference(self, a: int, b: int) -> EnergyDifference:
        """E(b) − E(a)."""
        variances = [_of_difference(part, a, b) for part in (self.total, self.aleatoric, self.epistemic)]
        total, noise, spread = (self._scale() * np.sqrt(variances)).tolist()
        independent = float(np.sqrt(self.total[a, a] + self.total[b, b]))
        value = float(self.energy[b] - self.energy[a])
        return EnergyDifference(value, total, noise, spread, independent, self.calibration)

    def relative_to(self, reference: int) -> Float[np.ndarray, " n"]:
        """Standard deviation of each energy less that of a reference."""
        variance = np.diag(self.total) + self.total[reference, reference] - 2.0 * self.total[reference]
        return self._scale() * np.sqrt(np.maximum(variance, 0.0))

    def _scale(self) -> float:
        """Factor on standard deviations of differences."""
        return self.calibration.difference_scale


def _of_difference(covariance: Float[np.ndarray, "n n"], a: int, b: int) -> float:
    return max(float(covariance[a, a] + covariance[b, b] - 2.0 * covariance[a, b]), 0.0)


@dataclass(frozen=True, eq=False)
class EnergyTerms:
    """Energies and noise terms of n structures, from which covariances of any of them are computed."""

    structures: tuple[Structure, ...]
    members: Float[np.ndarray, "M n"]
    """Total energies of each member, uncalibrated."""
    white_var: Float[np.ndarray, "M n"]
    """Variance of white noise, which only copies of a structure share."""
    levels: Float[np.ndarray, "M C n"]
    """ρ of each process."""
    inverse_lengths: tuple[Float[np.ndarray, "M C _"], ...]
    """γ of each process on the atoms of each structure."""
    factors: Float[np.ndarray, "3 n"]
    """Calibrated over predicted variances of each energy: of the processes, of white noise, and of the members."""
    calibration: AbstractJointCalibration = UNCALIBRATED
    """Calibration of the ensemble."""

    @classmethod
    def joined(cls, parts: Sequence["EnergyTerms"]) -> "EnergyTerms":
        """Terms of several batches in one."""
        if not parts:
            raise HuefieldError("there are no structures to compare: give at least one")
        arrays = {
            name: np.concatenate([getattr(part, name) for part in parts], axis=-1)
            for name in ("members", "white_var", "levels", "factors")
        }
        found = cls(
            structures=tuple(structure for part in parts for structure in part.structures),
            inverse_lengths=tuple(lengths for part in parts for lengths in part.inverse_lengths),
            **arrays,
            calibration=parts[0].calibration,
        )
        found._require_finite()
        return found

    def _require_finite(self) -> None:
        finite = (
            np.isfinite(self.members).all(0) & np.isfinite(self.white_var).all(0) & np.isfinite(self.factors).all(0)
        )
        finite &= np.isfinite(self.levels).all((0, 1)) & [np.isfinite(each).all() for each in self.inverse_lengths]
        if not finite.all():
            raise NoPredictionError(
                f"the prediction of structure {np.flatnonzero(~finite)[0]} of {len(finite)} is NaN or infinite: the "
                "structure is far from all training data, or the model is broken"
            )

    def covariance(self, which: Sequence[int] | None = None, *, match: bool = True) -> EnergyCovariance:
        """The energies of some of the structures, which must be made of the same atoms.

        Args:
            which: their numbers; None for all.
            match: whether like atoms may be exchanged to bring structures closer, see
                :func:`~huefield.core.superposition.superpose`.
        """
        chosen = list(range(len(self.structures))) if which is None else list(which)
        laid = superpose([self.structures[index] for index in chosen], match=match)
        count, levels = len(self.members), self.levels[:, :, chosen]
        of_noise, of_white, of_members = self.factors[:, chosen]
        single = np.sqrt(of_white * self.white_var[:, chosen])
        white = np.where(laid.original[:, None] == laid.original, single.T @ single / count, 0.0)
        colored = np.zeros((len(chosen), len(chosen)))
        for member in range(count):
            for channel, level in enumerate(levels[member]):
                lengths = [self.inverse_lengths[index][member, channel] for index in chosen]
                placed = np.stack([each[order] for each, order in zip(lengths, laid.order, strict=True)])
                colored += level[:, None] * level * correlation(laid.positions, placed) / count
        energies, roots = self.members[:, chosen], np.sqrt(of_noise)
        mean = energies.mean(0)
        spread = (energies - mean) * np.sqrt(of_members)
        noise = roots[:, None] * roots * colored + white
        return EnergyCovariance(mean, noise, spread.T @ spread / count, mean + spread, self.calibration)
