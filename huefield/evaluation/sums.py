"""Sums over the entries of each structure, from which all metrics can be computed.

Bins and ranks are those of the whole sample. The area of the retention curve and the AUROC then are means of one term
per entry: the value of the whole sample plus the derivative with respect to the weight of the entry, which accounts to
first order for the change of ranks.

Symbols: a_j absolute errors in the order of rising variance, M_k = (a_1 + ... + a_k)/k, A = mean of M_k.
"""

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool, Float, Int

from huefield.core.tails import crps_terms, nll_terms
from huefield.evaluation.curves import CURVE_COVERAGES, bin_numbers, covered_from
from huefield.evaluation.entries import UndefinedMetricError, Vector, in_sigmas
from huefield.evaluation.ranking import WORST_FRACTION, Ranking, centred_ranks, placements

COVERAGES = (0.50, 0.68, 0.90, 0.95, 0.99)
"""Nominal coverages in tables."""


@dataclass(frozen=True, eq=False)
class MetricSums:
    """Sums over the entries of each of R structures or resamples; zeros for undefined terms."""

    moments: Float[np.ndarray, "R 6"]
    """1, |error|, error², σ², σ, CRPS."""
    noisy: Float[np.ndarray, "R 4"]
    """1, NLL, z, z² of entries with a variance above zero."""
    bins: Float[np.ndarray, "R three_K"]
    """1, σ², error² of the same entries in each bin: all counts, then all variances, then all errors."""
    ranks: Float[np.ndarray, "R 5"]
    """v, e, v², e², v e with centred ranks of variances v and of absolute errors e."""
    retention: Float[np.ndarray, "R 1"]
    """Terms whose mean is the area of the retention curve."""
    worst: Float[np.ndarray, "R 4"]
    """1 and placement of the worst entries; 1 and centred placement of the others."""
    covered: Float[np.ndarray, "R 5"]
    """Number of entries inside the intervals of ``COVERAGES``."""
    curve: Float[np.ndarray, "R L"]
    """Number of entries inside the intervals of the coverage curve."""

    def stacked(self) -> Float[np.ndarray, "R C"]:
        """All columns in one matrix."""
        return np.concatenate([getattr(self, field.name) for field in fields(self)], axis=1)

    def like(self, stacked: Float[np.ndarray, "B C"]) -> "MetricSums":
        """Sums of other rows, given as a matrix with the same columns."""
        ends = np.cumsum([getattr(self, field.name).shape[1] for field in fields(self)])
        return MetricSums(*np.split(stacked, ends[:-1], axis=1))


@dataclass(frozen=True, eq=False)
class Owners:
    """The structure of each entry, numbered from zero without gaps."""

    number: Int[np.ndarray, " n"]
    count: int

    def sums(self, *columns: Vector | float) -> Float[np.ndarray, "S C"]:
        """Sums of columns over the entries of each structure."""
        whole = (np.broadcast_to(column, self.number.shape) for column in columns)
        return np.stack([np.bincount(self.number, column, self.count) for column in whole], axis=1, dtype=float)

    def counts(
        self, number: Int[np.ndarray, " n"], kinds: int, weight: Vector | None = None
    ) -> Float[np.ndarray, "S kinds"]:
        """Number of entries, or sum of weights, of each kind in each structure."""
        cells = np.bincount(self.number * kinds + number, weight, self.count * kinds)
        return cells.reshape(self.count, kinds).astype(float, copy=False)

    def select(self, entries: Bool[np.ndarray, " n"] | Int[np.ndarray, " m"]) -> "Owners":
        """Structures of a selection of entries, in their order."""
        return Owners(self.number[entries], self.count)


def sums_by_structure(
    error: Vector, variance: Vector, owners: Owners, *, bins: int, dof: float | None = None
) -> MetricSums:
    """Sums of checked entries by structure; ``dof`` is that of their t distribution, None for a normal one."""
    sigma, kept, ranking = np.sqrt(variance), variance > 0, Ranking.of(error, variance)
    with np.errstate(over="ignore"):
        moments = owners.sums(1.0, np.abs(error), error**2, variance, sigma, crps_terms(error, variance, dof))
    noisy = (error[kept], variance[kept], owners.select(kept))
    ranked = owners.select(ranking.order)
    return MetricSums(
        moments,
        _noisy(*noisy, dof),
        _binned(*noisy, bins),
        _ranked(error, variance, owners),
        ranked.sums(retention_terms(ranking)),
        _placed(ranking, ranked),
        *(_covered(error, variance, owners, np.array(coverages), dof) for coverages in (COVERAGES, CURVE_COVERAGES)),
    )


def _noisy(error: Vector, variance: Vector, owners: Owners, dof: float | None) -> Float[np.ndarray, "S 4"]:
    with np.errstate(over="ignore"):
        z = in_sigmas(error, variance)
        return owners.sums(1.0, nll_terms(error, variance, dof), z, z**2)


def _binned(error: Vector, variance: Vector, owners: Owners, bins: int) -> Float[np.ndarray, "S three_K"]:
    try:
        number = bin_numbers(variance, bins)
    except UndefinedMetricError:
        return np.zeros((owners.count, 3))
    kinds = int(number.max()) + 1
    return np.concatenate([owners.counts(number, kinds, weight) for weight in (None, variance, error**2)], 1)


def _ranked(error: Vector, variance: Vector, owners: Owners) -> Float[np.ndarray, "S 5"]:
    v, e = centred_ranks(variance), centred_ranks(np.abs(error))
    return owners.sums(v, e, v**2, e**2, v * e)


def retention_terms(ranking: Ranking) -> Vector:
    """M_j + a_j Σ_{k≥j} 1/k − Σ_{k≥j} M_k/k = A + n ∂A/∂(weight of j), averaged over entries of equal variance."""
    n = len(ranking)
    mean = ranking.kept_mae()
    rank = np.arange(1, n + 1)
    tails = [np.cumsum(terms[::-1])[::-1] for terms in (1 / rank, mean / rank)]
    return ranking.shared(mean) + ranking.absolute * ranking.shared(tails[0]) - ranking.shared(tails[1])


def _placed(ranking: Ranking, owners: Owners) -> Float[np.ndarray, "S 4"]:
    worst = ranking.worst(WORST_FRACTION)
    try:
        place = placements(ranking, worst)
    except UndefinedMetricError:
        return np.zeros((owners.count, 4))
    less = place - place[~worst].mean()
    return owners.sums(worst.astype(float), worst * place, (~worst).astype(float), ~worst * less)


def _covered(
    error: Vector, variance: Vector, owners: Owners, coverages: Float[np.ndarray, " L"], dof: float | None
) -> Float[np.ndarray, "S L"]:
    number = covered_from(np.abs(in_sigmas(error, variance)), coverages, dof)
    return np.cumsum(owners.counts(number, len(coverages) + 1), axis=1)[:, :-1]
