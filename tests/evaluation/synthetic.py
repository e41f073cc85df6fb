"""Predictions with errors that follow their variances, for molecules that nobody has to compute."""

import numpy as np

from huefield.core.structure import Block, Structure, pack
from huefield.evaluation.predictions import Marginals, Predictions

WATER = np.array([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])


def waters(count: int, *, seed: int = 0, cell: float = 0.0, group: str = "water") -> Block:
    """Shaken molecules of water with energies and forces; periodic ones if there is a cell."""
    rng = np.random.default_rng(seed)
    structures = [
        Structure(
            np.array([8, 1, 1], np.uint8),
            WATER + 0.05 * rng.standard_normal((3, 3)),
            cell * np.eye(3),
            np.full(3, cell > 0),
            energy=-470.0 + rng.standard_normal(),
            forces=rng.standard_normal((3, 3)),
            group=group,
        )
        for _ in range(count)
    ]
    return pack(structures, np.arange(count), "synthetic")


def predicted(
    block: Block, *, name: str = "model", scale: float = 1.0, seed: int = 1, parts: bool = True
) -> Predictions:
    """Predictions that are off by their own standard deviations; ``scale`` makes them too unsure or too sure."""
    rng = np.random.default_rng(seed)
    return Predictions(
        name, block, _marginals(block.energy, 0.02, scale, rng, parts), _marginals(block.forces, 0.1, scale, rng, parts)
    )


def _marginals(target: np.ndarray, size: float, scale: float, rng: np.random.Generator, parts: bool) -> Marginals:
    sigma = size * np.exp(0.5 * rng.standard_normal(target.shape))
    variance = (scale * sigma) ** 2
    mean = target + sigma * rng.standard_normal(target.shape)
    return Marginals(mean, variance, 0.75 * variance, 0.25 * variance) if parts else Marginals(mean, variance)
