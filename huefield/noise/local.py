r"""Local colored noise (scouting)."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field

from huefield.core import EnergyForcesStack, Graph, Outputs
from huefield.noise.base import AbstractNoise, Covariance, Number, isotropic, positive_level, raw_for_level
from huefield.noise.gamma import _around_one
from huefield.support.config import FrozenConfig


def pooled(values: Float[Array, " A"], graph: Graph, hops: int, norm: str) -> Float[Array, " A"]:
    if graph.neighbours is None or hops == 0:
        return values
    vectors = graph.vectors()
    relative = jnp.sum(vectors**2, axis=-1) / graph.neighbours.cutoff_angstrom**2
    weights = jnp.maximum(1.0 - relative, 0.0) ** (3 if norm != "sum2" else 2)
    for _ in range(hops):
        total = values + jnp.sum(weights * graph.neighbours.gather(values), axis=1)
        values = total / (1.0 + jnp.sum(weights, axis=1)) if norm == "mean" else total
    return values


class LocalNoise(AbstractNoise):
    """Scouting."""

    class Config(FrozenConfig):
        """Choices."""

        kind: Literal["local"] = "local"
        gamma: Literal["atom", "force", "root"] = "atom"
        pool_level: int = 0
        pool_gamma: int = 0
        norm: Literal["mean", "sum", "sum2"] = "mean"
        offset: Literal["none", "composition", "nugget"] = "none"
        floor_ev: float = Field(1e-6, gt=0, le=1)

        def build(self) -> "LocalNoise":
            zero = jnp.zeros(())
            return LocalNoise(zero, zero, jnp.zeros(119), self).initialised(1.0, 1.0)

    level_offset: Float[Array, ""]
    force_offset: Float[Array, ""]
    table: Float[Array, " Z"]
    config: Config = eqx.field(static=True)

    @property
    def raw_outputs(self) -> tuple[str, ...]:
        return ("level", "pooled_level", "gamma", "pooled_gamma", "nugget")

    @property
    def is_size_consistent(self) -> bool:
        return self.config.norm == "mean"

    @property
    def is_coherent(self) -> bool:
        return self.config.offset != "nugget"

    def atom_levels(self, raw, graph):
        c = self.config
        mixed = raw[:, 0] + (pooled(raw[:, 1], graph, c.pool_level, c.norm) if c.pool_level else 0.0)
        level = positive_level(self.level_offset + mixed, c.floor_ev)
        return jnp.where(graph.partition.atom_mask, level, 0.0)

    def levels(self, raw, graph):
        return graph.partition.sum(self.atom_levels(raw, graph))[None]

    def covariance(self, outputs: Outputs, graph: Graph) -> Covariance:
        c, raw = self.config, outputs.raw
        mixed = raw[:, 2] + (pooled(raw[:, 3], graph, c.pool_gamma, c.norm) if c.pool_gamma else 0.0)
        if c.gamma == "atom":
            force_var = jnp.exp(self.force_offset) * _around_one(mixed[:, None])[0] * self.atom_levels(raw, graph) ** 2
        else:
            force_var = positive_level(self.force_offset + mixed, 1e-6) ** 2
        force_var = jnp.where(graph.partition.atom_mask, force_var, 0.0)
        energy = jnp.zeros_like(outputs.energy)
        if c.offset == "composition":
            energy = graph.partition.sum(jax.nn.softplus(self.table[graph.atomic_numbers])) ** 2
        if c.offset == "nugget":
            energy = graph.partition.sum(jax.nn.softplus(self.table[0] + raw[:, 4]) ** 2)
        diagonal = isotropic(energy, force_var, outputs, graph)
        return Covariance(diagonal, EnergyForcesStack(outputs.levels, -outputs.level_gradients, outputs.level_strains))

    def inverse_lengths(self, outputs: Outputs, graph: Graph) -> Float[Array, "C A"]:
        force_var = self.covariance(outputs, graph).diagonal.forces[:, 0]
        level = graph.partition.spread(outputs.levels[0])
        return (force_var / jnp.where(level > 0, level, 1.0) ** 2)[None]

    def initialised(self, energy_rmse: Number, force_rmse: Number, atoms: Number = 1.0) -> "LocalNoise":
        c = self.config
        share = 0.5**0.5 if c.offset != "none" else 1.0
        level = share * energy_rmse / atoms
        offset = raw_for_level(level, c.floor_ev, self.level_offset)
        if c.gamma == "atom":
            force = jnp.log(jnp.asarray((force_rmse / level) ** 2, self.force_offset.dtype))
        else:
            force = raw_for_level(force_rmse, 1e-6, self.force_offset)
        each = share * energy_rmse / (atoms if c.offset == "composition" else atoms**0.5)
        table = raw_for_level(each, 1e-6, self.table)
        return eqx.tree_at(lambda n: (n.level_offset, n.force_offset, n.table), self, (offset, force, table))
