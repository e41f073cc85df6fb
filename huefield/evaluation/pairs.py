"""Energy differences between structures of one group, predicted and observed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from huefield.core.structure import Block
from huefield.model.calibration import ConformalCalibration
from huefield.model.ensemble import Ensemble
from huefield.model.joint_calibration import EnergyForcesCalibration

MOST_PAIRS = 300
"""Largest number of pairs of one group (drawn at random), so that no group dominates."""
MOST_PAIRS_IN_ALL = 5000
"""Largest number of all pairs, each of which takes some milliseconds."""
FEWEST_PAIRS, FEWEST_STRUCTURES = 50, 30
"""Smallest numbers for a calibration. Pairs share structures, so that many pairs may contain few errors."""


@dataclass(frozen=True, eq=False)
class EnergyPairs:
    """Pairs of structures of the same atoms and the same group."""

    error: Float[np.ndarray, " n"]
    """Predicted minus true difference, [eV]."""
    deviation: Float[np.ndarray, " n"]
    """Standard deviation of the difference from the covariance of both energies."""
    independent: Float[np.ndarray, " n"]
    """Standard deviation of the difference for independent errors."""
    groups: tuple[str, ...]
    structures: int
    """Number of structures in these pairs."""

    def __len__(self) -> int:
        return len(self.error)

    def held(self, width: float) -> float:
        """Fraction of differences within ``width`` standard deviations."""
        return float(np.mean(np.abs(self.error) <= width * self.deviation))


def energy_pairs(
    ensemble: Ensemble,
    block: Block,
    *,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> EnergyPairs:
    """Compare energy differences within each group.

    Args:
        ensemble: the model; its calibration of differences is ignored.
        block: structures; those without an energy are ignored.
        seed: seed of the draw if there are very many pairs.
        report: receives the number of predicted structures and the number of all.
    """
    labelled = block.select(block.has_energy)
    drawn = drawn_pairs(labelled, np.random.default_rng(seed))
    if not len(drawn):
        nothing = np.zeros(0)
        return EnergyPairs(nothing, nothing, nothing, (), 0)
    used, places = np.unique(drawn, return_inverse=True)
    terms = _without_differences(ensemble).energy_terms([labelled[index] for index in used.tolist()], report)
    found = [terms.covariance(pair).difference(0, 1) for pair in places.reshape(-1, 2).tolist()]
    true = labelled.energy[drawn[:, 1]] - labelled.energy[drawn[:, 0]]
    return EnergyPairs(
        error=np.array([each.value for each in found]) - true,
        deviation=np.array([each.uncertainty for each in found]),
        independent=np.array([each.uncertainty_if_independent for each in found]),
        groups=tuple(labelled.groups[first] for first in drawn[:, 0].tolist()),
        structures=len(used),
    )


def _without_differences(ensemble: Ensemble) -> Ensemble:
    calibration = ensemble.calibration
    if not isinstance(calibration, EnergyForcesCalibration):
        return ensemble
    return ensemble.with_calibration(calibration.model_copy(update={"differences": None}))


def fit_differences(pairs: EnergyPairs) -> ConformalCalibration | None:
    """Widths of the intervals of differences; None with too few pairs or structures, or without any error.

    Pairs are not independent, so that these intervals have no guaranteed coverage.
    """
    noisy = pairs.deviation > 0
    if noisy.sum() < FEWEST_PAIRS or pairs.structures < FEWEST_STRUCTURES or not pairs.error[noisy].any():
        return None
    return ConformalCalibration.fit(pairs.deviation[noisy] ** 2, pairs.error[noisy])


def drawn_pairs(block: Block, rng: np.random.Generator) -> Int[np.ndarray, "n 2"]:
    """Indices of pairs of structures with equal group, composition and cell; a random selection of very many."""
    found = [np.zeros((0, 2), np.int64)]
    for members in _groups(block):
        count = len(members) * (len(members) - 1) // 2
        # Pair number i + j (j − 1) / 2 has i < j. A list of all pairs might not fit into memory.
        numbers = np.sort(rng.choice(count, min(count, MOST_PAIRS), replace=False)) if count else np.zeros(0, np.int64)
        second = np.floor(0.5 + np.sqrt(0.25 + 2 * numbers)).astype(np.int64)
        first = numbers - second * (second - 1) // 2
        found.append(members[np.stack([first, second], axis=1)])
    pairs = np.concatenate(found)
    return pairs[np.sort(rng.permutation(len(pairs))[:MOST_PAIRS_IN_ALL])]


def _groups(block: Block) -> list[Int[np.ndarray, " m"]]:
    """Indices of structures by data set, group, composition and, if they are periodic, cell."""
    found: dict[tuple[str, str, bytes, bytes], list[int]] = {}
    for index in range(len(block)):
        structure = block[index]
        lattice = np.where(structure.pbc.any(), structure.cell, 0.0).tobytes() + structure.pbc.tobytes()
        atoms = np.sort(structure.atomic_numbers).tobytes()
        found.setdefault((structure.tag, structure.group, atoms, lattice), []).append(index)
    return [np.array(members, np.int64) for members in found.values()]
