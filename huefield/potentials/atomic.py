"""Parts that all potentials of atoms share: elements, cutoff, pairs, readout, scale and shift."""

from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase.data import atomic_numbers as number_of_symbol
from ase.data import chemical_symbols
from jaxtyping import Array, Float, Int, Key
from pydantic import Field, field_validator

from huefield.core import Graph, Neighbours
from huefield.core.structure import MAX_ATOMIC_NUMBER
from huefield.potentials.base import AbstractPotential, AtomOutputs
from huefield.potentials.layers import WRITE_SCALE, Linear, drawn
from huefield.potentials.radial import distances_and_directions
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

MANY_ELEMENTS = 8
"""From about this number of elements on, a first sum over elements costs more than one over neighbours (PaiNN: of 14
neighbours, with 64 features)."""

Config = TypeVar("Config", bound="AbstractElementsConfig")
Potential = TypeVar("Potential", bound="AbstractAtomicPotential")


class AbstractElementsConfig(FrozenConfig):
    """Elements and cutoff of a potential of atoms."""

    elements: tuple[str, ...] = Field(
        (), description="symbols of the elements that it is for; [] for those of the training data"
    )
    cutoff_angstrom: float = Field(5.0, ge=0.5, lt=50, description="farther atoms are no neighbours")

    @field_validator("elements")
    @classmethod
    def _known_and_sorted(cls, elements: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [e for e in elements if not number_of_symbol.get(e)]
        if unknown:
            raise HuefieldError(f"{unknown[0]!r} is no element; write symbols such as 'H' and 'C'")
        return tuple(sorted(set(elements), key=lambda e: number_of_symbol[e]))

    def for_elements(self: Config, found: tuple[str, ...]) -> Config:
        """The configuration for data with these elements, which it must know if it names any."""
        missing = [element for element in found if element not in self.elements]
        if self.elements and missing:
            raise HuefieldError(
                f"the data have {', '.join(missing)}, but the potential is for {', '.join(self.elements)}: name "
                "all elements, or none to take them from the data"
            )
        return self if self.elements else self.model_copy(update={"elements": self._known_and_sorted(found)})

    def require_elements(self) -> None:
        """Raise if no element is named."""
        if not self.elements:
            raise HuefieldError("a potential is built for certain elements: name them, as in elements=('H', 'C')")

    def require_known(self, graph: Graph) -> None:
        """Raise if the graph holds another element."""
        known = [0, *(number_of_symbol[e] for e in self.elements)]
        strange = np.setdiff1d(np.asarray(graph.atomic_numbers), known)
        if strange.size:
            names = ", ".join(chemical_symbols[z] for z in strange)
            raise HuefieldError(
                f"the structures contain {names}, but the potential was built for {', '.join(self.elements)}: "
                "leave such structures out, or train a potential with these elements"
            )

    def one_hot(self, atomic_numbers: Int[Array, " A"], dtype: jnp.dtype) -> Float[Array, "A Z"]:
        """The element of each atom as a unit vector: zeros for padding atoms, NaN for an unknown element."""
        numbers = np.array([number_of_symbol[e] for e in self.elements])
        rows = np.full((MAX_ATOMIC_NUMBER + 1, len(numbers)), np.nan)
        rows[0] = 0.0
        rows[numbers] = np.eye(len(numbers))
        return jnp.asarray(rows, dtype)[atomic_numbers]


class Pairs(eqx.Module):
    """Distances and directions of all neighbours."""

    distances: Float[Array, "A K"]
    directions: Float[Array, "A K 3"]
    neighbours: Neighbours

    @classmethod
    def within(cls, cutoff_angstrom: float, graph: Graph) -> "Pairs":
        """The pairs of a graph, whose neighbours must reach as far as the cutoff."""
        if graph.neighbours is not None and graph.neighbours.cutoff_angstrom < cutoff_angstrom:
            raise HuefieldError(
                f"the graph has neighbours within {graph.neighbours.cutoff_angstrom:g} Å, but the cutoff of the "
                f"potential is {cutoff_angstrom:g} Å: build it for this cutoff"
            )
        distances, directions = distances_and_directions(graph.vectors())
        assert graph.neighbours is not None  # noqa: S101 - graph.vectors() has raised otherwise
        return cls(distances, directions, graph.neighbours)


class Readout(eqx.Module):
    """From features to outputs. Raw noise outputs start at zero."""

    hidden: Linear
    energy: Linear
    raw: Linear

    @classmethod
    def deviations(cls, features: int, num_raw: int) -> "Readout":
        """Standard deviations of random weights of the energy; zero for noise outputs."""
        width = max(features // 2, 1)
        return cls(
            Linear.deviations(features, width),
            Linear.deviations(width, 1, scale=WRITE_SCALE),
            Linear.deviations(width, num_raw, scale=0.0),
        )

    def __call__(self, scalars: Float[Array, "A F"]) -> AtomOutputs:
        """Outputs of each atom."""
        hidden = jax.nn.silu(self.hidden(scalars))
        return AtomOutputs(self.energy(hidden)[:, 0], self.raw(hidden))


class AbstractAtomicPotential(AbstractPotential):
    """A potential of certain elements whose last layer is a :class:`Readout`."""

    readout: eqx.AbstractVar[Readout]
    scale_ev: eqx.AbstractVar[Float[Array, " Z"]]
    """Energy that an output of 1 stands for, for each element."""
    shift_ev: eqx.AbstractVar[Float[Array, " Z"]]
    """Energy of an atom at an output of 0, for each element."""
    config: eqx.AbstractVar[AbstractElementsConfig]

    def serves_noise(self: Potential) -> Potential:
        """The last layer of the readout that noise outputs have for themselves."""
        nothing = jax.tree.map(jnp.zeros_like, eqx.filter(self, eqx.is_inexact_array))
        return eqx.tree_at(lambda p: p.readout.raw, nothing, jax.tree.map(jnp.ones_like, nothing.readout.raw))

    def with_energy_scale(self: Potential, scale_ev: float) -> Potential:
        """The same scale for each element."""
        return eqx.tree_at(lambda p: p.scale_ev, self, jnp.full_like(self.scale_ev, scale_ev))

    def require_fit(self, graph: Graph) -> None:
        """Raise if the graph holds an element that the potential was not built for."""
        self.config.require_known(graph)

    def one_hot(self, graph: Graph) -> Float[Array, "A Z"]:
        """The element of each atom as a unit vector; see :meth:`AbstractElementsConfig.one_hot`."""
        return self.config.one_hot(graph.atomic_numbers, self.scale_ev.dtype)

    def scaled(self, outputs: Float[Array, " A"], elements: Float[Array, "A Z"]) -> Float[Array, " A"]:
        """Energies of the atoms [eV] from outputs of the network."""
        return outputs * (elements @ self.scale_ev) + elements @ self.shift_ev


def random_potential(deviations: Potential, *, key: Key[Array, ""]) -> Potential:
    """A potential with random weights of these standard deviations, and scales of 1 eV."""
    return drawn(deviations, key=key).with_energy_scale(1.0)
