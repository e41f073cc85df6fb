r"""How error/σ is distributed: normally, or as a Student t with heavier tails.

Degrees of freedom ν say how heavy the tails are; None stands for the normal distribution, the limit ν → ∞. All
functions take the *variance* σ² of the distribution, also where ν is given: the t distribution then has the scale
s = σ √((ν − 2)/ν). A Student-t process is a Gaussian process times a random number, √(ν/χ²_ν) [S14]: it is closed under
differentiation, so that energies and forces have one t distribution as they have one Gaussian.

[S14] Shah, Wilson, Ghahramani, AISTATS 2014, arXiv:1402.4306: Student-t processes.
[J19] Jordan, Krüger, Lerch, J. Stat. Softw. 90, 12 (2019): CRPS of a t distribution.
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float
from scipy import special

from huefield.core.lowrank import LOG_2PI, log_density
from huefield.support.errors import HuefieldError

FEWEST_DOF = 2.05
"""Smallest ν: a t distribution has a variance for ν > 2 only."""


def require_dof(dof: float | None) -> None:
    """Raise for degrees of freedom without a variance."""
    if dof is not None and not dof >= FEWEST_DOF:
        raise HuefieldError(f"degrees of freedom must be at least {FEWEST_DOF}, for a variance to exist, not {dof:g}")


def interval_width(coverage: float, dof: float | None = None) -> float:
    """Half-width of the central interval with this coverage, in units of σ."""
    if not 0 < coverage < 1:
        raise HuefieldError(f"coverage must lie between 0 and 1, but is {coverage:g}")
    require_dof(dof)
    return float(standard_quantile(np.asarray(0.5 * (1 + np.float64(coverage))), dof))


def standard_quantile(probability: Float[np.ndarray, "*n"], dof: float | None = None) -> Float[np.ndarray, "*n"]:
    """Quantiles of error/σ."""
    if dof is None:
        return special.ndtri(probability)
    return special.stdtrit(dof, probability) * np.sqrt((dof - 2) / dof)


def log_density_with_tails(
    residual: Float[Array, "*n"], variance: Float[Array, "*n"], dof: float | Float[Array, ""] | None
) -> Float[Array, "*n"]:
    """Log density of each residual."""
    if dof is None:
        return log_density(residual, variance)
    one = jnp.ones((), residual.dtype)
    return joint_log_density(residual**2 / variance, jnp.log(variance), one, dof)


def joint_log_density(
    quadratic: Float[Array, "*n"],
    log_det: Float[Array, "*n"],
    count: Float[Array, "*n"],
    dof: float | Float[Array, ""] | None,
) -> Float[Array, "*n"]:
    """Log density of several values together.

    Args:
        quadratic: rᵀ Σ⁻¹ r of the residuals r with their covariance Σ.
        log_det: log det Σ.
        count: number of values.
        dof: ν of the random scale that all of them share.
    """
    if dof is None:
        return -0.5 * (quadratic + log_det + count * LOG_2PI)
    half = 0.5 * (dof + count)
    normalisation = gammaln(half) - gammaln(0.5 * jnp.asarray(dof)) - 0.5 * count * jnp.log(jnp.pi * (dof - 2.0))
    return normalisation - 0.5 * log_det - half * jnp.log1p(quadratic / (dof - 2.0))


def nll_terms(
    error: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"], dof: float | None = None
) -> Float[np.ndarray, " n"]:
    """Negative log density of each error; for None [J23] Eqs. nll_energy and nll_force."""
    with np.errstate(over="ignore"):
        squared = error**2 / variance
    if dof is None:
        return 0.5 * (squared + np.log(variance) + LOG_2PI)
    constant = special.gammaln(0.5 * dof) - special.gammaln(0.5 * (dof + 1)) + 0.5 * np.log(np.pi * (dof - 2))
    return constant + 0.5 * np.log(variance) + 0.5 * (dof + 1) * np.log1p(squared / (dof - 2))


def crps_terms(
    error: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"], dof: float | None = None
) -> Float[np.ndarray, " n"]:
    """Continuous ranked probability score of each error, |error| where the variance is zero."""
    noisy = variance > 0
    deviation = np.sqrt(np.where(noisy, variance, 1.0))
    with np.errstate(over="ignore"):
        z = np.where(noisy, error / deviation, 0.0)
        score = _standard_crps(z) if dof is None else _student_crps(z, dof)
        return np.where(noisy, deviation * score, np.abs(error))


def _standard_crps(z: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Z (2Φ(z) − 1) + 2φ(z) − 1/√π."""
    return z * special.erf(z / np.sqrt(2)) + np.sqrt(2 / np.pi) * np.exp(-0.5 * z**2) - 1 / np.sqrt(np.pi)


def _student_crps(z: Float[np.ndarray, " n"], dof: float) -> Float[np.ndarray, " n"]:
    """[J19] for a t distribution of unit variance."""
    scale = np.sqrt((dof - 2) / dof)
    t = z / scale
    log_density_of_t = -nll_terms(t, np.full_like(t, dof / (dof - 2)), dof)
    away = t * (2 * special.stdtr(dof, t) - 1) + 2 * np.exp(log_density_of_t) * (dof + t**2) / (dof - 1)
    spread = 2 * np.sqrt(dof) / (dof - 1) * special.beta(0.5, dof - 0.5) / special.beta(0.5, 0.5 * dof) ** 2
    return scale * (away - spread)
