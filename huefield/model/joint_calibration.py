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
    """How the variances of energies and of force components are calibrated.

    The covariance Σ of a structure becomes S Σ S with S² = diag(calibrated variance / predicted variance): both parts
    of the uncertainty, their columns, samples and linear observables are scaled with the same factors. The three force
    components of an atom have one factor, by their mean variance, or error bars would depend on how a structure is
    turned. As energies and forces have factors of their own, force noise is the derivative of energy noise no longer;
    refit γ (:class:`~huefield.model.calibration.GammaCalibration`) where that matters.
    """

    energy: CalibrationConfig | None = Field(None, description="of energies; None to leave them")
    forces: CalibrationConfig | None = Field(None, description="of force components; None to leave them")
    differences: ConformalCalibration | None = Field(
        None, description="of differences of energies of the same atoms, beyond that of energies; None to leave them"
    )

    def factors(self, distribution: Gaussian) -> EnergyForces:
        """Calibrated over predicted variance of each quantity, 1 where it is zero.

        The strain derivative has the factor of the forces of its structure together.
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
        """Calibrated over predicted variance of energies."""
        return np.asarray(_factor(self.energy, jnp.asarray(variance)), float)

    @property
    def most_promised(self) -> float:
        """The largest share of observations that intervals can be given for."""
        kept = (each.coverages[-1] for each in (self.energy, self.forces) if isinstance(each, ConformalCalibration))
        return min(kept, default=1.0)

    def interval_widths(self, coverage: float) -> tuple[float, float]:
        """How many calibrated σ of an energy and of a force component an interval has to each side."""
        return _widths(self.energy, coverage), _widths(self.forces, coverage)

    def difference_width(self, coverage: float) -> float:
        """How many σ, as energies calibrated alone give it, an interval of a difference has to each side."""
        return normal_width(coverage) if self.differences is None else self.differences.width(coverage)


def atom_level(variance: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """What a calibration looks at, for each entry: the variance of an energy, or the mean one of an atom's force."""
    if variance.ndim == 1:
        return variance
    return np.broadcast_to(variance.mean(-1, keepdims=True), variance.shape)


def _factor(calibration: CalibrationConfig | None, level: Float[Array, " n"]) -> Float[Array, " n"]:
    return jnp.ones_like(level) if calibration is None else _ratio(calibration.traced(level), level)


def _ratio(new: Float[Array, "*n"], old: Float[Array, "*n"]) -> Float[Array, "*n"]:
    return jnp.where(old > 0, safe_divide(new, old), 1.0)


def normal_width(coverage: float) -> float:
    """How many σ to each side of its mean hold this share of a normal distribution."""
    if not 0 < coverage < 1:
        raise HuefieldError(f"a share of observations lies between 0 and 1, but coverage is {coverage:g}")
    return float(ndtri(0.5 * (1 + np.float64(coverage))))


def _widths(calibration: CalibrationConfig | None, coverage: float) -> float:
    if isinstance(calibration, ConformalCalibration):
        return calibration.width(coverage) / calibration.width(ONE_SIGMA)
    return normal_width(coverage)
