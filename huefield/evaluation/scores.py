"""The metrics of the paper's table, for a quantity or a part of it.

Zero variances happen exactly, for components that symmetry forbids. They are counted. What divides by a variance or
takes its logarithm (NLL, z-scores, RZV, ENCE and its bins) leaves them out; everything else has them in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from huefield.evaluation import metrics
from huefield.evaluation.curves import Reliability, reliability
from huefield.evaluation.entries import UndefinedMetricError
from huefield.support.plain import plain_fields

NAN = float("nan")
NO_BINS = Reliability(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
T = TypeVar("T")


@dataclass(frozen=True)
class Scores:
    """The metrics of the paper's table. NaN for what cannot be computed; the remarks say why."""

    count: int
    """Entries: structures, or force components."""
    zero_variance: int
    """Entries with a predicted variance of exactly zero."""
    mae: float
    rmse: float
    nll: float
    rzv: float
    ence: float
    cv: float
    rmv: float
    remarks: tuple[str, ...] = ()
    """What cannot be computed, or not as asked for, and why."""

    def as_dict(self) -> dict[str, object]:
        """For JSON: None for what is NaN."""
        return plain_fields(self)


class Remarks:
    """Collects the reasons why something has no value."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def attempt(self, name: str, compute: Callable[[], T], otherwise: T) -> T:
        """What is computed, or the other value if that is undefined."""
        try:
            return compute()
        except UndefinedMetricError as reason:
            self.found.append(f"{name}: {reason}")
            return otherwise


TINY = 1e-5
"""A standard deviation relative to the root mean variance that is worth a remark."""


@dataclass(frozen=True, eq=False)
class Noisy:
    """Those entries whose variance is above zero."""

    error: Float[np.ndarray, " n"]
    variance: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, error: Float[np.ndarray, " all"], variance: Float[np.ndarray, " all"]) -> "Noisy":
        """Leave the others out, without a copy if there are none."""
        kept = variance > 0
        return cls(error, variance) if kept.all() else cls(error[kept], variance[kept])

    def measure(self, metric: Callable[..., T], *settings: int) -> T:
        """The metric of these entries."""
        if not len(self.error):
            raise UndefinedMetricError("all variances are zero")
        return metric(self.error, self.variance, *settings)


def scores_of_errors(error: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"], bins: int) -> Scores:
    """Metrics of errors and variances that were checked before; NaN where there are none."""
    if not len(error):
        return Scores(0, 0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, remarks=("count: there are no entries",))
    remarks = Remarks()
    noisy = Noisy.of(error, variance)
    return table(error, variance, noisy, diagram(noisy, bins, remarks), remarks)


def diagram(noisy: Noisy, bins: int, remarks: Remarks) -> Reliability:
    """The reliability diagram, with a remark if it has fewer bins than asked for."""
    found = remarks.attempt("ence", lambda: noisy.measure(reliability, bins), NO_BINS)
    if 0 < len(found.count) < bins:
        remarks.found.append(f"ence: {len(found.count)} bins instead of {bins}, because many variances are equal")
    return found


def table(
    error: Float[np.ndarray, " n"],
    variance: Float[np.ndarray, " n"],
    noisy: Noisy,
    bins: Reliability,
    remarks: Remarks,
) -> Scores:
    """The scores, with all remarks until now."""
    zero = len(variance) - len(noisy.variance)
    if zero:
        remarks.found.append(
            f"zero_variance: {zero} of {len(error)} entries are left out of nll, rzv, ence and z-scores"
        )
    tiny = int(np.count_nonzero(noisy.variance < TINY**2 * np.mean(variance)))
    if tiny:
        remarks.found.append(
            f"nll: {tiny} of {len(error)} entries have a σ below {TINY:g} of the root mean variance, as components "
            "have that vanish by symmetry up to rounding; they may lower the mean by much"
        )
    return Scores(
        count=len(error),
        zero_variance=zero,
        mae=remarks.attempt("mae", lambda: metrics.mae(error), NAN),
        rmse=remarks.attempt("rmse", lambda: metrics.rmse(error), NAN),
        nll=remarks.attempt("nll", lambda: noisy.measure(metrics.gaussian_nll), NAN),
        rzv=remarks.attempt("rzv", lambda: noisy.measure(metrics.rzv), NAN),
        ence=bins.ence if len(bins.count) else NAN,
        cv=remarks.attempt("cv", lambda: metrics.coefficient_of_variation(variance), NAN),
        rmv=remarks.attempt("rmv", lambda: metrics.rmv(variance), NAN),
        remarks=tuple(remarks.found),
    )
