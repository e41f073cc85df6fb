r"""Colored noise: the force noise is the derivative of the energy noise.

[J23] arXiv:2312.04174v1, section "Colored noise model". The energy is observed as E_θ + Σ_c ρ_c η_c with independent
unit-variance processes η_c whose autocorrelation R is differentiable (the paper has one, c = 1). Then
(E, −∂E/∂r) is Gaussian with the covariance diag(d) + Σ_c u_c u_cᵀ,

    d = (0, Σ_c γ_c,i ρ_c²),      u_c = (ρ_c, −∂ρ_c/∂r).

Its diagonal is [J23] Eq. force_var_colored_simplified, Var(F_ix) = γρ² + (∂ρ/∂r_ix)²; its first row follows from the
derivative of [J23] Eq. e_cov with respect to one argument, the rest from [J23] Eq. force_cov.

================  ===========================
symbol            code
================  ===========================
ρ_c               ``outputs.levels`` [eV]
∂ρ_c/∂r           ``outputs.level_gradients`` [eV/Å]
γ_c,i             ``gamma`` [Å⁻²]
================  ===========================
"""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpy.typing import ArrayLike
from pydantic import Field

from huefield.core import EnergyForcesStack, Graph, Outputs
from huefield.noise.base import (
    AbstractNoise,
    Covariance,
    LevelReadout,
    Number,
    isotropic,
    over_atoms,
    positive_level,
    raw_for_level,
)
from huefield.noise.gamma import AbstractGamma, AtomGamma, ElementGamma, ForceGamma, GlobalGamma
from huefield.support.config import FrozenConfig

_GAMMA_KINDS: dict[str, type[GlobalGamma] | type[ElementGamma] | type[AtomGamma] | type[ForceGamma]] = {
    "global": GlobalGamma,
    "element": ElementGamma,
    "atom": AtomGamma,
    "force": ForceGamma,
}


class ColoredNoise(AbstractNoise):
    """d = (0, Σ_c γ_c,i ρ_c²) and C columns u_c = (ρ_c, −∂ρ_c/∂r), with ρ_c = softplus(b_c + Σ_i s_c,i).

    Instead of the sum, ρ can be read from a mean over the atoms: see ``readout``.
    """

    class Config(FrozenConfig):
        """Choices of the colored noise model; the defaults are the paper's."""

        kind: Literal["colored"] = "colored"
        gamma: Literal["global", "element", "atom", "force"] = Field(
            "global",
            description="one γ for everything (the paper's), one for each element, γ_i(z, r) of each atom, or "
            "γ_i = (ω_i/ρ)² from a noise ω_i of the forces on each atom",
        )
        channels: int = Field(1, ge=1, le=64, description="independent noise processes")
        readout: LevelReadout = Field(
            "sum", description="of the outputs of N atoms for ρ: their sum, their mean, or the sum divided by √N"
        )
        floor_ev: float = Field(1e-6, gt=0, le=1, description="smallest energy noise of a channel")

        def build(self) -> "ColoredNoise":
            """The model with a total noise of 1 eV and γ = 1 Å⁻²."""
            gamma = _GAMMA_KINDS[self.gamma].create(self.channels)
            return ColoredNoise(offset=jnp.zeros(self.channels), gamma=gamma, config=self).initialised(1.0, 1.0)

    offset: Float[Array, " C"]
    gamma: AbstractGamma
    config: Config = eqx.field(static=True)

    @property
    def raw_outputs(self) -> tuple[str, ...]:
        """s_c for each channel, then the raw outputs of γ."""
        kinds = ("level", "gamma") if self.gamma.needs_raw else ("level",)
        return tuple(f"{kind}_{c}" for kind in kinds for c in range(self.config.channels))

    @property
    def is_coherent(self) -> bool:
        """True: the columns are (ρ_c, −∂ρ_c/∂r)."""
        return True

    def levels(self, raw: Float[Array, "A O"], graph: Graph) -> Float[Array, "C S"]:
        """ρ_c of each structure."""
        read = over_atoms(raw[:, : self.config.channels], graph.partition, self.config.readout).T
        return positive_level(self.offset[:, None] + read, self.config.floor_ev)

    def covariance(self, outputs: Outputs, graph: Graph) -> Covariance:
        """[J23] Eq. force_var_colored_simplified, with the covariances."""
        gamma = self.inverse_lengths(outputs, graph)
        levels_on_atoms = graph.partition.spread(outputs.levels.T).T
        force_var = jnp.sum(gamma * levels_on_atoms**2, axis=0)
        diagonal = isotropic(jnp.zeros_like(outputs.energy), force_var, outputs, graph)
        return Covariance(diagonal, EnergyForcesStack(outputs.levels, -outputs.level_gradients, outputs.level_strains))

    def inverse_lengths(self, outputs: Outputs, graph: Graph) -> Float[Array, "C A"]:
        """γ of each channel on each atom."""
        levels_on_atoms = graph.partition.spread(outputs.levels.T).T
        return self.gamma(outputs.raw[:, self.config.channels :], levels_on_atoms, graph)

    def watched(self) -> dict[str, Float[Array, "*n"]]:
        """γ as the geometric mean of channels and elements; in an ensemble one for each member."""
        return {self.gamma.watched_as: self.gamma.typical(self.offset.ndim - 1)}

    def initialised(self, energy_rmse: Number, force_rmse: Number, atoms: Number = 1.0) -> "ColoredNoise":
        """Σ_c ρ_c² = energy_rmse² and γ = (force_rmse / energy_rmse)² where the raw outputs vanish."""
        offset = raw_for_level(energy_rmse * self.config.channels**-0.5, self.config.floor_ev, self.offset)
        gamma = self.gamma.initialised(energy_rmse, force_rmse)
        return eqx.tree_at(lambda n: (n.offset, n.gamma), self, (offset, gamma))

    def with_gamma(self, gamma: ArrayLike) -> "ColoredNoise":
        """With γ set by hand, "adjusted post-hoc" as [J23] says: a number, or one for each channel (and element).

        For the per-atom γ_i this is their common factor.
        """
        return eqx.tree_at(lambda n: n.gamma, self, self.gamma.replaced(gamma))

    def with_gamma_times(self, factor: ArrayLike) -> "ColoredNoise":
        """With every γ multiplied by a number."""
        return eqx.tree_at(lambda n: n.gamma, self, self.gamma.times(factor))
