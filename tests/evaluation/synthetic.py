"""Predictions with errors that follow their variances, for molecules that nobody has to compute."""

from dataclasses import replace

import numpy as np

from huefield.core.structure import Block
from huefield.predict.marginals import EnergyForcesMarginals, Marginals
from huefield.predict.predictions import Predictions

WATER = np.array([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])


def crystals(count: int, *, seed: int = 0, cell: float = 6.0) -> Block:
    """Periodic waters with stresses; the last of them is a molecule in a box, whose stress has no meaning."""
    block, rng = waters(count, seed=seed, cell=cell), np.random.default_rng(seed + 100)
    tensors = 0.02 * rng.standard_normal((count, 3, 3))
    pbc = block.pbc.copy()
    pbc[-1] = False
    return replace(block, stress=tensors + np.swapaxes(tensors, 1, 2), has_stress=np.ones(count, bool), pbc=pbc)


def waters(count: int, *, seed: int = 0, cell: float = 0.0, group: str = "water") -> Block:
    """Shaken molecules of water with energies and forces; periodic ones if there is a cell."""
    rng = np.random.default_rng(seed)
    everywhere = np.ones(count, bool)
    return Block(
        sizes=np.full(count, 3),
        atomic_numbers=np.tile(np.array([8, 1, 1], np.uint8), count),
        positions=(WATER + 0.05 * rng.standard_normal((count, 3, 3))).reshape(-1, 3),
        cells=np.tile(cell * np.eye(3), (count, 1, 1)),
        pbc=np.full((count, 3), cell > 0),
        energy=-470.0 + rng.standard_normal(count),
        has_energy=everywhere,
        forces=rng.standard_normal((3 * count, 3)),
        has_forces=everywhere,
        stress=np.zeros((count, 3, 3)),
        has_stress=~everywhere,
        groups=(group,) * count,
        frames=np.arange(count),
        source="synthetic",
    )


def predicted(
    block: Block,
    *,
    name: str = "model",
    scale: float = 1.0,
    seed: int = 1,
    parts: bool = True,
    dof: float | None = None,
) -> Predictions:
    """Predictions that are off by their own standard deviations; ``scale`` makes them too unsure or too sure.

    Errors are normal, or with ``dof`` Student t, which the predictions then say.
    """
    rng = np.random.default_rng(seed)
    energy = _marginals(block.energy, 0.02, scale, rng, parts, dof)
    forces = _marginals(block.forces, 0.1, scale, rng, parts, dof)
    stress = _marginals(block.stress, 0.005, scale, rng, parts, dof) if block.has_stress.any() else None
    return Predictions(name, block, EnergyForcesMarginals(energy, forces, stress))


def _marginals(
    target: np.ndarray, size: float, scale: float, rng: np.random.Generator, parts: bool, dof: float | None
) -> Marginals:
    sigma = size * np.exp(0.5 * rng.standard_normal(target.shape))
    variance = (scale * sigma) ** 2
    noise = rng.standard_normal(target.shape) if dof is None else _standard_t(dof, target.shape, rng)
    mean = target + sigma * noise
    columns = (mean, variance, 0.75 * variance, 0.25 * variance) if parts else (mean, variance)
    return Marginals(*columns, dof=dof)


def _standard_t(dof: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return np.sqrt((dof - 2) / dof) * rng.standard_t(dof, shape)
