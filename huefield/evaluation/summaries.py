"""All metrics and curves of one quantity in one object.

Zero variances are counted, and left out of what divides by them or takes their logarithm (scores.py).
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from huefield.evaluation import metrics
from huefield.evaluation.bootstrap import Interval, Resampling, bootstrap_intervals, coverage_name
from huefield.evaluation.curves import (
    LEVELS,
    CoverageCurve,
    Reliability,
    RetentionCurve,
    ZHistogram,
    coverage_curve,
    retention_of,
    z_histogram,
)
from huefield.evaluation.entries import checked_pair, defined_mean
from huefield.evaluation.ranking import WORST, Ranking, auroc, spearman
from huefield.evaluation.scores import NAN, Noisy, Remarks, diagram, table
from huefield.evaluation.sums import COVERAGES
from huefield.support.checks import require_shape
from huefield.support.plain import plain_fields

POINTS = 100
"""Of the retention curve."""
NO_CURVE = CoverageCurve(np.zeros(0), np.zeros(0))
NO_HISTOGRAM = ZHistogram(np.zeros(1), np.zeros(0))
NORMAL_ONLY = ("nll", "rzv", "crps", "coverage", "miscalibration_area", "z_histogram")
"""What has a meaning for normal errors only."""


@dataclass(frozen=True)
class Coverage:
    """Of the central interval of one probability."""

    nominal: float
    observed: float


@dataclass(frozen=True, eq=False)
class Summary:
    """All metrics and curves. NaN, or a curve without points, for what cannot be computed; the remarks say why."""

    count: int
    """Entries: structures, force components, or atoms."""
    zero_variance: int
    """Entries with a predicted variance of exactly zero."""
    mae: float
    rmse: float
    nll: float
    rzv: float
    ence: float
    cv: float
    rmv: float
    crps: float
    coverage: tuple[Coverage, ...]
    miscalibration_area: float
    sharpness: float
    rank_correlation: float
    retention_area: float
    auroc: float
    """For finding the worst errors."""
    reliability: Reliability
    coverage_curve: CoverageCurve
    retention: RetentionCurve
    z_histogram: ZHistogram
    intervals: tuple[Interval, ...] = ()
    """From resampled structures, with a probability of 95 %; empty if none were asked for."""
    remarks: tuple[str, ...] = ()
    """What cannot be computed, or not as asked for, and why."""

    def interval(self, metric: str) -> Interval | None:
        """The interval of a metric, if there is one."""
        return next((found for found in self.intervals if found.metric == metric), None)

    def as_dict(self) -> dict[str, object]:
        """For JSON: None for what is NaN."""
        return plain_fields(self)


def summary(
    mean: ArrayLike,
    variance: ArrayLike,
    target: ArrayLike,
    *,
    bins: int = 10,
    structure: ArrayLike | None = None,
    resamples: int = 0,
    seed: int = 0,
) -> Summary:
    """Metrics of predictions, arrays of any equal shape.

    Args:
        mean: What was predicted.
        variance: Its predicted variance, noise and members together.
        target: What was observed.
        bins: Of the reliability diagram.
        structure: The number of the structure that each entry belongs to, for the intervals; without it each entry is
            one of its own.
        resamples: How many times structures are drawn anew for the intervals; zero for no intervals.
        seed: Of these draws.
    """
    require_shape("target", target, np.shape(mean))
    require_shape("variance", variance, np.shape(mean))
    error = np.subtract(target, mean, dtype=float)
    return summary_of_errors(error, variance, structure, Resampling(resamples, seed, bins))


def summary_of_errors(
    error: ArrayLike, variance: ArrayLike, structure: ArrayLike | None, resampling: Resampling
) -> Summary:
    """The same from errors."""
    values, spread = checked_pair(error, variance)
    return _with_intervals(_summarised(values, spread, resampling.bins), values, spread, structure, resampling)


def summary_of_lengths(
    length: ArrayLike, variance: ArrayLike, structure: ArrayLike | None, resampling: Resampling
) -> Summary:
    """The same from errors that are lengths of vectors, without what has a meaning for normal errors only."""
    values, spread = checked_pair(length, variance)
    point = _without_normal(_summarised(values, spread, resampling.bins))
    return _with_intervals(point, values, spread, structure, resampling)


def _summarised(error: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"], bins: int) -> Summary:
    remarks, noisy = Remarks(), Noisy.of(error, variance)
    reliability = diagram(noisy, bins, remarks)
    scores = table(error, variance, noisy, reliability, remarks)
    histogram = remarks.attempt("z_histogram", lambda: noisy.measure(z_histogram), NO_HISTOGRAM)
    crps = remarks.attempt("crps", lambda: metrics.crps(error, variance), NAN)
    curve, levels = (coverage_curve(error, variance, found) for found in (LEVELS, np.array(COVERAGES)))
    ranking = Ranking.of(error, variance)
    return Summary(
        count=scores.count,
        zero_variance=scores.zero_variance,
        mae=scores.mae,
        rmse=scores.rmse,
        nll=scores.nll,
        rzv=scores.rzv,
        ence=scores.ence,
        cv=scores.cv,
        rmv=scores.rmv,
        crps=crps,
        coverage=tuple(Coverage(*map(float, pair)) for pair in zip(levels.nominal, levels.observed, strict=True)),
        miscalibration_area=curve.area,
        sharpness=scores.rmv,
        rank_correlation=remarks.attempt("rank_correlation", lambda: spearman(ranking), NAN),
        retention_area=remarks.attempt("retention_area", lambda: defined_mean(ranking.kept_mae()), NAN),
        auroc=remarks.attempt("auroc", lambda: auroc(ranking, WORST), NAN),
        reliability=reliability,
        coverage_curve=curve,
        retention=retention_of(ranking, POINTS),
        z_histogram=histogram,
        remarks=tuple(remarks.found),
    )


def _without_normal(point: Summary) -> Summary:
    """Without what has a meaning for normal errors only."""
    kept = tuple(remark for remark in point.remarks if remark.split(":")[0] not in NORMAL_ONLY)
    return replace(
        point,
        nll=NAN,
        rzv=NAN,
        crps=NAN,
        coverage=tuple(Coverage(level, NAN) for level in COVERAGES),
        miscalibration_area=NAN,
        coverage_curve=NO_CURVE,
        z_histogram=NO_HISTOGRAM,
        remarks=(*kept, f"{', '.join(NORMAL_ONLY)}: have no meaning for lengths of vectors, which are not normal"),
    )


def _with_intervals(
    point: Summary,
    error: Float[np.ndarray, " n"],
    variance: Float[np.ndarray, " n"],
    structure: ArrayLike | None,
    resampling: Resampling,
) -> Summary:
    if not resampling.resamples:
        return point
    owner = np.arange(len(error)) if structure is None else np.ravel(structure)
    require_shape("structure", owner, (len(error),))
    remarks, none = Remarks(), tuple[Interval, ...]()
    found = remarks.attempt("intervals", lambda: bootstrap_intervals(error, variance, owner, resampling), none)
    known = [interval for interval in found if np.isfinite(_value(point, interval.metric))]
    return replace(point, intervals=tuple(known), remarks=(*point.remarks, *remarks.found))


def _value(point: Summary, metric: str) -> float:
    """The metric that an interval is about."""
    covered = {coverage_name(found.nominal): found.observed for found in point.coverage}
    return covered[metric] if metric in covered else getattr(point, metric)
