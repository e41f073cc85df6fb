"""The interface of a potential, and the differentiation of energies and noise levels."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from huefield.core import Graph, Outputs
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

Levels = Callable[[Float[Array, "A O"], Graph], Float[Array, "C S"]]
"""Noise levels from raw outputs and the structures: the ``levels`` method of a noise model."""


@runtime_checkable
class AtomicConfig(Protocol):
    """The configuration of a potential of atoms, as opposed to one of points on a line."""

    @property
    def elements(self) -> tuple[str, ...]:
        """Elements that it was built for."""

    @property
    def cutoff_angstrom(self) -> float:
        """Distance within which atoms are neighbours."""

    @property
    def num_features(self) -> int:
        """Length of ``AtomOutputs.features``."""


class AtomOutputs(eqx.Module):
    """Outputs of a potential for each atom: energy contribution [eV] and raw noise outputs."""

    energy: Float[Array, " A"]
    raw: Float[Array, "A O"]
    features: Float[Array, "A F"] | None = None
    """Scalar features of the last layer, which describe the surroundings of an atom; None if there are none."""


class AbstractPotential(eqx.Module):
    """A potential: a batch in, per-atom outputs out. Sums and derivatives come from :func:`differentiate`."""

    config: eqx.AbstractVar[FrozenConfig]

    @property
    def atomic_config(self) -> AtomicConfig:
        """Elements and cutoff, which only potentials of atoms have."""
        if not isinstance(self.config, AtomicConfig):
            kind = type(self).__name__
            raise HuefieldError(f"a potential without elements and cutoff ({kind}) cannot predict molecules")
        return self.config

    def require_fit(self, graph: Graph) -> None:
        """Raise if the potential cannot predict these structures. Outside of compiled code only."""

    def serves_noise(self) -> "AbstractPotential":
        """The potential's arrays with 1 where a parameter changes noise outputs only, else 0.

        Such parameters can be trained at their own rate, or alone. By default there are none.
        """
        return jax.tree.map(jnp.zeros_like, eqx.filter(self, eqx.is_inexact_array))

    def with_energy_scale(self, scale_ev: float) -> "AbstractPotential":
        """The potential with outputs of this size before training, [eV] for an atom; unchanged by default."""
        return self

    @abstractmethod
    def __call__(self, graph: Graph) -> AtomOutputs:
        """Energy contribution and raw noise outputs of each atom; padding atoms may hold anything finite.

        Before training, the raw noise outputs are zero, so that a noise model starts at the levels it is given.
        """


def differentiate(
    potential: Callable[[Graph], AtomOutputs], levels: Levels, graph: Graph, *, strain: bool = False
) -> Outputs:
    """Energies, noise levels ρ_c and the gradients of both with respect to the positions.

    One forward pass, one backward pass for the energy and one for each level. Structures do not interact, so the
    gradient of a sum over structures holds the gradient of each.

    Args:
        potential: the potential to differentiate.
        levels: from its raw outputs and the structures to ρ_c.
        graph: the structures.
        strain: whether to differentiate with respect to a strain of each structure too.
    """

    def structure_quantities(positions: Float[Array, "A D"], strains: Float[Array, "S 3 3"] | None) -> _Quantities:
        moved = eqx.tree_at(lambda g: g.positions, graph, positions)
        moved = moved if strains is None else moved.strained(strains)
        atoms = potential(moved)
        energy = graph.partition.sum(atoms.energy)
        return jnp.concatenate([energy[None], levels(atoms.raw, moved)]), atoms

    none = jnp.zeros((graph.partition.num_structures, 3, 3), graph.positions.dtype) if strain else None
    quantities, pull_back, atoms = jax.vjp(structure_quantities, graph.positions, none, has_aux=True)
    seeds = jnp.eye(len(quantities), dtype=quantities.dtype)
    # Kept apart: in one array with the others, the gradients of levels would be computed and differentiated, times
    # zero, for every loss of energies and forces alone.
    of_energy, *of_levels = [pull_back(jnp.broadcast_to(seed[:, None], quantities.shape)) for seed in seeds]
    none_of = jax.tree.map(lambda leaf: jnp.zeros((0, *leaf.shape), leaf.dtype), of_energy)
    gradients, strains = jax.tree.map(lambda *parts: jnp.stack(parts), *of_levels) if of_levels else none_of
    return Outputs(
        energy=quantities[0],
        energy_gradient=of_energy[0],
        raw=atoms.raw,
        levels=quantities[1:],
        level_gradients=gradients,
        energy_of_atoms=atoms.energy,
        energy_strain=of_energy[1] if strain else None,
        level_strains=strains if strain else None,
    )


_Quantities = tuple[Float[Array, "Q S"], AtomOutputs]
"""Energies and levels of the structures in one array, and the outputs of the atoms."""
