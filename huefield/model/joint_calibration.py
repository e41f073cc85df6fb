"""Calibration of a joint distribution of energies and forces.

Two kinds. The coherent one multiplies the parts of the covariance that each come from one energy function, so that the
force noise stays the derivative of the energy noise. The other one maps the variances of energies and of forces
separately, which can follow observed errors more closely and gives coherence up.
"""

from abc import abstractmethod
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from pydantic import Discriminator, Field, Tag

from huefield.core import EnergyForces, Gaussian, Scaling
from huefield.core.lowrank import safe_divide
from huefield.core.tails import FEWEST_DOF, interval_width
from huefield.model.calibration import ONE_SIGMA, CalibrationConfig, ConformalCalibration, PositiveFinite
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

Variances = Float[np.ndarray, " n"]
DegreesOfFreedom = Annotated[float, Field(ge=FEWEST_DOF, allow_inf_nan=False)]


class Tails(FrozenConfig):
    """Degrees of freedom ν of the Student t distributions of errors; None for normal ones."""

    energy: DegreesOfFreedom | None = Field(None, description="of energies and energy differences")
    forces: DegreesOfFreedom | None = Field(None, description="of force components")
    joint: DegreesOfFreedom | None = Field(None, description="of the energy and all forces of a structure together")
    observed_stress: DegreesOfFreedom | None = Field(
        None, description="of stress components, if it was fitted to them; null for that of forces"
    )

    @property
    def stress(self) -> float | None:
        """Of stress components: that of forces, unless it was fitted to stresses."""
        return self.forces if self.observed_stress is None else self.observed_stress


class AbstractJointCalibration(FrozenConfig):
    """A calibration of the covariance of energies and forces. Means do not change."""

    tails: Tails = Field(Tails(), description="tails of the errors")

    def require_fit(self, kind: str) -> None:
        """Raise if the calibration was fitted for another kind of noise model."""

    @property
    @abstractmethod
    def is_coherent(self) -> bool:
        """Whether the force noise of a coherent model stays the derivative of its energy noise."""

    @abstractmethod
    def scaling(self, distribution: Gaussian) -> Scaling:
        """Ratio of calibrated to predicted variances."""

    @abstractmethod
    def energy_scaling(self, total_var: Variances) -> tuple[Variances, ...]:
        """Ratios for the energies of some structures: of aleatoric columns, of the diagonal, and of the members.

        Args:
            total_var: predicted variance of each energy.
        """

    @abstractmethod
    def force_scaling(self, total_var: Float[np.ndarray, "A 3"]) -> tuple[Float[np.ndarray, "A 3"], ...]:
        """The same for force components.

        Args:
            total_var: predicted variance of each component.
        """

    @property
    @abstractmethod
    def largest_coverage(self) -> float:
        """The largest coverage for which intervals can be given."""

    @abstractmethod
    def interval_widths(self, coverage: float) -> tuple[float, float]:
        """Half-widths of the intervals of an energy and of a force component, in units of their calibrated σ."""

    @abstractmethod
    def difference_width(self, coverage: float) -> float:
        """Half-width of the interval of an energy difference, in units of its σ from calibrated energies."""

    @property
    @abstractmethod
    def difference_scale(self) -> float:
        """Standard deviation of an energy difference in units of its σ from calibrated energies."""


class CoherentCalibration(AbstractJointCalibration):
    """One factor for each part of the covariance, and the tails of the errors.

    Each part is the covariance of one energy function and its derivative: the noise process, with its column (ρ, −∂ρ);
    an offset of the energy; the rest of the force noise, which has no part in the energy; and the deviations of the
    members. Constant factors keep each of them so: Cov(E, F) = −½ ∂Var(E) holds after the calibration if it held
    before, samples are conservative, and the factors do not depend on the size of a structure.
    """

    kind: Literal["coherent"] = "coherent"
    noise: PositiveFinite = Field(
        1.0, description="factor of the variance of the noise process, in energies and forces"
    )
    energy_diagonal: PositiveFinite = Field(1.0, description="factor of the rest of the energy variance, an offset")
    force_diagonal: PositiveFinite = Field(1.0, description="factor of the rest of the force variances")
    spread: PositiveFinite = Field(1.0, description="factor of the variance between members, in energies and forces")
    fitted_for: str | None = Field(None, description="kind of the noise model that it was fitted for; null if unknown")
    stress_diagonal: PositiveFinite | None = Field(
        None, description="factor of the rest of the stress variances; null for that of the forces"
    )

    @property
    def is_coherent(self) -> bool:
        """True."""
        return True

    def require_fit(self, kind: str) -> None:
        """Raise if the calibration was fitted for another kind of noise model, whose parts mean something else."""
        if self.fitted_for not in (None, kind):
            raise HuefieldError(
                f"this calibration was fitted for the noise model {self.fitted_for}, but the model has {kind}: fit it "
                "again with `huefield calibrate`"
            )

    def in_words(self) -> str:
        """Factors and tails in one sentence."""
        factors = {
            "noise": self.noise,
            "rest of energies": self.energy_diagonal,
            "rest of forces": self.force_diagonal,
            "members": self.spread,
        }
        dof = {"energies": self.tails.energy, "forces": self.tails.forces, "a structure": self.tails.joint}
        if self.stress_diagonal is not None:
            factors["rest of stresses"], dof["stresses"] = self.stress_diagonal, self.tails.stress
        listed = ", ".join(f"{name} {factor:.3g}" for name, factor in factors.items())
        tails = ", ".join(f"{name} {'normal' if nu is None else f'{nu:.3g}'}" for name, nu in dof.items())
        return f"factors of the variances: {listed}; ν of the Student t distributions of errors: {tails}"

    def scaling(self, distribution: Gaussian) -> Scaling:
        """The factors, for each energy and force."""

        def spread_out(energy: float, forces: float, stress: float) -> EnergyForces:
            mean = distribution.mean
            strain = None if mean.strain is None else jnp.full_like(mean.strain, stress)
            return EnergyForces(jnp.full_like(mean.energy, energy), jnp.full_like(mean.forces, forces), strain)

        return Scaling(
            columns=spread_out(self.noise, self.noise, self.noise),
            diagonal=spread_out(self.energy_diagonal, self.force_diagonal, self.stress_diagonal or self.force_diagonal),
            spread=spread_out(self.spread, self.spread, self.spread),
        )

    def energy_scaling(self, total_var: Variances) -> tuple[Variances, ...]:
        """The factors of the energy."""
        return tuple(np.full_like(total_var, factor) for factor in (self.noise, self.energy_diagonal, self.spread))

    def force_scaling(self, total_var: Float[np.ndarray, "A 3"]) -> tuple[Float[np.ndarray, "A 3"], ...]:
        """The factors of forces."""
        return tuple(np.full_like(total_var, factor) for factor in (self.noise, self.force_diagonal, self.spread))

    @property
    def largest_coverage(self) -> float:
        """1: quantiles of a distribution exist for every coverage."""
        return 1.0

    def interval_widths(self, coverage: float) -> tuple[float, float]:
        """Quantiles of the distributions of energies and of forces."""
        return interval_width(coverage, self.tails.energy), interval_width(coverage, self.tails.forces)

    def difference_width(self, coverage: float) -> float:
        """Quantiles of the distribution of energies."""
        return interval_width(coverage, self.tails.energy)

    @property
    def difference_scale(self) -> float:
        """1: differences use the same numbers as energies."""
        return 1.0


class EnergyForcesCalibration(AbstractJointCalibration):
    """Calibration of the variances of energies and of force components, separately: not coherent.

    The covariance Σ of a structure becomes S Σ S with S² = diag(calibrated variance / predicted variance): aleatoric
    and epistemic parts, samples and linear observables are scaled with the same factors. The three force components of
    an atom share one factor, given by their mean variance; otherwise error bars would depend on the orientation.

    Correlations between energies and forces keep their values, but since both have factors of their own, the force
    noise is no longer the derivative of the energy noise: a joint sample of a calibrated model has the right size in
    each entry, and its energies and forces do not belong to one energy surface. :class:`CoherentCalibration` keeps them
    together.
    """

    kind: Literal["separate"] = "separate"
    energy: CalibrationConfig | None = Field(None, description="calibration of energies; None for none")
    forces: CalibrationConfig | None = Field(None, description="calibration of force components; None for none")
    differences: ConformalCalibration | None = Field(
        None,
        description="calibration of energy differences between structures of the same atoms, in addition to that of "
        "energies; None for none",
    )

    @property
    def is_coherent(self) -> bool:
        """Whether nothing is calibrated."""
        return self.energy is None and self.forces is None

    def scaling(self, distribution: Gaussian) -> Scaling:
        """Ratio of calibrated to predicted variance of each quantity, for all parts; 1 where the variance is zero.

        The strain derivative has the ratio of the summed force variances of its structure.
        """
        variance = distribution.variance()
        energy = _factor(self.energy, variance.energy)
        of_atoms = _factor(self.forces, jnp.mean(variance.forces, axis=1))[:, None]
        forces = jnp.broadcast_to(of_atoms, variance.forces.shape)
        if variance.strain is None:
            return Scaling.of_all(EnergyForces(energy, forces))
        old, new = (jnp.sum(each, axis=1) for each in (variance.forces, forces * variance.forces))
        total = _ratio(distribution.partition.sum(new), distribution.partition.sum(old))
        strain = jnp.broadcast_to(total[:, None, None], variance.strain.shape)
        return Scaling.of_all(EnergyForces(energy, forces, strain))

    def energy_scaling(self, total_var: Variances) -> tuple[Variances, ...]:
        """The ratio of calibrated to predicted variance, for all parts."""
        return (_host_factor(self.energy, total_var),) * 3

    def force_scaling(self, total_var: Float[np.ndarray, "A 3"]) -> tuple[Float[np.ndarray, "A 3"], ...]:
        """The ratio of the mean variances of an atom, for all its components and all parts."""
        return (_host_factor(self.forces, isotropic_var(total_var)),) * 3

    @property
    def largest_coverage(self) -> float:
        """The largest coverage for which conformal intervals are known."""
        kept = (each.coverages[-1] for each in (self.energy, self.forces) if isinstance(each, ConformalCalibration))
        return min(kept, default=1.0)

    def interval_widths(self, coverage: float) -> tuple[float, float]:
        """Normal quantiles, or those of conformal intervals."""
        return (
            _widths(self.energy, coverage, self.tails.energy),
            _widths(self.forces, coverage, self.tails.forces),
        )

    def difference_width(self, coverage: float) -> float:
        """Quantiles of observed differences, or normal ones."""
        if self.differences is None:
            return interval_width(coverage, self.tails.energy)
        return self.differences.width(coverage)

    @property
    def difference_scale(self) -> float:
        """Half-width of the interval that covers 68.27 % of observed differences."""
        return 1.0 if self.differences is None else self.differences.width(ONE_SIGMA)


def _kind(value: Any) -> str:
    """The kind of a calibration; files of older versions do not name it."""
    return str(value.get("kind", "separate") if isinstance(value, dict) else value.kind)


JointCalibration = Annotated[
    Annotated[CoherentCalibration, Tag("coherent")] | Annotated[EnergyForcesCalibration, Tag("separate")],
    Discriminator(_kind),
]


def isotropic_var(variance: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Variances that a calibration is applied to: of energies, or for forces the mean over an atom's components."""
    if variance.ndim == 1:
        return variance
    return np.broadcast_to(variance.mean(-1, keepdims=True), variance.shape)


def _factor(calibration: CalibrationConfig | None, variance: Float[Array, " n"]) -> Float[Array, " n"]:
    return jnp.ones_like(variance) if calibration is None else _ratio(calibration.traced(variance), variance)


def _host_factor(calibration: CalibrationConfig | None, variance: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    factor = np.ones(variance.shape)
    return factor if calibration is None else np.divide(calibration(variance), variance, out=factor, where=variance > 0)


def _ratio(new: Float[Array, "*n"], old: Float[Array, "*n"]) -> Float[Array, "*n"]:
    return jnp.where(old > 0, safe_divide(new, old), 1.0)


def _widths(calibration: CalibrationConfig | None, coverage: float, dof: float | None) -> float:
    if isinstance(calibration, ConformalCalibration):
        return calibration.width(coverage) / calibration.width(ONE_SIGMA)
    return interval_width(coverage, dof)
