"""Quantities that depend only on order: which entries are the most certain ones, and which have the largest errors.

Entries with equal variances have no order among themselves. Each of them counts with the mean over all orders that the
tie permits, so that no result depends on the order of the input.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from huefield.evaluation.entries import UndefinedMetricError, Vector
from huefield.support.errors import HuefieldError

WORST_FRACTION = 0.05
"""Fraction of entries that count as the worst ones."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """Entries sorted by increasing variance."""

    order: Int[np.ndarray, " n"]
    """Indices of the entries."""
    starts: Int[np.ndarray, " runs"]
    """Rows at which a run of equal variances begins."""
    absolute: Float[np.ndarray, " n"]
    """Absolute errors."""

    @classmethod
    def of(cls, error: Vector, variance: Vector) -> "Ranking":
        """Sort entries by their variance."""
        order = np.argsort(variance)
        rising = variance[order]
        starts = np.flatnonzero(np.concatenate([[True], rising[1:] != rising[:-1]]))
        return cls(order, starts, np.abs(error[order]))

    def __len__(self) -> int:
        return len(self.order)

    def shared(self, values: Vector) -> Vector:
        """Each value replaced by the mean over the entries with the same variance."""
        if len(self.starts) == len(values):
            return values
        counts = np.diff(self.starts, append=len(values))
        return np.repeat(np.add.reduceat(values, self.starts) / counts, counts)

    @cached_property
    def rising_errors(self) -> Float[np.ndarray, " n"]:
        """Sorted absolute errors."""
        return np.sort(self.absolute)

    def below(self, chosen: Bool[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Number of chosen entries with a smaller variance than each entry; ties count half."""
        inside = np.add.reduceat(chosen, self.starts, dtype=np.int64)
        return np.repeat(np.cumsum(inside) - 0.5 * inside, np.diff(self.starts, append=len(self)))

    def kept_mae(self) -> Float[np.ndarray, " n"]:
        """Mean absolute error of the k most certain entries, k = 1 ... n."""
        return running_mean(self.shared(self.absolute))

    def worst(self, fraction: float) -> Bool[np.ndarray, " n"]:
        """The given fraction of entries with the largest errors, rounded up, including all ties with the smallest."""
        if not 0 < fraction < 1:
            raise HuefieldError(f"the fraction of worst entries must lie between 0 and 1, but is {fraction}")
        count = int(np.ceil(round(fraction * len(self), 6)))
        return self.absolute >= self.rising_errors[len(self) - max(count, 1)]


def running_mean(values: Vector) -> Vector:
    """Mean of the first k values, k = 1 ... n."""
    mean = np.cumsum(values)
    mean /= np.arange(1, len(values) + 1)
    return mean


def centred_ranks(values: Vector) -> Vector:
    """Ranks with mean zero; ties share their mean rank."""
    from scipy.stats import rankdata  # takes half a second to import

    return rankdata(values) - (len(values) + 1) / 2


def spearman(error: Vector, variance: Vector) -> float:
    """Spearman's rank correlation of variances and absolute errors."""
    from scipy.stats import spearmanr  # takes half a second to import

    absolute = np.abs(error)
    for name, values in (("variances", variance), ("absolute errors", absolute)):
        if np.ptp(values) == 0:
            raise UndefinedMetricError(f"all {name} are equal")
    return float(spearmanr(variance, absolute).statistic)


def placements(ranking: Ranking, worst: Bool[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Fraction of the entries of the other class that the variance puts on the right side of each entry.

    For a worst entry these are others with a smaller variance, for another entry worst ones with a larger variance.
    Ties count half. The bootstrap needs these terms; scipy's Mann-Whitney statistic is only their sum.
    """
    bad = int(worst.sum())
    if bad == len(worst):
        raise UndefinedMetricError("all entries are among the worst: too few entries, or all errors are equal")
    others_below, worst_below = ranking.below(~worst), ranking.below(worst)
    return np.where(worst, others_below / (len(worst) - bad), 1 - worst_below / bad)


def auroc(ranking: Ranking, fraction: float) -> float:
    """Fraction of pairs, one of the worst and one other, that the variance puts in the right order."""
    worst = ranking.worst(fraction)
    return float(np.mean(placements(ranking, worst)[worst]))
