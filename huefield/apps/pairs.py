"""Differences of energies within the groups of some data, beside what was observed."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from huefield.core.structure import Block
from huefield.evaluation.calibration import ConformalCalibration
from huefield.forcefield import Ensemble

MOST_PAIRS = 300
"""Of one group, drawn at random, so that no group outweighs all others."""
FEWEST_PAIRS = 50
"""To calibrate with."""


@dataclass(frozen=True, eq=False)
class EnergyPairs:
    """Pairs of structures of the same atoms and the same group."""

    error: Float[np.ndarray, " n"]
    """Predicted less true difference, [eV]."""
    deviation: Float[np.ndarray, " n"]
    """Its standard deviation by the covariance of both energies."""
    independent: Float[np.ndarray, " n"]
    """What it would be, were errors independent."""
    is_reaction: Bool[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.error)

    def held(self, width: float) -> float:
        """The share of differences within so many standard deviations."""
        return float(np.mean(np.abs(self.error) <= width * self.deviation))


def energy_pairs(ensemble: Ensemble, block: Block, *, seed: int = 0) -> EnergyPairs:
    """Compare the energies of structures within each group.

    Args:
        ensemble: the model; any calibration of differences is left aside.
        block: structures; those without an energy are left out.
        seed: of the draw where a group has very many pairs.
    """
    plain = ensemble.calibration and ensemble.calibration.model_copy(update={"differences": None})
    labelled = block.select(block.has_energy)
    terms = ensemble.with_calibration(plain).energy_terms([labelled[index] for index in range(len(labelled))])
    rng, rows = np.random.default_rng(seed), []
    for name, members in _groups(labelled).items():
        first, second = np.triu_indices(len(members), 1)
        for pair in rng.permutation(len(first))[:MOST_PAIRS]:
            a, b = members[first[pair]], members[second[pair]]
            found = terms.covariance([a, b]).difference(0, 1)
            error = found.value - (labelled.energy[b] - labelled.energy[a])
            rows.append((error, found.uncertainty, found.uncertainty_if_independent, name[0].startswith("reaction")))
    error, deviation, independent, is_reaction = np.array(rows, float).reshape(-1, 4).T
    return EnergyPairs(error, deviation, independent, is_reaction > 0)


def fit_differences(pairs: EnergyPairs) -> ConformalCalibration | None:
    """Widths of intervals of differences; None where there are too few pairs, or where nothing varies."""
    noisy = pairs.deviation > 0
    if noisy.sum() < FEWEST_PAIRS or not pairs.error[noisy].any():
        return None
    return ConformalCalibration.fit(pairs.deviation[noisy] ** 2, pairs.error[noisy])


def _groups(block: Block) -> dict[tuple[str, bytes], list[int]]:
    """Structures by group and composition."""
    found: dict[tuple[str, bytes], list[int]] = {}
    for index in range(len(block)):
        numbers = np.sort(block[index].atomic_numbers).tobytes()
        found.setdefault((block.groups[index], numbers), []).append(index)
    return found
