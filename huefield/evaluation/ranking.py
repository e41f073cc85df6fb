"""What depends on order only: which entries are the most certain ones, and which have the largest errors.

Entries with equal variance have no order among themselves. Each of them counts with the mean over all orders they could
have, so that no result depends on the order of the input.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from huefield.evaluation.entries import UndefinedMetricError
from huefield.support.errors import HuefieldError

WORST = 0.05
"""The fraction of entries that count as the worst ones."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """Entries in the order of rising variance."""

    order: Int[np.ndarray, " n"]
    """Numbers of the entries."""
    starts: Int[np.ndarray, " runs"]
    """Where each run of equal variances begins."""
    absolute: Float[np.ndarray, " n"]
    """Absolute errors."""

    @classmethod
    def of(cls, error: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"]) -> "Ranking":
        """Sort entries by their variance."""
        order = np.argsort(variance)
        return cls(order, run_starts(variance[order]), np.abs(error[order]))

    def __len__(self) -> int:
        return len(self.order)

    def shared(self, values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Each value replaced by the mean over the entries with the same variance."""
        return mean_over_runs(values, self.starts)

    @cached_property
    def _error_order(self) -> Int[np.ndarray, " n"]:
        return np.argsort(self.absolute)

    @cached_property
    def rising_errors(self) -> Float[np.ndarray, " n"]:
        """Absolute errors from the smallest to the largest."""
        return self.absolute[self._error_order]

    def variance_ranks(self) -> Float[np.ndarray, " n"]:
        """Ranks of the variances, centred at zero."""
        n = len(self)
        return self.shared(np.arange(n) - (n - 1) / 2)

    def error_ranks(self) -> Float[np.ndarray, " n"]:
        """Ranks of the absolute errors, centred at zero."""
        n = len(self)
        ranks = np.empty(n)
        ranks[self._error_order] = mean_over_runs(np.arange(n) - (n - 1) / 2, run_starts(self.rising_errors))
        return ranks

    def below(self, chosen: Bool[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """How many of the chosen entries have a smaller variance than each entry; equal ones count half."""
        inside = np.add.reduceat(chosen, self.starts, dtype=np.int64)
        return np.repeat(np.cumsum(inside) - 0.5 * inside, np.diff(self.starts, append=len(self)))

    def kept_mae(self) -> Float[np.ndarray, " n"]:
        """Mean absolute error of the k most certain entries, k = 1 ... n."""
        return running_mean(self.shared(self.absolute))

    def worst(self, fraction: float) -> Bool[np.ndarray, " n"]:
        """The given fraction of entries, rounded up, with the largest errors, and all whose error equals the least."""
        if not 0 < fraction < 1:
            raise HuefieldError(f"the fraction of worst entries must lie between 0 and 1, but is {fraction}")
        count = int(np.ceil(round(fraction * len(self), 6)))
        return self.absolute >= self.rising_errors[len(self) - max(count, 1)]


def run_starts(rising: Float[np.ndarray, " n"]) -> Int[np.ndarray, " runs"]:
    """Where runs of equal values begin in a sorted row."""
    return np.flatnonzero(np.concatenate([[True], rising[1:] != rising[:-1]]))


def mean_over_runs(values: Float[np.ndarray, " n"], starts: Int[np.ndarray, " runs"]) -> Float[np.ndarray, " n"]:
    """Each value replaced by the mean of its run."""
    if len(starts) == len(values):
        return values
    counts = np.diff(starts, append=len(values))
    return np.repeat(np.add.reduceat(values, starts) / counts, counts)


def running_mean(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Mean of the first k values, k = 1 ... n."""
    mean = np.cumsum(values)
    mean /= np.arange(1, len(values) + 1)
    return mean


def spearman(ranking: Ranking) -> float:
    """Correlation of the ranks of variances and absolute errors."""
    if len(ranking.starts) == 1:
        raise UndefinedMetricError("all variances are equal")
    if ranking.rising_errors[0] == ranking.rising_errors[-1]:
        raise UndefinedMetricError("all absolute errors are equal")
    variances, errors = ranking.variance_ranks(), ranking.error_ranks()
    return float(variances @ errors / np.sqrt((variances @ variances) * (errors @ errors)))


def placements(ranking: Ranking, worst: Bool[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """What part of the entries of the other kind the variance puts on the right side of each entry.

    For one of the worst: others with a smaller variance. For one of the others: worst ones with a larger variance.
    Equal variances count half.
    """
    bad = int(worst.sum())
    if bad == len(worst):
        raise UndefinedMetricError("all entries are among the worst: too few entries, or all errors are equal")
    others_below, worst_below = ranking.below(~worst), ranking.below(worst)
    return np.where(worst, others_below / (len(worst) - bad), 1 - worst_below / bad)


def auroc(ranking: Ranking, fraction: float) -> float:
    """The part of pairs, one of the worst and one other, that the variance puts in the right order."""
    worst = ranking.worst(fraction)
    return float(np.mean(placements(ranking, worst)[worst]))
