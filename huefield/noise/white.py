r"""White noise: energies and forces have independent noise of their own ([J23] Eqs. e_obs, force_obs).

[J23] arXiv:2312.04174v1, section "White noise model".

========================  ==========================================
symbol                    code
========================  ==========================================
ρ, noise of the energy    ``energy_level`` [eV]
ω_i, noise of the forces  ``force_level`` [eV/Å]
========================  ==========================================
"""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
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
from huefield.support.config import FrozenConfig


class WhiteNoise(AbstractNoise):
    """d = (ρ², ω_i²), no columns.

    ρ = softplus(b_E + Σ_i s_i) and ω_i = softplus(b_F + t_i); with pooling ω_i = softplus(b_F + t_i + Σ_j p_j), so that
    the noise of an atom depends on its whole structure.
    """

    class Config(FrozenConfig):
        """Choices of the white noise model."""

        kind: Literal["white"] = "white"
        pooling: bool = Field(False, description="let the force noise of an atom depend on the whole structure")
        readout: LevelReadout = Field(
            "sum", description="of the outputs of N atoms for ρ: their sum, their mean, or the sum divided by √N"
        )
        energy_floor_ev: float = Field(1e-6, gt=0, le=1, description="smallest energy noise")
        force_floor_ev_per_angstrom: float = Field(1e-6, gt=0, le=1, description="smallest force noise")

        def build(self) -> "WhiteNoise":
            """The model with noise of 1 eV and 1 eV/Å."""
            zero = jnp.zeros(())
            return WhiteNoise(energy_offset=zero, force_offset=zero, config=self).initialised(1.0, 1.0)

    energy_offset: Float[Array, ""]
    force_offset: Float[Array, ""]
    config: Config = eqx.field(static=True)

    @property
    def raw_outputs(self) -> tuple[str, ...]:
        """s, t and, with pooling, p."""
        return ("energy_noise", "force_noise", "pooled_force_noise")[: 3 if self.config.pooling else 2]

    def levels(self, raw: Float[Array, "A O"], graph: Graph) -> Float[Array, "C S"]:
        """None: nothing is differentiated."""
        return jnp.zeros((0, graph.partition.num_structures), raw.dtype)

    def covariance(self, outputs: Outputs, graph: Graph) -> Covariance:
        """[J23] Eqs. e_obs and force_obs."""
        partition, raw = graph.partition, outputs.raw
        pooled = partition.spread(partition.sum(raw[:, 2])) if self.config.pooling else 0.0
        energy_raw = self.energy_offset + over_atoms(raw[:, :1], partition, self.config.readout)[:, 0]
        force_raw = self.force_offset + raw[:, 1] + pooled
        energy_level = positive_level(energy_raw, self.config.energy_floor_ev)
        force_level = positive_level(force_raw, self.config.force_floor_ev_per_angstrom)
        force_var = jnp.where(partition.atom_mask, force_level**2, 0.0)
        diagonal = isotropic(energy_level**2, force_var, outputs, graph)
        return Covariance(diagonal, EnergyForcesStack.empty(diagonal))

    def initialised(self, energy_rmse: Number, force_rmse: Number, atoms: Number = 1.0) -> "WhiteNoise":
        """Offsets such that ρ and ω are the given errors where the raw outputs vanish."""
        offsets = (
            raw_for_level(energy_rmse, self.config.energy_floor_ev, self.energy_offset),
            raw_for_level(force_rmse, self.config.force_floor_ev_per_angstrom, self.force_offset),
        )
        return eqx.tree_at(lambda n: (n.energy_offset, n.force_offset), self, offsets)
