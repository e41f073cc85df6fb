"""A multilayer perceptron of the coordinates: the potential of the paper's one-dimensional toy."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from pydantic import Field

from huefield.core import Graph
from huefield.potentials.base import AbstractPotential, AtomOutputs
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
}


class MLPPotential(AbstractPotential):
    """The energy of each site depends on its own coordinates. It has no invariances and is not for molecules."""

    class Config(FrozenConfig):
        """Size of the network."""

        kind: Literal["mlp"] = "mlp"
        dimension: int = Field(1, ge=1, le=1024, description="coordinates of a site")
        width: int = Field(64, ge=1, le=65_536, description="hidden units of a layer")
        depth: int = Field(2, ge=1, le=64, description="hidden layers")
        activation: Literal["tanh", "silu", "softplus"] = Field("tanh", description="smooth: it is derived twice")
        frequency: float = Field(1.0, gt=0, le=1e6, description="factor on the coordinates: larger fits faster wiggles")

        def for_elements(self, found: tuple[str, ...]) -> "MLPPotential.Config":
            """The configuration itself, which has no elements."""
            return self

        def build(self, num_raw: int, *, key: Key[Array, ""]) -> "MLPPotential":
            """A network with random weights and ``num_raw`` raw noise outputs."""
            return MLPPotential(network=_network(self, num_raw, key=key), config=self)

    network: eqx.nn.MLP
    config: Config = eqx.field(static=True)

    def serves_noise(self) -> "MLPPotential":
        """All rows of the last layer but the first, which gives the energy."""
        nothing = jax.tree.map(jnp.zeros_like, eqx.filter(self, eqx.is_inexact_array))
        last = jax.tree.map(lambda w: w.at[1:].set(1.0), nothing.network.layers[-1])
        return eqx.tree_at(lambda p: p.network.layers[-1], nothing, last)

    def __call__(self, graph: Graph) -> AtomOutputs:
        """The network on each site."""
        if graph.positions.shape[1] != self.config.dimension:
            raise HuefieldError(
                f"this potential is for sites with {self.config.dimension} coordinates, "
                f"but the graph has {graph.positions.shape[1]}"
            )
        out: Float[Array, "A P"] = jax.vmap(self.network)(self.config.frequency * graph.positions)
        return AtomOutputs(out[:, 0], out[:, 1:])


def _network(config: MLPPotential.Config, num_raw: int, *, key: Key[Array, ""]) -> eqx.nn.MLP:
    """A random network whose raw noise outputs are zero."""
    network = eqx.nn.MLP(
        in_size=config.dimension,
        out_size=1 + num_raw,
        width_size=config.width,
        depth=config.depth,
        activation=_ACTIVATIONS[config.activation],
        key=key,
    )
    energy_only = jnp.arange(1 + num_raw) == 0
    last = jax.tree.map(lambda w: jnp.where(energy_only.reshape(-1, *[1] * (w.ndim - 1)), w, 0.0), network.layers[-1])
    return eqx.tree_at(lambda n: n.layers[-1], network, last)
