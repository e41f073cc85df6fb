r"""Local white noise: independent noise of energies and forces that does not change with the size of a structure.

The noise of [J23] Eqs. e_obs and force_obs (arXiv:2312.04174v1), with an energy noise that is a sum over atoms:

    Var(E) = Σ_i σ_i²,      Var(F_i) = ω_i².

Errors of the atoms are independent, so that σ of the energy grows with the root of the number of atoms. In the paper's
form, softplus(b + Σ_i s_i), it may as well vanish as a structure grows.

==========================  ==========================================
symbol                      code
==========================  ==========================================
σ_i, share of the energy    ``energy_level`` [eV]
ω_i, noise of the forces    ``force_level`` [eV/Å]
==========================  ==========================================
"""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field

from huefield.core import EnergyForcesStack, Graph, Outputs
from huefield.noise.base import AbstractNoise, Covariance, Number, growth_in, isotropic, positive_level, raw_for_level
from huefield.noise.pooling import pooled
from huefield.support.config import FrozenConfig


class LocalWhiteNoise(AbstractNoise):
    """d = (Σ_i σ_i², ω_i²), no columns.

    σ_i = softplus(b_E + s_i + p̄_i) and ω_i = softplus(b_F + t_i + q̄_i) with outputs s, p, t and q of the network; p̄ and
    q̄ are pooled over neighbours (:func:`~huefield.noise.pooling.pooled`).
    """

    class Config(FrozenConfig):
        """Choices of the local white noise model."""

        kind: Literal["local_white"] = "local_white"
        energy_floor_ev: float = Field(1e-6, gt=0, le=1, description="smallest energy noise of an atom")
        force_floor_ev_per_angstrom: float = Field(1e-6, gt=0, le=1, description="smallest force noise")

        def build(self) -> "LocalWhiteNoise":
            """The model with noise of 1 eV for an atom, and 1 eV/Å."""
            zero = jnp.zeros(())
            return LocalWhiteNoise(energy_offset=zero, force_offset=zero, config=self).initialised(1.0, 1.0)

    energy_offset: Float[Array, ""]
    force_offset: Float[Array, ""]
    config: Config = eqx.field(static=True)

    @property
    def raw_outputs(self) -> tuple[str, ...]:
        """s, t, p and q."""
        return ("energy_noise", "force_noise", "pooled_energy_noise", "pooled_force_noise")

    @property
    def is_size_consistent(self) -> bool:
        """True: variances of the energy are summed over atoms."""
        return True

    @property
    def grows(self) -> bool:
        """True: each atom has noise of its own."""
        return True

    def levels(self, raw: Float[Array, "A O"], graph: Graph) -> Float[Array, "C S"]:
        """None: nothing is differentiated."""
        return jnp.zeros((0, graph.partition.num_structures), raw.dtype)

    def covariance(self, outputs: Outputs, graph: Graph) -> Covariance:
        """[J23] Eqs. e_obs and force_obs, with local variances."""
        partition = graph.partition
        energy_raw, force_raw = (outputs.raw[:, :2] + pooled(outputs.raw[:, 2:4], graph)).T
        growth = growth_in(outputs.raw, self)
        energy_level = growth.level * positive_level(self.energy_offset + energy_raw, self.config.energy_floor_ev)
        force_level = jnp.sqrt(growth.level) * positive_level(
            self.force_offset + force_raw, self.config.force_floor_ev_per_angstrom
        )
        force_var = jnp.where(partition.atom_mask, force_level**2, 0.0)
        diagonal = isotropic(partition.sum(energy_level**2), force_var, outputs, graph)
        return Covariance(diagonal, EnergyForcesStack.empty(diagonal))

    def initialised(self, energy_rmse: Number, force_rmse: Number, atoms: Number = 1.0) -> "LocalWhiteNoise":
        """Offsets such that both kinds of noise are the given errors where the raw outputs vanish."""
        offsets = (
            raw_for_level(energy_rmse / jnp.sqrt(jnp.asarray(atoms)), self.config.energy_floor_ev, self.energy_offset),
            raw_for_level(force_rmse, self.config.force_floor_ev_per_angstrom, self.force_offset),
        )
        return eqx.tree_at(lambda n: (n.energy_offset, n.force_offset), self, offsets)
