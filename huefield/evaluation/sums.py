"""Sums over the entries of each structure, from which all metrics follow.

Bins and ranks are those of the whole sample. The area of the retention curve and the AUROC are the mean of a term of
each entry then: the value of the whole sample plus the derivative by the weight of the entry, which includes to first
order that ranks would move.

Symbols: a_j absolute errors in the order of rising variance, M_k = (a_1 + ... + a_k)/k, A = mean of M_k.
"""

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool, Float, Int

from huefield.evaluation.curves import LEVELS, bin_numbers, covered_from
from huefield.evaluation.entries import UndefinedMetricError, in_sigmas
from huefield.evaluation.metrics import crps_terms, nll_terms
from huefield.evaluation.ranking import WORST, Ranking, placements

COVERAGES = (0.50, 0.68, 0.90, 0.95, 0.99)
"""Probabilities of the intervals whose coverage is told."""
Row = Float[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the entries of each of R structures, or resamples. Zeros where something is undefined."""

    moments: Float[np.ndarray, "R 6"]
    """1, |error|, error², σ², σ, CRPS."""
    noisy: Float[np.ndarray, "R 4"]
    """1, NLL, z, z² of entries with a variance above zero."""
    bins: Float[np.ndarray, "R three_K"]
    """1, σ², error² of the same entries in each bin: first all counts, then all variances, then all errors."""
    ranks: Float[np.ndarray, "R 5"]
    """v, e, v², e², v e with centred ranks of variances v and of absolute errors e."""
    retention: Float[np.ndarray, "R 1"]
    """Terms whose mean is the area of the retention curve."""
    worst: Float[np.ndarray, "R 4"]
    """1 and placement of the worst entries; 1 and placement less its mean of the others."""
    covered: Float[np.ndarray, "R 5"]
    """Entries inside the intervals."""
    curve: Float[np.ndarray, "R L"]
    """Entries inside the intervals of the coverage curve."""

    def stacked(self) -> Float[np.ndarray, "R C"]:
        """All columns in one matrix."""
        return np.concatenate([getattr(self, field.name) for field in fields(self)], axis=1)

    def like(self, stacked: Float[np.ndarray, "B C"]) -> "Sums":
        """Other sums with the same columns."""
        ends = np.cumsum([getattr(self, field.name).shape[1] for field in fields(self)])
        return Sums(*np.split(stacked, ends[:-1], axis=1))


@dataclass(frozen=True, eq=False)
class Owners:
    """The structure of each entry, numbered from zero without gaps."""

    number: Int[np.ndarray, " n"]
    count: int

    def sums(self, *columns: Row | float) -> Float[np.ndarray, "S C"]:
        """Of columns of entries."""
        whole = (np.broadcast_to(column, self.number.shape) for column in columns)
        return np.stack([np.bincount(self.number, column, self.count) for column in whole], axis=1, dtype=float)

    def counts(
        self, number: Int[np.ndarray, " n"], kinds: int, weight: Row | None = None
    ) -> Float[np.ndarray, "S kinds"]:
        """How often each of some numbers occurs, or the sum of weights there."""
        cells = np.bincount(self.number * kinds + number, weight, self.count * kinds)
        return cells.reshape(self.count, kinds).astype(float, copy=False)

    def select(self, entries: Bool[np.ndarray, " n"] | Int[np.ndarray, " m"]) -> "Owners":
        """Of some entries, in their order."""
        return Owners(self.number[entries], self.count)


def sums_by_structure(error: Row, variance: Row, owners: Owners, *, bins: int) -> Sums:
    """Sums of checked entries."""
    sigma, kept, ranking = np.sqrt(variance), variance > 0, Ranking.of(error, variance)
    with np.errstate(over="ignore"):
        moments = owners.sums(1.0, np.abs(error), error**2, variance, sigma, crps_terms(error, variance))
    noisy = (error[kept], variance[kept], owners.select(kept))
    ranked = owners.select(ranking.order)
    return Sums(
        moments,
        _noisy(*noisy),
        _binned(*noisy, bins),
        _ranked(ranking, ranked),
        ranked.sums(retention_terms(ranking)),
        _placed(ranking, ranked),
        *(_covered(error, variance, owners, np.array(levels)) for levels in (COVERAGES, LEVELS)),
    )


def _noisy(error: Row, variance: Row, owners: Owners) -> Float[np.ndarray, "S 4"]:
    with np.errstate(over="ignore"):
        z = in_sigmas(error, variance)
        return owners.sums(1.0, nll_terms(error, variance), z, z**2)


def _binned(error: Row, variance: Row, owners: Owners, bins: int) -> Float[np.ndarray, "S three_K"]:
    try:
        number = bin_numbers(variance, bins)
    except UndefinedMetricError:
        return np.zeros((owners.count, 3))
    kinds = int(number.max()) + 1
    return np.concatenate([owners.counts(number, kinds, weight) for weight in (None, variance, error**2)], 1)


def _ranked(ranking: Ranking, owners: Owners) -> Float[np.ndarray, "S 5"]:
    v, e = ranking.variance_ranks(), ranking.error_ranks()
    return owners.sums(v, e, v**2, e**2, v * e)


def retention_terms(ranking: Ranking) -> Row:
    """M_j + a_j Σ_{k≥j} 1/k − Σ_{k≥j} M_k/k, which is A + n ∂A/∂(weight of j); shared by equal variances."""
    n = len(ranking)
    mean = ranking.kept_mae()
    rank = np.arange(1, n + 1)
    tails = [np.cumsum(terms[::-1])[::-1] for terms in (1 / rank, mean / rank)]
    return ranking.shared(mean) + ranking.absolute * ranking.shared(tails[0]) - ranking.shared(tails[1])


def _placed(ranking: Ranking, owners: Owners) -> Float[np.ndarray, "S 4"]:
    worst = ranking.worst(WORST)
    try:
        place = placements(ranking, worst)
    except UndefinedMetricError:
        return np.zeros((owners.count, 4))
    less = place - place[~worst].mean()
    return owners.sums(worst.astype(float), worst * place, (~worst).astype(float), ~worst * less)


def _covered(error: Row, variance: Row, owners: Owners, levels: Float[np.ndarray, " L"]) -> Float[np.ndarray, "S L"]:
    number = covered_from(np.abs(in_sigmas(error, variance)), levels)
    return np.cumsum(owners.counts(number, len(levels) + 1), axis=1)[:, :-1]
