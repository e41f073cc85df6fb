"""Random Gaussians over batches of structures of different sizes."""

import jax
import jax.numpy as jnp
import numpy as np

from huefield.core import EnergyForces, EnergyForcesStack, Gaussian, Partition

SIZES = [3, 1, 4]


def padded_partition(padding: int = 2) -> Partition:
    """Structures of ``SIZES`` atoms with padding atoms behind them."""
    index = np.concatenate([np.repeat(np.arange(len(SIZES)), SIZES), np.full(padding, len(SIZES))])
    return Partition(jnp.asarray(index, dtype=jnp.int32), len(SIZES))


def random_gaussian(
    seed: int, *, noise_columns: int = 2, member_columns: int = 3, energy_diagonal: bool = True, dimension: int = 3
) -> Gaussian:
    partition = padded_partition()
    s, a = partition.num_structures, partition.num_atoms
    keys = iter(jax.random.split(jax.random.key(seed), 8))
    mask = partition.atom_mask[:, None]

    def stack(count: int) -> EnergyForcesStack:
        energy = jax.random.normal(next(keys), (count, s))
        return EnergyForcesStack(energy, jnp.where(mask, jax.random.normal(next(keys), (count, a, dimension)), 0.0))

    mean = stack(1)[0]
    diagonal = EnergyForces(
        jax.random.uniform(next(keys), (s,), minval=0.1) if energy_diagonal else jnp.zeros(s),
        jnp.where(mask, jax.random.uniform(next(keys), (a, dimension), minval=0.1), 0.0),
    )
    return Gaussian(mean, diagonal, stack(noise_columns), stack(member_columns), partition)


def flat(values: EnergyForces, gaussian: Gaussian, structure: int) -> np.ndarray:
    """(E, F_1x, F_1y, ...) of one structure."""
    rows = gaussian.partition.atoms_of(structure)
    return np.append(np.asarray(values.energy)[structure], np.asarray(values.forces)[rows].ravel())
