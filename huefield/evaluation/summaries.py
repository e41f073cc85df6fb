"""All metrics and curves of one quantity in one object.

Variances of zero are counted, and excluded from metrics that divide by them or take their logarithm (see
paper_metrics.py).
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from huefield.evaluation import metrics
from huefield.evaluation.bootstrap import Interval, Resampling, bootstrap_intervals, coverage_name
from huefield.evaluation.curves import (
    CURVE_COVERAGES,
    CoverageCurve,
    Reliability,
    RetentionCurve,
    ZHistogram,
    coverage_curve,
    retention_of,
    z_histogram,
)
from huefield.evaluation.entries import checked_pair, defined_mean
from huefield.evaluation.paper_metrics import NAN, AbstractMetrics, Noisy, Remarks, diagram, table
from huefield.evaluation.ranking import WORST_FRACTION, Ranking, auroc, spearman
from huefield.evaluation.sums import COVERAGES
from huefield.support.checks import require_shape
from huefield.support.defaults import BINS

POINTS = 100
"""Number of points of the retention curve."""
NO_CURVE = CoverageCurve(np.zeros(0), np.zeros(0))
NO_HISTOGRAM = ZHistogram(np.zeros(1), np.zeros(0))
NORMAL_ONLY = ("nll", "rzv", "crps", "coverage", "miscalibration_area", "z_histogram")
"""Metrics and curves that are defined for normal errors only."""


@dataclass(frozen=True)
class Coverage:
    """Coverage of one central interval."""

    nominal: float
    observed: float


@dataclass(frozen=True, eq=False, kw_only=True)
class MetricSummary(AbstractMetrics):
    """The metrics of the paper's table, further ones and curves. Undefined curves have no points."""

    crps: float
    coverage: tuple[Coverage, ...]
    miscalibration_area: float
    sharpness: float
    rank_correlation: float
    retention_area: float
    auroc: float
    """Area under the ROC curve for finding the worst errors."""
    dof: float | None = None
    """Degrees of freedom ν of the t distribution of the errors in NLL, CRPS and coverage; None for a normal one."""
    reliability: Reliability
    coverage_curve: CoverageCurve
    retention: RetentionCurve
    z_histogram: ZHistogram
    intervals: tuple[Interval, ...] = ()
    """95 % confidence intervals from resampled structures; empty unless requested."""

    def interval(self, metric: str) -> Interval | None:
        """Confidence interval of a metric, if there is one."""
        return next((found for found in self.intervals if found.metric == metric), None)


def summary(
    mean: ArrayLike,
    variance: ArrayLike,
    target: ArrayLike,
    *,
    bins: int = BINS,
    structure: ArrayLike | None = None,
    resamples: int = 0,
    seed: int = 0,
    dof: float | None = None,
) -> MetricSummary:
    """Metrics of predictions, given as arrays of equal shape.

    Args:
        mean: predicted means.
        variance: predicted total variances (noise plus members).
        target: observed values.
        bins: number of bins of the reliability diagram.
        structure: number of the structure of each entry, for the confidence intervals; None if each entry is a
            structure of its own.
        resamples: number of resamples for confidence intervals; zero for no intervals.
        seed: seed of the resampling.
        dof: degrees of freedom of the t distribution of the errors; None for a normal one.
    """
    require_shape("target", target, np.shape(mean))
    require_shape("variance", variance, np.shape(mean))
    error = np.subtract(target, mean, dtype=float)
    return summary_of_errors(error, variance, structure, Resampling(resamples, seed, bins), dof)


def summary_of_errors(
    error: ArrayLike,
    variance: ArrayLike,
    structure: ArrayLike | None,
    resampling: Resampling,
    dof: float | None = None,
) -> MetricSummary:
    """Metrics from errors (target − mean)."""
    values, spread = checked_pair(error, variance)
    return _with_intervals(_summarised(values, spread, resampling.bins, dof), values, spread, structure, resampling)


def summary_of_lengths(
    length: ArrayLike, variance: ArrayLike, structure: ArrayLike | None, resampling: Resampling
) -> MetricSummary:
    """Metrics from errors that are lengths of vectors, without those that are defined for normal errors only."""
    values, spread = checked_pair(length, variance)
    point = _without_normal(_summarised(values, spread, resampling.bins, None))
    return _with_intervals(point, values, spread, structure, resampling)


def _summarised(
    error: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"], bins: int, dof: float | None
) -> MetricSummary:
    remarks, noisy = Remarks(), Noisy.of(error, variance)
    reliability = diagram(noisy, bins, remarks)
    scores = table(error, variance, noisy, reliability, remarks, dof)
    histogram = remarks.attempt("z_histogram", lambda: noisy.measure(z_histogram), NO_HISTOGRAM)
    crps = remarks.attempt("crps", lambda: metrics.crps(error, variance, dof), NAN)
    curve, tabulated = (coverage_curve(error, variance, each, dof) for each in (CURVE_COVERAGES, np.array(COVERAGES)))
    ranking = Ranking.of(error, variance)
    return MetricSummary(
        crps=crps,
        coverage=tuple(Coverage(*map(float, pair)) for pair in zip(tabulated.nominal, tabulated.observed, strict=True)),
        miscalibration_area=curve.area,
        sharpness=scores.rmv,
        rank_correlation=remarks.attempt("rank_correlation", lambda: spearman(error, variance), NAN),
        retention_area=remarks.attempt("retention_area", lambda: defined_mean(ranking.kept_mae()), NAN),
        auroc=remarks.attempt("auroc", lambda: auroc(ranking, WORST_FRACTION), NAN),
        dof=dof,
        reliability=reliability,
        coverage_curve=curve,
        retention=retention_of(ranking, POINTS),
        z_histogram=histogram,
        **{**vars(scores), "remarks": tuple(remarks.found)},
    )


def _without_normal(point: MetricSummary) -> MetricSummary:
    """Remove metrics that are defined for normal errors only."""
    kept = tuple(remark for remark in point.remarks if remark.split(":")[0] not in NORMAL_ONLY)
    return replace(
        point,
        nll=NAN,
        rzv=NAN,
        crps=NAN,
        coverage=tuple(Coverage(nominal, NAN) for nominal in COVERAGES),
        miscalibration_area=NAN,
        coverage_curve=NO_CURVE,
        z_histogram=NO_HISTOGRAM,
        remarks=(*kept, f"{', '.join(NORMAL_ONLY)}: undefined for lengths of vectors, which are not normal"),
    )


def _with_intervals(
    point: MetricSummary,
    error: Float[np.ndarray, " n"],
    variance: Float[np.ndarray, " n"],
    structure: ArrayLike | None,
    resampling: Resampling,
) -> MetricSummary:
    if not resampling.resamples:
        return point
    owner = np.arange(len(error)) if structure is None else np.ravel(structure)
    require_shape("structure", owner, (len(error),))
    remarks, none = Remarks(), tuple[Interval, ...]()
    found = remarks.attempt(
        "intervals", lambda: bootstrap_intervals(error, variance, owner, resampling, point.dof), none
    )
    known = [interval for interval in found if np.isfinite(_value(point, interval.metric))]
    return replace(point, intervals=tuple(known), remarks=(*point.remarks, *remarks.found))


def _value(point: MetricSummary, metric: str) -> float:
    """Value of the metric of an interval."""
    covered = {coverage_name(found.nominal): found.observed for found in point.coverage}
    return covered[metric] if metric in covered else getattr(point, metric)
