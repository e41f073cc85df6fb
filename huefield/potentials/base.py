"""What a potential is, and the one place where energies and noise levels are differentiated."""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from huefield.core import Graph, Outputs, Partition
from huefield.core.config import FrozenConfig

Levels = Callable[[Float[Array, "A O"], Partition], Float[Array, "C S"]]
"""Noise levels from raw outputs: the ``levels`` method of a noise model."""


class AtomOutputs(eqx.Module):
    """What a potential says about each atom: its share of the energy [eV] and the raw noise outputs."""

    energy: Float[Array, " A"]
    raw: Float[Array, "A O"]


class AbstractPotential(eqx.Module):
    """A potential: a batch in, per-atom outputs out. Sums and derivatives come from :func:`differentiate`."""

    config: eqx.AbstractVar[FrozenConfig]

    @abstractmethod
    def __call__(self, graph: Graph) -> AtomOutputs:
        """Energy contribution and raw noise outputs of each atom; padding atoms may hold anything finite.

        Before training, the raw noise outputs are zero, so that a noise model starts at the levels it is given.
        """


def differentiate(potential: AbstractPotential, levels: Levels, graph: Graph) -> Outputs:
    """Energies, noise levels ρ_c and the gradients of both with respect to the positions.

    One forward pass, one backward pass for the energy and one for each level. Structures do not interact, so the
    gradient of a sum over structures holds the gradient of each.
    """

    def structure_quantities(positions: Float[Array, "A D"]) -> tuple[Float[Array, "Q S"], Float[Array, "A O"]]:
        moved = eqx.tree_at(lambda g: g.positions, graph, positions)
        atoms = potential(moved)
        energy = graph.partition.sum(atoms.energy)
        return jnp.concatenate([energy[None], levels(atoms.raw, graph.partition)]), atoms.raw

    quantities, pull_back, raw = jax.vjp(structure_quantities, graph.positions, has_aux=True)
    seeds = jnp.eye(len(quantities), dtype=quantities.dtype)
    gradients = jnp.stack([pull_back(jnp.broadcast_to(seed[:, None], quantities.shape))[0] for seed in seeds])
    return Outputs(
        energy=quantities[0],
        energy_gradient=gradients[0],
        raw=raw,
        levels=quantities[1:],
        level_gradients=gradients[1:],
    )
