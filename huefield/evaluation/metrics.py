"""Metrics of errors and predicted variances: pure functions of arrays of equal shape.

Errors are target − mean. σ is the predicted standard deviation; Φ and φ are the distribution function and the density
of the standard normal distribution. Metrics of the whole distribution take ``dof``, the degrees of freedom ν of a
Student t distribution with the standard deviation σ; None stands for a normal one (:mod:`huefield.core.tails`).
An undefined metric raises :class:`~huefield.evaluation.entries.UndefinedMetricError`. Metrics of whole curves, ENCE
among them, are computed in :mod:`huefield.evaluation.curves`.

[J23] arXiv:2312.04174v1, appendix "Reliability Diagrams and Uncertainty Metrics".
[G07] Gneiting and Raftery, J. Am. Stat. Assoc. 102, 359 (2007).
[T20] Tran et al., Mach. Learn.: Sci. Technol. 1, 025006 (2020), arXiv:1912.10066.
[I18] Ilg et al., ECCV 2018, arXiv:1802.07095.
[F06] Fawcett, Pattern Recognit. Lett. 27, 861 (2006).
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from huefield.core.tails import crps_terms, interval_width, nll_terms, require_dof
from huefield.evaluation.curves import CURVE_COVERAGES, coverage_curve, reliability
from huefield.evaluation.entries import (
    UndefinedMetricError,
    checked_error,
    checked_pair,
    checked_variance,
    defined_mean,
    in_sigmas,
)
from huefield.evaluation.ranking import WORST_FRACTION, Ranking, auroc, spearman
from huefield.support.defaults import BINS


def mae(error: ArrayLike) -> float:
    """Mean absolute error: mean |error|."""
    return defined_mean(np.abs(checked_error(error)))


def rmse(error: ArrayLike) -> float:
    """Root mean squared error: sqrt(mean(error²))."""
    with np.errstate(over="ignore"):
        return float(np.sqrt(defined_mean(checked_error(error) ** 2)))


def gaussian_nll(error: ArrayLike, variance: ArrayLike) -> float:
    """[J23] Mean of Eqs. nll_energy and nll_force: mean of ½ (error²/σ² + log σ² + log 2π)."""
    return nll(error, variance)


def nll(error: ArrayLike, variance: ArrayLike, dof: float | None = None) -> float:
    """Mean negative log density of the errors, normal or Student t: :func:`huefield.core.tails.nll_terms`."""
    require_dof(dof)
    return defined_mean(nll_terms(*checked_pair(error, variance, positive=True), dof))


def zscores(error: ArrayLike, variance: ArrayLike) -> Float[np.ndarray, " n"]:
    """[J23] z = error/σ as a flat array."""
    return in_sigmas(*checked_pair(error, variance, positive=True))


def rzv(error: ArrayLike, variance: ArrayLike) -> float:
    """[J23] Standard deviation of the z-scores, sqrt(mean((z − mean z)²)); 1 if variances are right on average.

    It needs at least two entries.
    """
    z = zscores(error, variance)
    require_spread(z)
    z -= defined_mean(z)
    with np.errstate(over="ignore"):
        return float(np.sqrt(defined_mean(z**2)))


def ence(error: ArrayLike, variance: ArrayLike, bins: int = BINS) -> float:
    """[J23] Expected normalised calibration error: mean over equal-count bins of |RMV_k − RMSE_k| / RMV_k.

    The bins are those of :func:`~huefield.evaluation.curves.reliability`.
    """
    return reliability(error, variance, bins).ence


def coefficient_of_variation(variance: ArrayLike) -> float:
    """[J23] CV = sqrt(mean((σ − mean σ)²)) / mean σ. Zero if all entries have the same uncertainty.

    It needs at least two entries.
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
    """[T20] sqrt(mean σ²), which [J23] calls RMV."""
    return rmv(variance)


def crps(error: ArrayLike, variance: ArrayLike, dof: float | None = None) -> float:
    """[G07] Section 4.2: mean of σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π], or |error| for σ = 0.

    Smaller is better; [G07] uses the opposite sign. That of a t distribution is in :mod:`huefield.core.tails`.
    """
    require_dof(dof)
    return defined_mean(crps_terms(*checked_pair(error, variance), dof))


def interval_score(error: ArrayLike, variance: ArrayLike, nominal: float, dof: float | None = None) -> float:
    """[G07] Eq. (43): mean of 2w + 2/(1 − nominal) max(|error| − w, 0), where w is the half-width of the interval.

    Smaller is better: wide intervals cost their width, narrow ones the distance of errors outside of them.
    """
    errors, variances = checked_pair(error, variance)
    half_widths = interval_width(nominal, dof) * np.sqrt(variances)
    return defined_mean(2 * half_widths + 2 / (1 - nominal) * np.maximum(np.abs(errors) - half_widths, 0.0))


def coverage(error: ArrayLike, variance: ArrayLike, nominal: float, dof: float | None = None) -> float:
    """Fraction of targets in the central interval with this nominal coverage: |error| ≤ σ Φ⁻¹((1 + nominal)/2).

    With ``dof``, the quantile is that of the t distribution. An interval of zero width covers only an exact hit.
    """
    return float(coverage_curve(error, variance, [nominal], dof).observed[0])


def miscalibration_area(error: ArrayLike, variance: ArrayLike, dof: float | None = None) -> float:
    """[T20] ∫ |coverage(c) − c| dc from 0 to 1, by trapezoids between 100 nominal coverages c. Between 0 and 1/2."""
    return coverage_curve(error, variance, CURVE_COVERAGES, dof).area


def rank_correlation(error: ArrayLike, variance: ArrayLike) -> float:
    """Spearman's rank correlation of σ and |error|; ties share their mean rank."""
    return spearman(*checked_pair(error, variance))


def retention_area(error: ArrayLike, variance: ArrayLike) -> float:
    """Area under the error-retention (sparsification [I18]) curve: mean over k of MAE_k, k = 1 ... n.

    MAE_k is the mean absolute error of the k entries with the smallest variances, averaged over the possible orders of
    ties. Uninformative variances give the MAE of all entries; informative ones give less.
    """
    return defined_mean(_ranking(error, variance).kept_mae())


def auroc_of_worst(error: ArrayLike, variance: ArrayLike, worst: float = WORST_FRACTION) -> float:
    """Area under the receiver operating characteristic [F06] for finding the entries with the largest |error| by σ.

    This is the probability that one of the worst entries has a larger variance than one of the others; ties count half.
    """
    return auroc(_ranking(error, variance), worst)


def require_spread(values: Float[np.ndarray, " n"]) -> None:
    """Raise unless there are at least two entries."""
    if len(values) < 2:
        raise UndefinedMetricError("a single entry has no spread: at least two are needed")


def _ranking(error: ArrayLike, variance: ArrayLike) -> Ranking:
    return Ranking.of(*checked_pair(error, variance))
