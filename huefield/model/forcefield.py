"""A force field: a potential with a noise model, one member of an ensemble."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from pydantic import Field, model_serializer

from huefield.core import EnergyForcesStack, Gaussian, Graph, Outputs
from huefield.noise import AbstractNoise, NoiseConfig
from huefield.noise.base import AtomGrowth, Covariance
from huefield.noise.novelty import Novelty
from huefield.potentials import AbstractPotential, PotentialConfig, differentiate
from huefield.potentials.base import AtomOutputs
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

Correction = Literal["learned", "none"]
"""Whether a network predicts energies, or only the noise of a baseline that stays as it is."""


class ForceField(eqx.Module):
    """One member: a batch of structures in, the joint Gaussian of energies and forces out."""

    class Config(FrozenConfig):
        """The potential and the noise model of a member."""

        potential: PotentialConfig
        noise: NoiseConfig
        correction: Correction = Field(
            "learned",
            description="with none, the mean is that of isolated atoms and of the baseline, and the network predicts "
            "only the noise",
        )

        @model_serializer(mode="wrap")
        def _without_default(self, plain: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
            """Without ``correction: learned``, which files of older versions do not have."""
            content = plain(self)
            if content.get("correction") == "learned":
                del content["correction"]
            return content

        def build(self, *, key: Key[Array, ""]) -> "ForceField":
            """A member with random weights."""
            noise = self.noise.build()
            return ForceField(self.potential.build(len(noise.raw_outputs), key=key), noise, self.correction)

    potential: AbstractPotential
    noise: AbstractNoise
    correction: Correction = eqx.field(static=True, default="learned")
    log_strain_rest: Float[Array, ""] | None = None
    """log κ, the factor of the rest of the variance of ∂E/∂ε, which stress labels teach; None without them: κ = 1.

    The rest follows from that of the forces as if errors of distant atoms were independent. They need not be, and a
    likelihood of stresses with κ = 1 would fit the noise of the forces to errors of stresses.
    """

    novelty: Novelty | None = None
    """How noise grows with the distance to the training data; None while training, and for noise that cannot grow."""

    def __call__(self, graph: Graph, *, strain: bool = False) -> Gaussian:
        """The distribution that this member predicts: mean (E_θ, −∂E_θ/∂r) and the covariance of its noise model.

        Args:
            graph: the structures.
            strain: whether to include ∂E/∂ε, which is the stress times the volume.
        """
        return self.distribution(self.outputs(graph, strain=strain), graph)

    def distribution(self, outputs: Outputs, graph: Graph) -> Gaussian:
        """The same from the outputs of the potential."""
        covariance = self.noise.covariance(outputs, graph)
        if outputs.energy_strain is not None and covariance.diagonal.strain is None:
            raise HuefieldError(
                f"{type(self.noise).__name__} does not define the noise of the stress: predict without stress"
            )
        return self._distribution(outputs, covariance, graph)

    def as_taught(self, graph: Graph, share: Float[Array, " S"], *, strain: bool = False) -> Gaussian:
        """The same distribution; a share of the gradients of its forces and stresses reaches the noise levels ρ.

        Args:
            graph: the structures.
            share: of each structure, between 0 (no gradient) and 1 (all of it).
            strain: whether to include ∂E/∂ε.
        """
        outputs = self.outputs(graph, strain=strain)

        def part(x: Array, share: Array) -> Array:
            fixed = jax.lax.stop_gradient(x)
            return fixed + share * (x - fixed)

        levels = part(outputs.levels, share)
        gradients = part(outputs.level_gradients, graph.partition.spread(share)[:, None])
        strains = None if outputs.level_strains is None else part(outputs.level_strains, share[:, None, None])
        of_forces = replace(outputs, levels=levels, level_gradients=gradients, level_strains=strains)
        whole, less = (self.noise.covariance(each, graph) for each in (outputs, of_forces))
        diagonal = replace(whole.diagonal, forces=less.diagonal.forces, strain=less.diagonal.strain)
        columns = replace(whole.columns, forces=less.columns.forces, strain=less.columns.strain)
        return self._distribution(outputs, Covariance(diagonal, columns), graph)

    def outputs(self, graph: Graph, *, strain: bool = False) -> Outputs:
        """Energies and noise levels with their gradients, from which the distribution is computed."""
        return self._corrected(differentiate(self._atoms, self._levels, graph, strain=strain))

    def mean_outputs(self, graph: Graph, *, strain: bool = False) -> Outputs:
        """Energies and their gradients without noise levels, for half of the work."""

        def no_levels(raw: Float[Array, "A O"], graph: Graph) -> Float[Array, "0 S"]:
            return jnp.zeros((0, graph.partition.num_structures), raw.dtype)

        return self._corrected(differentiate(self.potential, no_levels, graph, strain=strain))

    def _corrected(self, outputs: Outputs) -> Outputs:
        """The outputs, with zeros for energies that are not to be predicted."""
        if self.correction == "learned":
            return outputs

        def energies(o: Outputs) -> tuple[Array | None, ...]:
            return o.energy, o.energy_gradient, o.energy_of_atoms, o.energy_strain

        nothing = jax.tree.map(jnp.zeros_like, energies(outputs))
        return eqx.tree_at(energies, outputs, nothing, is_leaf=lambda x: x is None)

    def _atoms(self, graph: Graph) -> AtomOutputs:
        """Outputs of the potential, with the growth of the noise as further columns of raw outputs if there is one."""
        atoms = self.potential(graph)
        if self.novelty is None:
            return atoms
        if atoms.features is None:
            raise HuefieldError(f"{type(self.potential).__name__} has no features, by which its noise could grow")
        growth = self.novelty.growth(atoms.features, graph)
        return replace(atoms, raw=jnp.concatenate([atoms.raw, growth], axis=1))

    def _levels(self, raw: Float[Array, "A O"], graph: Graph) -> Float[Array, "C S"]:
        needed = self.noise.raw_outputs
        if raw.shape[1] != len(needed) + len(AtomGrowth._fields) * (self.novelty is not None):
            raise HuefieldError(
                f"{type(self.potential).__name__} gives {raw.shape[1]} raw outputs, but {type(self.noise).__name__} "
                f"needs {len(needed)}: {', '.join(needed)}"
            )
        return self.noise.levels(raw, graph)

    def _distribution(self, outputs: Outputs, covariance: Covariance, graph: Graph) -> Gaussian:
        mean, diagonal = outputs.mean, covariance.diagonal
        if diagonal.strain is not None and self.log_strain_rest is not None:
            diagonal = replace(diagonal, strain=jnp.exp(self.log_strain_rest) * diagonal.strain)
        return Gaussian(mean, diagonal, covariance.columns, EnergyForcesStack.empty(mean), graph.partition)
