"""How far off predictions are, and how well their variances say so. Pure functions of arrays of any equal shape.

Errors are target − mean. σ is the predicted standard deviation, the root of the variance; Φ and φ are distribution and
density of the unit normal. A metric that these numbers do not determine raises
:class:`~huefield.evaluation.entries.UndefinedMetricError`.

[J23] arXiv:2312.04174v1, appendix "Reliability Diagrams and Uncertainty Metrics".
[G07] Gneiting and Raftery, J. Am. Stat. Assoc. 102, 359 (2007).
[T20] Tran et al., Mach. Learn.: Sci. Technol. 1, 025006 (2020), arXiv:1912.10066.
[I18] Ilg et al., ECCV 2018, arXiv:1802.07095.
[F06] Fawcett, Pattern Recognit. Lett. 27, 861 (2006).
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import erf

from huefield.evaluation.curves import LEVELS, coverage_curve, reliability
from huefield.evaluation.entries import (
    UndefinedMetricError,
    checked_error,
    checked_pair,
    checked_variance,
    defined_mean,
    in_sigmas,
)
from huefield.evaluation.ranking import WORST, Ranking, auroc, spearman


def mae(error: ArrayLike) -> float:
    """Mean absolute error: mean |error|."""
    return defined_mean(np.abs(checked_error(error)))


def rmse(error: ArrayLike) -> float:
    """Root mean squared error: sqrt(mean(error²))."""
    with np.errstate(over="ignore"):
        return float(np.sqrt(defined_mean(checked_error(error) ** 2)))


def gaussian_nll(error: ArrayLike, variance: ArrayLike) -> float:
    """[J23] Eqs. nll_energy and nll_force, averaged: mean of ½ (error²/σ² + log σ² + log 2π)."""
    return defined_mean(nll_terms(*checked_pair(error, variance, positive=True)))


def nll_terms(error: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The negative log-likelihood of each entry."""
    with np.errstate(over="ignore"):
        terms = error**2 / variance
    terms += np.log(variance)
    terms += np.log(2 * np.pi)
    terms *= 0.5
    return terms


def zscores(error: ArrayLike, variance: ArrayLike) -> Float[np.ndarray, " n"]:
    """[J23] z = error/σ, flat."""
    return in_sigmas(*checked_pair(error, variance, positive=True))


def rzv(error: ArrayLike, variance: ArrayLike) -> float:
    """[J23] Root of the z-score variance: sqrt(mean((z − mean z)²)). One if variances are right on the whole.

    It takes two entries at least: one alone has no spread.
    """
    z = zscores(error, variance)
    require_spread(z)
    z -= defined_mean(z)
    with np.errstate(over="ignore"):
        return float(np.sqrt(defined_mean(z**2)))


def ence(error: ArrayLike, variance: ArrayLike, bins: int = 10) -> float:
    """[J23] Expected normalised calibration error: mean over equal-count bins of |RMV_k − RMSE_k| / RMV_k.

    The bins are those of :func:`~huefield.evaluation.curves.reliability`.
    """
    return reliability(error, variance, bins).ence


def coefficient_of_variation(variance: ArrayLike) -> float:
    """[J23] CV = sqrt(mean((σ − mean σ)²)) / mean σ. Zero if all entries have the same uncertainty.

    It takes two entries at least, as :func:`rzv` does.
    """
    sigma = np.sqrt(checked_variance(variance))
    require_spread(sigma)
    mean = defined_mean(sigma)
    if mean == 0:
        raise UndefinedMetricError("all variances are zero")
    return float(np.sqrt(np.mean((sigma - mean) ** 2)) / mean)


def rmv(variance: ArrayLike) -> float:
    """[J23] Root mean variance: sqrt(mean σ²)."""
    return float(np.sqrt(defined_mean(checked_variance(variance))))


def sharpness(variance: ArrayLike) -> float:
    """[T20] sqrt(mean σ²): the very number that [J23] calls RMV, here under its other name."""
    return rmv(variance)


def crps(error: ArrayLike, variance: ArrayLike) -> float:
    """[G07] Section 4.2, averaged: mean of σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π], or |error| where σ is zero.

    Smaller is better (there the sign is the opposite one).
    """
    return defined_mean(crps_terms(*checked_pair(error, variance)))


def crps_terms(error: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The continuous ranked probability score of each entry."""
    z = in_sigmas(error, variance)
    terms = error * erf(z / np.sqrt(2))  # σ z (2Φ(z) − 1), which has a limit
    with np.errstate(over="ignore"):
        terms += np.sqrt(variance) * (np.sqrt(2 / np.pi) * np.exp(-0.5 * z**2) - 1 / np.sqrt(np.pi))
    return terms


def coverage(error: ArrayLike, variance: ArrayLike, level: float) -> float:
    """Fraction of |error| ≤ σ Φ⁻¹((1 + level)/2): of targets in the central interval of this probability.

    An interval of zero width covers nothing but an exact hit.
    """
    return float(coverage_curve(error, variance, [level]).observed[0])


def miscalibration_area(error: ArrayLike, variance: ArrayLike) -> float:
    """[T20] ∫ |coverage(level) − level| d level from 0 to 1, by trapezoids between 100 levels. Zero to one half."""
    return coverage_curve(error, variance, LEVELS).area


def rank_correlation(error: ArrayLike, variance: ArrayLike) -> float:
    """Spearman's correlation of σ and |error|: Pearson's of their ranks; equal values share their mean rank."""
    return spearman(_ranking(error, variance))


def retention_area(error: ArrayLike, variance: ArrayLike) -> float:
    """Area under the error-retention (sparsification [I18]) curve: mean over k of MAE_k, k = 1 ... n.

    MAE_k is the mean absolute error of the k entries with the smallest variances, averaged over the orders that equal
    variances may have. Variances that say nothing give the MAE of all entries; useful ones less.
    """
    return defined_mean(_ranking(error, variance).kept_mae())


def auroc_of_worst(error: ArrayLike, variance: ArrayLike, worst: float = WORST) -> float:
    """Area under the receiver operating characteristic [F06] for finding the entries with the largest |error| by σ.

    It is the probability that one of the worst has a larger variance than one of the others; equal ones count half.
    """
    return auroc(_ranking(error, variance), worst)


def require_spread(values: Float[np.ndarray, " n"]) -> None:
    """Raise unless there are enough entries for them to differ."""
    if len(values) < 2:
        raise UndefinedMetricError("one entry alone has no spread: it takes two at least")


def _ranking(error: ArrayLike, variance: ArrayLike) -> Ranking:
    return Ranking.of(*checked_pair(error, variance))
