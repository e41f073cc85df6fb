"""The metrics of the paper's table, for a quantity or for a slice of the data.

Variances of exactly zero occur for components that symmetry forbids. They are counted. Metrics that divide by a
variance or take its logarithm (NLL, z-scores, RZV, ENCE and its bins) exclude them; all other metrics include them.
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


@dataclass(frozen=True, eq=False)
class AbstractMetrics:
    """The metrics of the paper's table. Undefined metrics are NaN; the remarks say why."""

    count: int
    """Number of entries: structures, force components, or atoms."""
    zero_variance: int
    """Number of entries with a predicted variance of exactly zero."""
    mae: float
    rmse: float
    nll: float
    rzv: float
    ence: float
    cv: float
    rmv: float
    remarks: tuple[str, ...] = ()
    """Metrics that are undefined or were computed in another way, and why."""

    def as_dict(self) -> dict[str, object]:
        """Fields for JSON, with None in place of NaN."""
        return plain_fields(self)


@dataclass(frozen=True)
class PaperMetrics(AbstractMetrics):
    """The metrics of the paper's table and nothing else, as slices of the data have them."""


class Remarks:
    """Collects the reasons why metrics are undefined."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def attempt(self, name: str, compute: Callable[[], T], otherwise: T) -> T:
        """Result of ``compute``, or ``otherwise`` and a remark if it is undefined."""
        try:
            return compute()
        except UndefinedMetricError as reason:
            self.found.append(f"{name}: {reason}")
            return otherwise


TINY = 1e-5
"""Ratio of σ to the root mean variance below which a remark is made."""


@dataclass(frozen=True, eq=False)
class Noisy:
    """Entries with a variance above zero."""

    error: Float[np.ndarray, " n"]
    variance: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, error: Float[np.ndarray, " all"], variance: Float[np.ndarray, " all"]) -> "Noisy":
        """Select the entries, without a copy if all variances are above zero."""
        kept = variance > 0
        return cls(error, variance) if kept.all() else cls(error[kept], variance[kept])

    def measure(self, metric: Callable[..., T], *settings: float | None) -> T:
        """A metric of these entries."""
        if not len(self.error):
            raise UndefinedMetricError("all variances are zero")
        return metric(self.error, self.variance, *settings)


def paper_metrics(
    error: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"], bins: int, dof: float | None = None
) -> PaperMetrics:
    """Metrics of checked errors and variances; NaN if there are no entries.

    Args:
        error: target − mean.
        variance: predicted variances.
        bins: number of bins of the reliability diagram.
        dof: degrees of freedom of the t distribution of the errors; None for a normal one.
    """
    if not len(error):
        return PaperMetrics(0, 0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, remarks=("count: there are no entries",))
    remarks = Remarks()
    noisy = Noisy.of(error, variance)
    return table(error, variance, noisy, diagram(noisy, bins, remarks), remarks, dof)


def diagram(noisy: Noisy, bins: int, remarks: Remarks) -> Reliability:
    """Reliability diagram, with a remark if it has fewer bins than requested."""
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
    dof: float | None = None,
) -> PaperMetrics:
    """The metrics, with all remarks so far."""
    zero = len(variance) - len(noisy.variance)
    if zero:
        remarks.found.append(
            f"{zero} of {len(error)} values have a predicted variance of zero and are excluded from NLL, RZV, ENCE and "
            "z-scores"
        )
    tiny = int(np.count_nonzero(noisy.variance < TINY**2 * np.mean(variance)))
    if tiny:
        remarks.found.append(
            f"nll: {tiny} of {len(error)} entries have a σ below {TINY:g} times the root mean variance, as components "
            "that vanish by symmetry have up to rounding; they may lower the mean considerably"
        )
    return PaperMetrics(
        count=len(error),
        zero_variance=zero,
        mae=remarks.attempt("mae", lambda: metrics.mae(error), NAN),
        rmse=remarks.attempt("rmse", lambda: metrics.rmse(error), NAN),
        nll=remarks.attempt("nll", lambda: noisy.measure(metrics.nll, dof), NAN),
        rzv=remarks.attempt("rzv", lambda: noisy.measure(metrics.rzv), NAN),
        ence=bins.ence if len(bins.count) else NAN,
        cv=remarks.attempt("cv", lambda: metrics.coefficient_of_variation(variance), NAN),
        rmv=remarks.attempt("rmv", lambda: metrics.rmv(variance), NAN),
        remarks=tuple(remarks.found),
    )
