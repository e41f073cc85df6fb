"""Random Gaussians over batches of structures of different sizes, drawn by NumPy: nothing to compile."""

import jax.numpy as jnp
import numpy as np

from huefield.core import EnergyForces, EnergyForcesStack, Gaussian, Partition
from huefield.testing import flatten

SIZES = [3, 1, 4]


def padded_partition(padding: int = 2) -> Partition:
    """Structures of ``SIZES`` atoms with padding atoms behind them."""
    index = np.concatenate([np.repeat(np.arange(len(SIZES)), SIZES), np.full(padding, len(SIZES))])
    return Partition(jnp.asarray(index, dtype=jnp.int32), len(SIZES))


def random_gaussian(
    seed: int, *, noise_columns: int = 2, member_columns: int = 3, energy_diagonal: bool = True, dimension: int = 3
) -> Gaussian:
    partition, rng = padded_partition(), np.random.default_rng(seed)
    structures, atoms = partition.num_structures, partition.num_atoms
    mask = np.asarray(partition.atom_mask)[:, None]

    def stack(count: int) -> EnergyForcesStack:
        energy = rng.normal(size=(count, structures))
        forces = np.where(mask, rng.normal(size=(count, atoms, dimension)), 0.0)
        return EnergyForcesStack(jnp.asarray(energy, float), jnp.asarray(forces, float))

    mean = stack(1)[0]
    diagonal = EnergyForces(
        jnp.asarray(rng.uniform(0.1, 1.0, structures) * energy_diagonal, float),
        jnp.asarray(np.where(mask, rng.uniform(0.1, 1.0, (atoms, dimension)), 0.0), float),
    )
    return Gaussian(mean, diagonal, stack(noise_columns), stack(member_columns), partition)


def flat(values: EnergyForces, gaussian: Gaussian, structure: int) -> np.ndarray:
    """(E, F_1x, F_1y, ...) of one structure."""
    return flatten(values, gaussian.partition, structure)
