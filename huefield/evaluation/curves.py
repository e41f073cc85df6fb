"""Curves that show where variances are right and where not, as frozen arrays that can be drawn.

[J23] arXiv:2312.04174v1, appendix "Reliability Diagrams and Uncertainty Metrics".
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from huefield.core.tails import require_dof, standard_quantile
from huefield.evaluation.entries import UndefinedMetricError, checked_pair, in_sigmas
from huefield.evaluation.ranking import Ranking, running_mean
from huefield.support.checks import require_positive
from huefield.support.errors import HuefieldError

CURVE_COVERAGES = np.linspace(0.0, 1.0, 100)
"""Nominal coverages of coverage curves."""
Z_EDGES = np.linspace(-5.0, 5.0, 81)
"""Bin edges of z-score histograms."""


@dataclass(frozen=True, eq=False)
class Reliability:
    """Reliability diagram [J23]: bins of equal counts, sorted by variance."""

    count: Int[np.ndarray, " K"]
    """Number of entries in each bin."""
    rmv: Float[np.ndarray, " K"]
    """Root mean variance of each bin."""
    rmse: Float[np.ndarray, " K"]
    """Root mean squared error of each bin."""

    @property
    def ence(self) -> float:
        """Expected normalised calibration error [J23]: mean over bins of |RMV − RMSE| / RMV."""
        return float(np.mean(np.abs(self.rmv - self.rmse) / self.rmv))


@dataclass(frozen=True, eq=False)
class CoverageCurve:
    """Fraction of targets in the central intervals of the predicted distributions."""

    nominal: Float[np.ndarray, " L"]
    """Probability of each interval."""
    observed: Float[np.ndarray, " L"]
    """Fraction of targets inside."""

    @property
    def area(self) -> float:
        """Area between the curve, linear between its points, and the diagonal."""
        gap, width = self.observed - self.nominal, np.diff(self.nominal)
        left, right = np.abs(gap[:-1]), np.abs(gap[1:])
        total = left + right
        crossing = (left**2 + right**2) / np.where(total > 0, total, 1.0)
        return float(np.sum(width / 2 * np.where(gap[:-1] * gap[1:] < 0, crossing, total)))


@dataclass(frozen=True, eq=False)
class RetentionCurve:
    """Mean absolute error of the entries that are kept, the most certain ones first."""

    kept: Float[np.ndarray, " Q"]
    """Fraction of entries that are kept."""
    error: Float[np.ndarray, " Q"]
    """Mean absolute error of these entries."""
    oracle: Float[np.ndarray, " Q"]
    """Mean absolute error if entries were kept by their true errors: a lower bound for any variances."""


@dataclass(frozen=True, eq=False)
class ZHistogram:
    """Density of z-scores, normalised by all of them including those outside the edges."""

    edges: Float[np.ndarray, " H_plus_1"]
    density: Float[np.ndarray, " H"]
    below: float = 0.0
    """Fraction of z-scores below the first edge, which the density excludes."""
    above: float = 0.0
    """Fraction of z-scores above the last edge, which the density excludes."""


def reliability(error: ArrayLike, variance: ArrayLike, bins: int) -> Reliability:
    """Reliability diagram of entries with variances above zero.

    Entries of equal variance stay in one bin: a border between them moves to the nearer end of the tie. This can leave
    fewer bins, down to one if all variances are equal.
    """
    values, spread = checked_pair(error, variance, positive=True)
    number = bin_numbers(spread, bins)
    count = np.bincount(number)
    with np.errstate(over="ignore"):
        squared = np.bincount(number, values**2)
    if not np.isfinite(squared).all():
        raise UndefinedMetricError("a squared error is too large for double precision")
    return Reliability(count, np.sqrt(np.bincount(number, spread) / count), np.sqrt(squared / count))


def bin_numbers(variance: Float[np.ndarray, " n"], bins: int) -> Int[np.ndarray, " n"]:
    """Number of the bin of each entry. Bins have equal counts as far as ties permit, and none is empty."""
    if bins < 1:
        raise HuefieldError(f"bins must be at least 1, but is {bins}")
    if len(variance) < bins:
        raise UndefinedMetricError(f"{len(variance)} entries with a variance above zero are too few for {bins} bins")
    rising = np.sort(variance)
    return np.searchsorted(rising[_borders(rising, bins)], variance, side="right")


def _borders(rising: Float[np.ndarray, " n"], bins: int) -> Int[np.ndarray, " borders"]:
    """Rows at which a new bin begins, except the first. Without ties, bins differ by at most one entry."""
    size, longer = divmod(len(rising), bins)
    rows = np.cumsum([size + (number < longer) for number in range(bins - 1)], dtype=np.int64)
    first, behind = (np.searchsorted(rising, rising[rows], side=side) for side in ("left", "right"))
    moved = np.where(rows - first <= behind - rows, first, behind)
    return np.unique(moved[(moved > 0) & (moved < len(rising))])


def coverage_curve(
    error: ArrayLike, variance: ArrayLike, coverages: ArrayLike = CURVE_COVERAGES, dof: float | None = None
) -> CoverageCurve:
    """Fractions of |error| ≤ σ q((1 + c)/2) for increasing nominal coverages c.

    The quantiles q are those of the standard normal distribution, or of a Student t distribution with unit variance and
    ``dof`` degrees of freedom. An interval of zero width (σ = 0) covers only an exact hit, except for c = 1.
    """
    require_dof(dof)
    values, spread = checked_pair(error, variance)
    nominal = checked_coverages(coverages)
    number = covered_from(np.abs(in_sigmas(values, spread)), nominal, dof)
    counts = np.bincount(number, minlength=len(nominal) + 1)
    return CoverageCurve(nominal, np.cumsum(counts)[:-1] / len(values))


def checked_coverages(coverages: ArrayLike) -> Float[np.ndarray, " L"]:
    """Increasing probabilities."""
    nominal = np.asarray(coverages, float)
    if (
        nominal.ndim != 1
        or not len(nominal)
        or not (0 <= nominal[0] <= nominal[-1] <= 1)
        or (np.diff(nominal) < 0).any()
    ):
        raise HuefieldError(f"coverages must be a list of increasing numbers between 0 and 1, but are {nominal}")
    return nominal


def covered_from(
    z: Float[np.ndarray, " n"], coverages: Float[np.ndarray, " L"], dof: float | None = None
) -> Int[np.ndarray, " n"]:
    """Index of the first interval that contains each absolute z-score; L if none does."""
    return np.searchsorted(standard_quantile((1 + coverages) / 2, dof), z, side="left")


def retention_curve(error: ArrayLike, variance: ArrayLike, points: int = 100) -> RetentionCurve:
    """Mean absolute error of the most certain entries at ``points`` fractions, or at every entry if these are fewer."""
    return retention_of(Ranking.of(*checked_pair(error, variance)), points)


def retention_of(ranking: Ranking, points: int) -> RetentionCurve:
    """Retention curve of sorted entries."""
    require_positive("points", np.asarray(points))
    n = len(ranking)
    rows = np.unique(np.ceil(np.linspace(0, n, points + 1)[1:]).astype(np.int64)) - 1
    oracle = running_mean(ranking.rising_errors)
    return RetentionCurve((rows + 1) / n, ranking.kept_mae()[rows], oracle[rows])


def z_histogram(error: ArrayLike, variance: ArrayLike, edges: ArrayLike = Z_EDGES) -> ZHistogram:
    """Density of error/σ between increasing edges; z-scores outside are counted separately."""
    values, spread = checked_pair(error, variance, positive=True)
    borders = np.asarray(edges, float)
    if borders.ndim != 1 or len(borders) < 2 or not (np.diff(borders) > 0).all():
        raise HuefieldError(f"edges must be a list of at least two increasing numbers, but are {borders}")
    z = in_sigmas(values, spread)
    counts = np.bincount(np.searchsorted(borders, z, side="right"), minlength=len(borders) + 1) / len(z)
    return ZHistogram(borders, counts[1:-1] / np.diff(borders), float(counts[0]), float(counts[-1]))
