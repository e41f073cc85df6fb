r"""How error/σ is distributed: normally, or as a Student t with heavier tails.

Degrees of freedom ν say how heavy the tails are; None stands for the normal distribution, the limit ν → ∞. All
functions take the *variance* σ² of the distribution, also where ν is given: the t distribution then has the scale
s = σ √((ν − 2)/ν). A Student-t process is a Gaussian process times a random number, √(ν/χ²_ν) [S14]: it is closed under
differentiation, so that energies and forces have one t distribution as they have one Gaussian.

[S14] Shah, Wilson, Ghahramani, AISTATS 2014, arXiv:1402.4306: Student-t processes.
[J23] arXiv:2312.04174v1, appendix "Reliability Diagrams and Uncertainty Metrics".
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
STIRLING_FROM = 10.0
"""Argument of Γ from which Stirling's series is used."""


def require_dof(dof: float | None) -> None:
    """Raise for degrees of freedom without a variance."""
    if dof is not None and not dof >= FEWEST_DOF:
        raise HuefieldError(f"degrees of freedom must be at least {FEWEST_DOF}, for a variance to exist, not {dof:g}")


def interval_width(coverage: float, dof: float | None = None) -> float:
    """Half-width of the central interval with this coverage, in units of σ."""
    if not 0 < coverage < 1:
        raise HuefieldError(f"coverage must lie between 0 and 1, but is {coverage:g}")
    require_dof(dof)
    return float(standard_quantile(np.array([0.5 * (1 + coverage)]), dof)[0])


def standard_quantile(probability: Float[np.ndarray, "*n"], dof: float | None = None) -> Float[np.ndarray, "*n"]:
    """Quantiles of error/σ."""
    if dof is None:
        return special.ndtri(probability)
    quantile = special.stdtrit(dof, probability) * np.sqrt((dof - 2) / dof)
    return np.where(probability == 0, -np.inf, quantile)  # stdtrit has the wrong sign there


def standard_density(z: Float[np.ndarray, "*n"], dof: float | None = None) -> Float[np.ndarray, "*n"]:
    """Density of error/σ."""
    return np.exp(-nll_terms(z, np.ones_like(z), dof))


def log_density_with_tails(
    residual: Float[Array, "*n"], variance: Float[Array, "*n"], dof: float | Float[Array, ""] | None
) -> Float[Array, "*n"]:
    """Log density of each residual.

    The t density divides by σ before it squares: its derivatives by σ² are then finite for tiny σ² in single precision.
    """
    if dof is None:
        return log_density(residual, variance)
    one = jnp.ones_like(residual)
    return joint_log_density((residual / jnp.sqrt(variance)) ** 2, jnp.log(variance), one, dof)


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
    normalisation = _log_gamma_ratio(0.5 * jnp.asarray(dof, count.dtype), 0.5 * count)
    return normalisation - 0.5 * (log_det + count * LOG_2PI) - half * jnp.log1p(quadratic / (dof - 2.0))


def _log_gamma_ratio(a: Float[Array, ""], b: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Log of Γ(a + b) / Γ(a) / (a − 1)^b, also in single precision.

    For large a, both Γ are huge and the ratio is close to 1: Stirling's series for both, less the terms that cancel.
    """
    large = jnp.maximum(a, STIRLING_FROM)
    correction = (1 / (large + b) - 1 / large) / 12 - (1 / (large + b) ** 3 - 1 / large**3) / 360
    series = (large + b - 0.5) * jnp.log1p(b / large) - b - b * jnp.log1p(-1 / large) + correction
    small = jnp.minimum(a, STIRLING_FROM)
    plain = gammaln(small + b) - gammaln(small) - b * jnp.log(small - 1)
    return jnp.where(a > STIRLING_FROM, series, plain)


def nll_terms(
    error: Float[np.ndarray, "*n"], variance: Float[np.ndarray, "*n"], dof: float | None = None
) -> Float[np.ndarray, "*n"]:
    """Negative log density of each error.

    Normal: ½ (error²/σ² + log 2πσ²), [J23] Eqs. nll_energy and nll_force. Student t:

        log Γ(ν/2) − log Γ((ν + 1)/2) + ½ log(π (ν − 2) σ²) + ½ (ν + 1) log(1 + error²/((ν − 2) σ²)).
    """
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
    """[J19] for a t distribution of unit variance, with t = z/s, the distribution function F and the density f of t.

        s [t (2F(t) − 1) + 2f(t) (ν + t²)/(ν − 1) − 2 √ν B(½, ν − ½)/((ν − 1) B(½, ν/2)²)]

    f(t) (ν + t²) is computed as f(0) ν (1 + t²/ν)^((1 − ν)/2): no product of zero and infinity for large t.
    """
    scale = np.sqrt((dof - 2) / dof)
    t = z / scale
    beta = special.beta(0.5, 0.5 * dof)  # f(0) = 1/(√ν B(½, ν/2))
    bulk = 2 * np.sqrt(dof) / (beta * (dof - 1)) * np.exp(0.5 * (1 - dof) * np.log1p(t**2 / dof))
    spread = 2 * np.sqrt(dof) / (dof - 1) * special.beta(0.5, dof - 0.5) / beta**2
    return scale * (t * (2 * special.stdtr(dof, t) - 1) + bulk - spread)
