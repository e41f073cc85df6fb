"""The interface of a noise model: raw outputs of a potential in, a covariance diag(d) + U Uᵀ out."""

from abc import abstractmethod
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from huefield.core import EnergyForces, EnergyForcesStack, Graph, Outputs, Partition
from huefield.core.strain import strain_var
from huefield.support.config import FrozenConfig

Number = float | Float[Array, ""]
"""A number that may be known only when a compiled program runs."""


LevelReadout = Literal["sum", "mean", "root"]
"""How outputs s_i of N atoms become one number: Σ s_i, Σ s_i / N, or Σ s_i / √N."""


class Covariance(eqx.Module):
    """The covariance diag(diagonal) + columns columnsᵀ of (E, F) for each structure."""

    diagonal: EnergyForces
    columns: EnergyForcesStack


class AbstractNoise(eqx.Module):
    """A noise model.

    To write one: name the raw outputs it needs per atom; say which of its levels must be differentiated with respect
    to the positions; map levels, their gradients and raw outputs to a covariance. Formulas are written with
    ``partition.sum`` (atoms to structures) and ``partition.spread`` (structures to atoms), and so hold for batches.
    """

    config: eqx.AbstractVar[FrozenConfig]

    @property
    @abstractmethod
    def raw_outputs(self) -> tuple[str, ...]:
        """Names of the O raw outputs per atom that the potential has to supply."""

    @property
    def has_variance(self) -> bool:
        """Whether a single member predicts noise, and so has a likelihood."""
        return True

    @property
    def is_size_consistent(self) -> bool:
        """Whether distant atoms leave the force noise unchanged and only add to the energy noise."""
        return False

    @property
    def is_coherent(self) -> bool:
        """Whether the force noise is the derivative of the energy noise: Cov(E, F) = −½ ∂Var(E)."""
        return False

    @property
    def grows(self) -> bool:
        """Whether noise of single atoms can grow with their distance to the training data (:func:`growth_in`)."""
        return False

    @abstractmethod
    def levels(self, raw: Float[Array, "A O"], graph: Graph) -> Float[Array, "C S"]:
        """The noise levels whose gradients the covariance needs, [eV]; none for a model that needs no gradient."""

    @abstractmethod
    def covariance(self, outputs: Outputs, graph: Graph) -> Covariance:
        """The covariance of energies and forces."""

    def inverse_lengths(self, outputs: Outputs, graph: Graph) -> Float[Array, "C A"]:
        """γ_c,i [Å⁻²] of the processes behind the columns, by which energies of different structures are correlated.

        A model without columns has none: its noise is white, independent for every structure.
        """
        return jnp.zeros((0, graph.partition.num_atoms), outputs.energy.dtype)

    def watched(self) -> dict[str, Float[Array, "*n"]]:
        """Parameters to report during training, by name."""
        return {}

    @abstractmethod
    def initialised(self, energy_rmse: Number, force_rmse: Number, atoms: Number = 1.0) -> "AbstractNoise":
        """The same model with noise levels that match the given errors where the raw outputs are zero.

        Raw outputs are zero before the noise is trained. Trained offsets and γ are replaced.

        Args:
            energy_rmse: error of the energy of a structure [eV].
            force_rmse: error of a force component [eV/Å].
            atoms: atoms of such a structure; only models whose energy noise is a sum over atoms depend on it.
        """


def isotropic(
    energy_var: Float[Array, " S"], force_var: Float[Array, " A"], outputs: Outputs, graph: Graph
) -> EnergyForces:
    """A diagonal with one variance for the force components of an atom, and that of the strain derivative."""
    forces = jnp.broadcast_to(force_var[:, None], outputs.energy_gradient.shape)
    return EnergyForces(energy_var, forces, None if outputs.energy_strain is None else strain_var(graph, force_var))


class AtomGrowth(NamedTuple):
    """Factors of the noise of each atom far from the training data (:mod:`huefield.noise.novelty`)."""

    level: Float[Array, " A"]
    """Of the noise level."""
    rest: Float[Array, " A"]
    """Of the rest of the force variance."""


def growth_in(raw: Float[Array, "A O"], noise: AbstractNoise) -> AtomGrowth:
    """Growth of the noise: the two columns after the outputs of the network, or 1 without them."""
    count = len(noise.raw_outputs)
    if raw.shape[1] == count:
        return AtomGrowth(jnp.ones_like(raw[:, 0]), jnp.ones_like(raw[:, 0]))
    return AtomGrowth(raw[:, count], raw[:, count + 1])


def over_atoms(raw: Float[Array, "A k"], partition: Partition, readout: LevelReadout) -> Float[Array, "S k"]:
    """One number for each structure from those of its atoms; see :data:`LevelReadout`."""
    summed = partition.sum(raw)
    if readout == "sum":
        return summed
    sizes = jnp.maximum(partition.sum(jnp.ones_like(raw[:, 0])), 1.0)
    return summed / (sizes if readout == "mean" else jnp.sqrt(sizes))[:, None]


def softplus_inverse(value: Number) -> Float[Array, ""]:
    """The x with log(1 + eˣ) = value."""
    x = jnp.asarray(value)
    return x + jnp.log(-jnp.expm1(-x))


def positive_level(raw: Float[Array, "*n"], floor: float) -> Float[Array, "*n"]:
    """A noise level from an unconstrained number: floor + softplus(raw).

    [J23] only asks for ρ > 0. The floor keeps 1/ρ² finite in float32 however far a network pushes its output down.
    """
    return floor + jax.nn.softplus(raw)


def raw_for_level(level: Number, floor: float, like: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The raw number that :func:`positive_level` maps to ``level``, in the shape and precision of ``like``.

    A level below the floor cannot be reached and is replaced by 1.001 times the floor.
    """
    above = jnp.maximum(jnp.asarray(level, like.dtype) - floor, 1e-3 * floor)
    return jnp.broadcast_to(softplus_inverse(above), like.shape).astype(like.dtype)
