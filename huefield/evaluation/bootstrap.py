"""Confidence intervals of metrics from resampled structures.

Structures are drawn anew, not entries, because the forces of one structure are not independent. All metrics follow from
sums over structures (sums.py), so that resamples cost one matrix product: sums of resamples [B, C] = how often each
structure was drawn [B, S] times sums of structures [S, C]. Bins and ranks are those of the whole sample.

ENCE and the miscalibration area are means of absolute differences, to which every resample adds some noise: where they
are as small as that noise, their intervals lie too high and may leave out the value itself.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped

from huefield.evaluation.curves import LEVELS, CoverageCurve
from huefield.evaluation.entries import UndefinedMetricError
from huefield.evaluation.sums import COVERAGES, Owners, Sums, sums_by_structure
from huefield.support.errors import HuefieldError

PROBABILITY = 0.95
"""Of the intervals."""
BLOCK = 8_000_000
"""Numbers drawn at a time."""


@dataclass(frozen=True)
class Interval:
    """Where a metric would lie had other structures been drawn, with a probability of 95 %."""

    metric: str
    """As in the summary; ``coverage_95`` for the coverage of 95 % intervals."""
    low: float
    high: float


@dataclass(frozen=True)
class Resampling:
    """How intervals are made."""

    resamples: int
    """How many times structures are drawn."""
    seed: int
    bins: int
    """Of the reliability diagram."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """A metric of each resample."""

    metric: str
    values: Float[np.ndarray, " B"]

    def interval(self) -> Interval:
        """Between the outer percentiles. Resamples in which the metric is undefined are left out."""
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
) -> tuple[Interval, ...]:
    """Intervals of all metrics of checked entries; ``structure`` says which ones belong together."""
    names, number = np.unique(structure, return_inverse=True)
    _require_resamples(resampling, len(names))
    sums = sums_by_structure(error, variance, Owners(number, len(names)), bins=resampling.bins)
    rng = np.random.default_rng(resampling.seed)
    return tuple(estimate.interval() for estimate in estimates(resampled(sums, resampling.resamples, rng=rng)))


def interval_of_mean(metric: str, values: Float[np.ndarray, " S"], resampling: Resampling) -> Interval:
    """The interval of the mean of one finite value for each structure."""
    _require_resamples(resampling, len(values))
    rng = np.random.default_rng(resampling.seed)
    sums = _resampled_columns(values[:, None], resampling.resamples, rng=rng)
    return Estimate(metric, sums[:, 0] / len(values)).interval()


def _require_resamples(resampling: Resampling, structures: int) -> None:
    if resampling.resamples < 2:
        raise HuefieldError(f"intervals need at least two resamples, but resamples is {resampling.resamples}")
    if structures < 2:
        raise UndefinedMetricError("there is one structure only, nothing to resample")


def resampled(sums: Sums, resamples: int, *, rng: np.random.Generator) -> Sums:
    """Sums of as many structures as there are, drawn with replacement."""
    return sums.like(_resampled_columns(sums.stacked(), resamples, rng=rng))


def _resampled_columns(
    matrix: Float[np.ndarray, "S C"], resamples: int, *, rng: np.random.Generator
) -> Float[np.ndarray, "B C"]:
    """Sums of columns over structures that are drawn, a block of resamples at a time."""
    structures = len(matrix)
    block = max(1, BLOCK // structures)
    with np.errstate(invalid="ignore"):
        found = [
            draws(structures, min(block, resamples - first), rng=rng) @ matrix for first in range(0, resamples, block)
        ]
    return np.concatenate(found)


def draws(structures: int, resamples: int, *, rng: np.random.Generator) -> Float[np.ndarray, "B S"]:
    """How often each structure is drawn."""
    return np.array(
        [np.bincount(rng.integers(structures, size=structures), minlength=structures) for _ in range(resamples)], float
    )


def estimates(sums: Sums) -> tuple[Estimate, ...]:
    """Metrics from sums; NaN where a resample does not determine one."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        count, absolute, squared, variance, sigma, crps = sums.moments.T
        noisy, nll, z, z_squared = sums.noisy.T
        rmv = np.sqrt(variance / count)
        metrics = (
            Estimate("mae", absolute / count),
            Estimate("rmse", np.sqrt(squared / count)),
            Estimate("nll", nll / noisy),
            Estimate("rzv", _deviation(noisy, z, z_squared)),
            Estimate("ence", _ence(sums.bins)),
            Estimate("cv", _deviation(count, sigma, variance) / (sigma / count)),
            Estimate("rmv", rmv),
            Estimate("crps", crps / count),
            Estimate("miscalibration_area", _area(sums.curve / count[:, None])),
            Estimate("sharpness", rmv),
            Estimate("rank_correlation", _correlation(count, sums.ranks)),
            Estimate("retention_area", sums.retention[:, 0] / count),
            Estimate("auroc", _auroc(sums.worst)),
        )
        return metrics + tuple(
            Estimate(coverage_name(level), covered / count)
            for level, covered in zip(COVERAGES, sums.covered.T, strict=True)
        )


def coverage_name(level: float) -> str:
    """What the interval of a coverage is called."""
    return f"coverage_{100 * level:.0f}"


Column = Float[np.ndarray, " B"]


def _deviation(count: Column, first: Column, second: Column) -> Column:
    return np.sqrt(np.maximum(second / count - (first / count) ** 2, 0.0))


def _ence(bins: Float[np.ndarray, "B three_K"]) -> Column:
    """The mean over the bins that a resample has entries in."""
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
    return np.array([CoverageCurve(LEVELS, row).area for row in observed])
