"""Calibration of a joint distribution of energies and forces."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from pydantic import Field
from scipy.special import ndtri

from huefield.core import EnergyForces, Gaussian
from huefield.core.lowrank import safe_divide
from huefield.model.calibration import ONE_SIGMA, CalibrationConfig, ConformalCalibration
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError


class EnergyForcesCalibration(FrozenConfig):
    """Calibration of the variances of energies and of force components.

    The covariance Σ of a structure becomes S Σ S with S² = diag(calibrated variance / predicted variance): aleatoric
    and epistemic parts, samples and linear observables are scaled with the same factors. The three force components of
    an atom share one factor, given by their mean variance; otherwise error bars would depend on the orientation.

    Calibration scales marginal variances. Correlations between energies and forces keep their values, but since both
    have factors of their own, the force noise is no longer the derivative of the energy noise: a joint sample of a
    calibrated model has the right size in each entry, and its energies and forces do not belong to one energy surface.
    Where that matters, use the uncalibrated model or refit γ (:class:`~huefield.model.calibration.GammaCalibration`).
    """

    energy: CalibrationConfig | None = Field(None, description="calibration of energies; None for none")
    forces: CalibrationConfig | None = Field(None, description="calibration of force components; None for none")
    differences: ConformalCalibration | None = Field(
        None,
        description="calibration of energy differences between structures of the same atoms, in addition to that of "
        "energies; None for none",
    )

    def factors(self, distribution: Gaussian) -> EnergyForces:
        """Ratio of calibrated to predicted variance of each quantity; 1 where the variance is zero.

        The strain derivative has the ratio of the summed force variances of its structure.
        """
        variance = distribution.variance()
        energy = _factor(self.energy, variance.energy)
        of_atoms = _factor(self.forces, jnp.mean(variance.forces, axis=1))[:, None]
        forces = jnp.broadcast_to(of_atoms, variance.forces.shape)
        if variance.strain is None:
            return EnergyForces(energy, forces)
        old, new = (jnp.sum(each, axis=1) for each in (variance.forces, forces * variance.forces))
        total = _ratio(distribution.partition.sum(new), distribution.partition.sum(old))
        return EnergyForces(energy, forces, jnp.broadcast_to(total[:, None, None], variance.strain.shape))

    def energy_factors(self, variance: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Ratio of calibrated to predicted variance of energies."""
        return np.asarray(_factor(self.energy, jnp.asarray(variance)), float)

    @property
    def largest_coverage(self) -> float:
        """The largest coverage for which intervals can be given."""
        kept = (each.coverages[-1] for each in (self.energy, self.forces) if isinstance(each, ConformalCalibration))
        return min(kept, default=1.0)

    def interval_widths(self, coverage: float) -> tuple[float, float]:
        """Half-widths of the intervals of an energy and of a force component, in units of their calibrated σ."""
        return _widths(self.energy, coverage), _widths(self.forces, coverage)

    def difference_width(self, coverage: float) -> float:
        """Half-width of the interval of an energy difference, in units of its σ from calibrated energies."""
        return normal_width(coverage) if self.differences is None else self.differences.width(coverage)


def isotropic_var(variance: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Variances that a calibration is applied to: of energies, or for forces the mean over an atom's components."""
    if variance.ndim == 1:
        return variance
    return np.broadcast_to(variance.mean(-1, keepdims=True), variance.shape)


def _factor(calibration: CalibrationConfig | None, variance: Float[Array, " n"]) -> Float[Array, " n"]:
    return jnp.ones_like(variance) if calibration is None else _ratio(calibration.traced(variance), variance)


def _ratio(new: Float[Array, "*n"], old: Float[Array, "*n"]) -> Float[Array, "*n"]:
    return jnp.where(old > 0, safe_divide(new, old), 1.0)


def normal_width(coverage: float) -> float:
    """Half-width of the central interval of a normal distribution with this coverage, in units of σ."""
    if not 0 < coverage < 1:
        raise HuefieldError(f"coverage must lie between 0 and 1, but is {coverage:g}")
    return float(ndtri(0.5 * (1 + np.float64(coverage))))


def _widths(calibration: CalibrationConfig | None, coverage: float) -> float:
    if isinstance(calibration, ConformalCalibration):
        return calibration.width(coverage) / calibration.width(ONE_SIGMA)
    return normal_width(coverage)
