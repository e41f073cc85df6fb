r"""Local colored noise: coherent, and the same for an atom however large its structure is.

Each atom has a noise level ρ_i, a function of its surroundings. The error of the energy is e = ρ η with a process η of
unit variance, as in [J23] arXiv:2312.04174v1, Eq. e_obs_colored, but with a level ρ = Σ_i ρ_i that is a sum of positive
terms. (E, F) is Gaussian with the covariance diag(d) + u uᵀ,

    d = (0, γ_i ρ_i²),      u = (ρ, −∂ρ/∂r).

The column makes it coherent, Cov(E, F) = −½ ∂Var(E). It is local, too: ∂ρ/∂r_i has terms of atoms near i only, and so
have γ_i and ρ_i; atoms far away change no force noise. For distant parts A and B the standard deviations of the energy
add up, ρ = ρ_A + ρ_B. This is right for equal errors, as copies of a molecule have, and an upper bound for all others:
as a liquid grows, σ_E per atom stays constant. In the paper's model, ρ = softplus(b + Σ_i s_i), a sum of negative
outputs makes all noise vanish.

Levels may grow with the distance to the training data, by a factor h_i (:mod:`huefield.noise.novelty`): ρ = Σ_i h_i ρ_i
and d = (0, γ_i √h_i ρ_i²). The rest grows less than ρ², because the slope of h_i is part of the column already.

The kernel of η has the curvature γ_i ρ_i²/ρ² on atom i, see :meth:`LocalNoise.inverse_lengths`.

================  ===========================================================================
symbol            code
================  ===========================================================================
ρ_i               ``atom_levels`` [eV]
ρ, ∂ρ/∂r          ``outputs.levels`` [eV], ``outputs.level_gradients`` [eV/Å]
γ_i               ``gamma`` [Å⁻²]
================  ===========================================================================
"""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field

from huefield.core import EnergyForcesStack, Graph, Outputs
from huefield.noise.base import AbstractNoise, Covariance, Number, growth_in, isotropic, positive_level, raw_for_level
from huefield.noise.gamma import AtomGamma
from huefield.noise.pooling import pooled
from huefield.support.config import FrozenConfig


class LocalNoise(AbstractNoise):
    """d = (0, γ_i ρ_i²) and one column u = (Σ_i ρ_i, −∂/∂r Σ_i ρ_i).

    ρ_i = softplus(b + s_i + p̄_i), and γ_i is γ times a positive function of g_i + q̄_i, with outputs s, p, g and q of
    the network; p̄ and q̄ are pooled over neighbours (:func:`~huefield.noise.pooling.pooled`).
    """

    class Config(FrozenConfig):
        """Choices of the local noise model."""

        kind: Literal["local"] = "local"
        floor_ev: float = Field(1e-6, gt=0, le=1, description="smallest noise level of an atom")

        def build(self) -> "LocalNoise":
            """The model with noise of 1 eV for an atom, and γ = 1 Å⁻²."""
            return LocalNoise(offset=jnp.zeros(()), gamma=AtomGamma.create(1), config=self).initialised(1.0, 1.0)

    offset: Float[Array, ""]
    gamma: AtomGamma
    config: Config = eqx.field(static=True)

    @property
    def raw_outputs(self) -> tuple[str, ...]:
        """s, p, g and q."""
        return ("level", "pooled_level", "gamma", "pooled_gamma")

    @property
    def is_size_consistent(self) -> bool:
        """True: levels are summed over atoms, and forces depend on atoms nearby only."""
        return True

    @property
    def is_coherent(self) -> bool:
        """True: the column is (ρ, −∂ρ/∂r)."""
        return True

    @property
    def grows(self) -> bool:
        """True: each atom has a level."""
        return True

    def atom_levels(self, raw: Float[Array, "A O"], graph: Graph) -> Float[Array, " A"]:
        """ρ_i of each atom without its growth; zero for padding atoms."""
        mixed = raw[:, 0] + pooled(raw[:, 1:2], graph)[:, 0]
        level = positive_level(self.offset + mixed, self.config.floor_ev)
        return jnp.where(graph.partition.atom_mask, level, 0.0)

    def levels(self, raw: Float[Array, "A O"], graph: Graph) -> Float[Array, "C S"]:
        """ρ of each structure."""
        return graph.partition.sum(growth_in(raw, self).level * self.atom_levels(raw, graph))[None]

    def covariance(self, outputs: Outputs, graph: Graph) -> Covariance:
        """γ_i ρ_i² on the diagonal, and the column."""
        diagonal = isotropic(jnp.zeros_like(outputs.energy), self._force_var(outputs, graph), outputs, graph)
        return Covariance(diagonal, EnergyForcesStack(outputs.levels, -outputs.level_gradients, outputs.level_strains))

    def inverse_lengths(self, outputs: Outputs, graph: Graph) -> Float[Array, "C A"]:
        """γ_i ρ_i²/ρ², the curvature of the kernel of η: times Var(E) = ρ² it is the rest of the force variance."""
        level = graph.partition.spread(outputs.levels[0])
        return (self._force_var(outputs, graph) / jnp.where(level > 0, level, 1.0) ** 2)[None]

    def _force_var(self, outputs: Outputs, graph: Graph) -> Float[Array, " A"]:
        """Rest of the force variance of each atom: γ_i ρ_i², and its growth."""
        levels = self.atom_levels(outputs.raw, graph)
        mixed = outputs.raw[:, 2:3] + pooled(outputs.raw[:, 3:4], graph)
        return self.gamma(mixed, levels[None], graph)[0] * levels**2 * growth_in(outputs.raw, self).rest

    def watched(self) -> dict[str, Float[Array, "*n"]]:
        """γ, the common factor; in an ensemble one for each member."""
        return {self.gamma.watched_as: self.gamma.typical(self.offset.ndim)}

    def initialised(self, energy_rmse: Number, force_rmse: Number, atoms: Number = 1.0) -> "LocalNoise":
        """ρ_i = energy_rmse / atoms and γ_i ρ_i² = force_rmse² where the raw outputs vanish."""
        level = energy_rmse / atoms
        offset = raw_for_level(level, self.config.floor_ev, self.offset)
        return eqx.tree_at(lambda n: (n.offset, n.gamma), self, (offset, self.gamma.initialised(level, force_rmse)))
