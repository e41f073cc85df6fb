"""Observables that are linear in the energy and the forces of a structure, and their distributions."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from huefield.core.types import Partition
from huefield.support.checks import require_positive, require_shape


class Observable(eqx.Module):
    """Q rows of weights A; row q of structure s is ``energy[q, s] E_s + Σ_a forces[q, a]·F_a`` over its atoms a."""

    energy: Float[Array, "Q S"]
    forces: Float[Array, "Q A D"]

    def __len__(self) -> int:
        return self.energy.shape[0]

    @classmethod
    def of_forces(cls, weights: Float[Array, "Q A D"], partition: Partition) -> "Observable":
        """Observables of the forces alone."""
        require_shape("weights", weights, (None, partition.num_atoms, None))
        return cls(jnp.zeros((weights.shape[0], partition.num_structures), weights.dtype), weights)

    @classmethod
    def along(cls, direction: Float[Array, "A D"], partition: Partition) -> "Observable":
        """The force along a direction in configuration space, such as the tangent of a reaction path.

        The direction of each structure is normalised.
        """
        require_shape("direction", direction, (partition.num_atoms, None))
        length = jnp.sqrt(partition.sum(jnp.sum(direction**2, axis=1)))
        has_atoms = partition.sum(jnp.ones_like(direction[:, 0])) > 0
        require_positive(
            "the length of the direction of a structure",
            jnp.where(has_atoms, length, 1.0),
            hint="a direction of length zero points nowhere: leave this structure out",
        )
        unit = jnp.where(partition.atom_mask[:, None], direction / partition.spread(length)[:, None], 0.0)
        return cls.of_forces(unit[None], partition)

    @classmethod
    def net_force(cls, partition: Partition, dimension: int) -> "Observable":
        """The sum of the forces on all atoms: D components."""
        weights = jnp.broadcast_to(jnp.eye(dimension)[:, None, :], (dimension, partition.num_atoms, dimension))
        return cls.of_forces(weights, partition)


class ObservableDistribution(eqx.Module):
    """Mean and covariance of Q observables of each structure, with separate noise and member parts."""

    mean: Float[Array, "S Q"]
    aleatoric_cov: Float[Array, "S Q Q"]
    epistemic_cov: Float[Array, "S Q Q"]

    def covariance(self) -> Float[Array, "S Q Q"]:
        """Total covariance."""
        return self.aleatoric_cov + self.epistemic_cov

    def variance(self) -> Float[Array, "S Q"]:
        """Total variance of each observable."""
        return jnp.diagonal(self.covariance(), axis1=1, axis2=2)
