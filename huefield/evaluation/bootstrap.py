"""Confidence intervals of metrics from resampled structures.

Structures are resampled, not entries, because the forces of one structure are not independent. All metrics follow from
sums over structures (sums.py), so that resampling costs one matrix product: sums of resamples [B, C] = number of draws
of each structure [B, S] times sums of structures [S, C]. Bins and ranks are those of the whole sample.

ENCE and the miscalibration area are means of absolute differences, to which every resample adds noise: if they are as
small as that noise, their intervals are biased upwards and may not contain the value itself.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped

from huefield.evaluation.curves import CURVE_COVERAGES, CoverageCurve
from huefield.evaluation.entries import UndefinedMetricError
from huefield.evaluation.sums import COVERAGES, MetricSums, Owners, sums_by_structure
from huefield.support.errors import HuefieldError

PROBABILITY = 0.95
"""Probability of the intervals."""
BLOCK = 8_000_000
"""Random numbers drawn at a time."""


@dataclass(frozen=True)
class Interval:
    """95 % confidence interval of a metric."""

    metric: str
    """Name in the summary; ``coverage_95`` for the coverage of 95 % intervals."""
    low: float
    high: float


@dataclass(frozen=True)
class Resampling:
    """Settings of the bootstrap."""

    resamples: int
    """Number of resamples."""
    seed: int
    bins: int
    """Bins of the reliability diagram."""


@dataclass(frozen=True, eq=False)
class ResampledMetric:
    """The values of a metric in all resamples."""

    metric: str
    values: Float[np.ndarray, " B"]

    def interval(self) -> Interval:
        """Interval between the outer percentiles, ignoring resamples in which the metric is undefined."""
        values = self.values[np.isfinite(self.values)]
        if not len(values):
            return Interval(self.metric, float("nan"), float("nan"))
        low, high = np.quantile(values, [(1 - PROBABILITY) / 2, (1 + PROBABILITY) / 2])
        return Interval(self.metric, float(low), float(high))


def bootstrap_intervals(
    error: Float[np.ndarray, " n"],
    variance: Float[np.ndarray, " n"],
    structure: Shaped[np.ndarray, " n"],
    resampling: Resampling,
    dof: float | None = None,
) -> tuple[Interval, ...]:
    """Intervals of all metrics of checked entries.

    Args:
        error: target − mean.
        variance: predicted variances.
        structure: the number of the structure of each entry.
        resampling: settings of the bootstrap.
        dof: degrees of freedom of the t distribution of the errors; None for a normal one.
    """
    names, number = np.unique(structure, return_inverse=True)
    _require_resamples(resampling, len(names))
    sums = sums_by_structure(error, variance, Owners(number, len(names)), bins=resampling.bins, dof=dof)
    rng = np.random.default_rng(resampling.seed)
    return tuple(estimate.interval() for estimate in estimates(resampled(sums, resampling.resamples, rng=rng)))


def interval_of_mean(metric: str, values: Float[np.ndarray, " S"], resampling: Resampling) -> Interval:
    """Interval of the mean over structures of one finite value per structure."""
    _require_resamples(resampling, len(values))
    rng = np.random.default_rng(resampling.seed)
    sums = _resampled_columns(values[:, None], resampling.resamples, rng=rng)
    return ResampledMetric(metric, sums[:, 0] / len(values)).interval()


def _require_resamples(resampling: Resampling, structures: int) -> None:
    if resampling.resamples < 2:
        raise HuefieldError(f"resamples must be at least 2 for confidence intervals, but is {resampling.resamples}")
    if structures < 2:
        raise UndefinedMetricError("a single structure cannot be resampled")


def resampled(sums: MetricSums, resamples: int, *, rng: np.random.Generator) -> MetricSums:
    """Sums over as many structures as there are, drawn with replacement."""
    return sums.like(_resampled_columns(sums.stacked(), resamples, rng=rng))


def _resampled_columns(
    matrix: Float[np.ndarray, "S C"], resamples: int, *, rng: np.random.Generator
) -> Float[np.ndarray, "B C"]:
    """Sums of columns over drawn structures, one block of resamples at a time."""
    structures = len(matrix)
    block = max(1, BLOCK // structures)
    with np.errstate(invalid="ignore"):
        found = [
            draws(structures, min(block, resamples - first), rng=rng) @ matrix for first in range(0, resamples, block)
        ]
    return np.concatenate(found)


def draws(structures: int, resamples: int, *, rng: np.random.Generator) -> Float[np.ndarray, "B S"]:
    """Number of draws of each structure in each resample."""
    return np.array(
        [np.bincount(rng.integers(structures, size=structures), minlength=structures) for _ in range(resamples)], float
    )


def estimates(sums: MetricSums) -> tuple[ResampledMetric, ...]:
    """Metrics from sums; NaN for undefined ones."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        count, absolute, squared, variance, sigma, crps = sums.moments.T
        noisy, nll, z, z_squared = sums.noisy.T
        rmv = np.sqrt(variance / count)
        metrics = (
            ResampledMetric("mae", absolute / count),
            ResampledMetric("rmse", np.sqrt(squared / count)),
            ResampledMetric("nll", nll / noisy),
            ResampledMetric("rzv", _deviation(noisy, z, z_squared)),
            ResampledMetric("ence", _ence(sums.bins)),
            ResampledMetric("cv", _deviation(count, sigma, variance) / (sigma / count)),
            ResampledMetric("rmv", rmv),
            ResampledMetric("crps", crps / count),
            ResampledMetric("miscalibration_area", _area(sums.curve / count[:, None])),
            ResampledMetric("sharpness", rmv),
            ResampledMetric("rank_correlation", _correlation(count, sums.ranks)),
            ResampledMetric("retention_area", sums.retention[:, 0] / count),
            ResampledMetric("auroc", _auroc(sums.worst)),
        )
        return metrics + tuple(
            ResampledMetric(coverage_name(nominal), covered / count)
            for nominal, covered in zip(COVERAGES, sums.covered.T, strict=True)
        )


def coverage_name(nominal: float) -> str:
    """Name of the metric that is the observed coverage of an interval."""
    return f"coverage_{100 * nominal:.0f}"


Column = Float[np.ndarray, " B"]


def _deviation(count: Column, first: Column, second: Column) -> Column:
    return np.sqrt(np.maximum(second / count - (first / count) ** 2, 0.0))


def _ence(bins: Float[np.ndarray, "B three_K"]) -> Column:
    """ENCE as the mean over the bins that have entries in the resample."""
    count, variance, squared = np.split(bins, 3, axis=1)
    rmv, rmse = np.sqrt(variance / count), np.sqrt(squared / count)
    filled = count > 0
    return np.where(filled, np.abs(rmv - rmse) / rmv, 0.0).sum(1) / filled.sum(1)


def _correlation(count: Column, ranks: Float[np.ndarray, "B 5"]) -> Column:
    v, e, vv, ee, ve = ranks.T
    return (ve - v * e / count) / np.sqrt((vv - v**2 / count) * (ee - e**2 / count))


def _auroc(worst: Float[np.ndarray, "B 4"]) -> Column:
    count, placement, others, less = worst.T
    return np.clip(placement / count + less / others, 0.0, 1.0)


def _area(observed: Float[np.ndarray, "B L"]) -> Column:
    return np.array([CoverageCurve(CURVE_COVERAGES, row).area for row in observed])
