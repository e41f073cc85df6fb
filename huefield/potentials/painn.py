r"""PaiNN: message passing with scalar and vector features, equivariant under rotations and reflections.

[S21] K. T. Schütt, O. T. Unke, M. Gastegger, arXiv:2102.03150v4.

Each atom i has scalar features s_i [F] and vector features v_i [3, F]. In each of L layers they are changed by a
message (neighbours) and an update (the atom alone), ∘ being the product of features:

    Δs_i = Σ_j φ_s(s_j) ∘ W_s(r_ij)                                                          [S21] Eq. (7)
    Δv_i = Σ_j v_j ∘ φ_vv(s_j) ∘ W_vv(r_ij) + Σ_j φ_vs(s_j) ∘ W_vs(r_ij) r⃗_ij/r_ij            [S21] Eq. (8)
    Δs_i = a_ss(s_i, |V v_i|) + a_sv(s_i, |V v_i|) ⟨U v_i, V v_i⟩                              [S21] Eq. (9)
    Δv_i = a_vv(s_i, |V v_i|) U v_i                                                          [S21] Eq. (10)

=====================  =============================================================
symbol                 code
=====================  =============================================================
s_i                    ``scalars`` [A, F]
v_i                    ``vectors``, three arrays [A, F]
φ_s, φ_vv, φ_vs        ``Message.scalar``, ``.vector``, ``.direction`` after ``.hidden``
W_s, W_vv, W_vs        radial features times ``Message.filters``
U, V                   ``Update.left``, ``Update.right``
a_ss, a_sv, a_vv       ``Update.scalar``, ``.product``, ``.vector`` after ``.hidden``
=====================  =============================================================

Departures: the envelope is a polynomial, so that forces have a derivative at the cutoff too ([S21] has a cosine, whose
second derivative jumps); |V v| is √(|V v|² + ε²), so that it has a derivative at zero; the layers that write into s and
v start smaller than the others (with weights of equal size training fails).

Two things are exact and save time. Before the first message v = 0 and s depends on the element alone: its sum over
neighbours is one over elements, of radial features summed for each of them. After the last update nothing reads v.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase.data import atomic_numbers as number_of_symbol
from ase.data import chemical_symbols
from jaxtyping import Array, Float, Int, Key
from pydantic import Field, field_validator

from huefield.core import Graph, Neighbours
from huefield.core.pairwise import sum_over_neighbours
from huefield.core.structure import MAX_ATOMIC_NUMBER
from huefield.potentials.base import AbstractPotential, AtomOutputs
from huefield.potentials.layers import Linear, drawn
from huefield.potentials.radial import distances_and_directions, radial_features
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

NORM_SOFTENING = 1e-4
"""ε of the norm √(|V v|² + ε²), in units of features."""
WRITE_SCALE = 0.1
"""Size of the weights of layers that write into s and v, relative to the others, before training."""
MANY_ELEMENTS = 8
"""From about this number of elements on, the first message is cheaper as a sum over neighbours (of 14, 64 features)."""

Vectors = tuple[Float[Array, "A F"], Float[Array, "A F"], Float[Array, "A F"]]
"""x, y and z components. Three arrays: loops over one [A, 3, F] took up to three times as long in derivatives."""


class PairFeatures(eqx.Module):
    """Features of pairs that messages need."""

    radial: Float[Array, "A K N1"]
    directions: Float[Array, "A K 3"]
    neighbours: Neighbours


class Message(eqx.Module):
    """[S21] Eqs. (7) and (8)."""

    hidden: Linear
    scalar: Linear
    vector: Linear | None
    """None in the first layer, where v = 0."""
    direction: Linear
    filters: tuple[Float[Array, "N1 F"], ...]
    """Weights of W_s, W_vs and, except in the first layer, W_vv."""

    @classmethod
    def deviations(cls, features: int, num_radial: int, first: bool) -> "Message":
        """Standard deviations of random weights."""
        write = Linear.deviations(features, features, scale=WRITE_SCALE)
        filters = Linear.deviations(num_radial + 1, features, bias=False).weight
        hidden = Linear.deviations(features, features)
        return cls(hidden, write, None if first else write, write, (filters,) * (2 if first else 3))

    def __call__(
        self, scalars: Float[Array, "A F"], vectors: Vectors, pairs: PairFeatures
    ) -> tuple[Float[Array, "A F"], Vectors]:
        """Δs and Δv."""
        hidden = jax.nn.silu(self.hidden(scalars))
        carried = () if self.vector is None else _scaled(vectors, self.vector(hidden))
        return sum_over_neighbours(
            _pair_message,
            (self.scalar(hidden), self.direction(hidden), carried),
            pairs.radial,
            pairs.directions,
            self.filters,
            pairs.neighbours,
            width=scalars.shape[-1],
        )

    def from_elements(
        self, table: Float[Array, "Z F"], elements: Float[Array, "A Z"], pairs: PairFeatures
    ) -> tuple[Float[Array, "A F"], Vectors]:
        """The message where v = 0 and s_j is row z_j of a table.

        Σ_j φ(s_j) ∘ W(r_ij) = Σ_zn φ(s_z) ∘ w_n [Σ_{j of z} b_n(r_ij)], for the filter W = Σ_n w_n b_n.
        """
        hidden = jax.nn.silu(self.hidden(table))
        kinds = elements.at[pairs.neighbours.index].get(mode="promise_in_bounds")
        weights = [kinds, *(kinds * pairs.directions[..., d, None] for d in range(3))]
        summed = jnp.einsum("akz,akn->azn", jnp.concatenate(weights, axis=-1), pairs.radial)
        scalar, x, y, z = (part.reshape(len(elements), -1) for part in jnp.split(summed, 4, axis=1))
        to_scalar = _element_filter(self.scalar(hidden), self.filters[0])
        to_vector = _element_filter(self.direction(hidden), self.filters[1])
        return to_scalar(scalar), (to_vector(x), to_vector(y), to_vector(z))


def _element_filter(values: Float[Array, "Z F"], filters: Float[Array, "N1 F"]) -> Linear:
    """The matrix φ(s_z)_f w_nf, with rows zn."""
    return Linear((values[:, None, :] * filters).reshape(-1, filters.shape[-1]), None)


def _pair_message(
    own: object,
    other: tuple[Float[Array, "a K F"], Float[Array, "a K F"], tuple[Float[Array, "a K F"], ...]],
    radial: Float[Array, "a K N1"],
    directions: Float[Array, "a K 3"],
    filters: tuple[Float[Array, "N1 F"], ...],
) -> tuple[Float[Array, "a K F"], tuple[Float[Array, "a K F"], ...]]:
    """Contribution of neighbour j to atom i: the terms of [S21] Eqs. (7) and (8)."""
    scalar, direction, carried = other
    pushed = Linear(filters[1], None)(radial) * direction
    vectors = [pushed * directions[..., d, None] for d in range(3)]
    if carried:
        passed = Linear(filters[2], None)(radial)
        vectors = [pushed + passed * v for pushed, v in zip(vectors, carried, strict=True)]
    return Linear(filters[0], None)(radial) * scalar, tuple(vectors)


class Update(eqx.Module):
    """[S21] Eqs. (9) and (10)."""

    left: Linear
    right: Linear
    from_scalars: Linear
    from_norms: Linear
    scalar: Linear
    product: Linear
    vector: Linear | None
    """None in the last layer, whose vectors are not used."""

    @classmethod
    def deviations(cls, features: int, writes_vectors: bool) -> "Update":
        """Standard deviations of random weights."""
        plain, mixing = Linear.deviations(features, features), Linear.deviations(features, features, bias=False)
        write = Linear.deviations(features, features, scale=WRITE_SCALE)
        return cls(mixing, mixing, plain, mixing, write, write, write if writes_vectors else None)

    def __call__(self, scalars: Float[Array, "A F"], vectors: Vectors) -> tuple[Float[Array, "A F"], Vectors]:
        """The features s and v after the update."""
        left, right = [self.left(v) for v in vectors], [self.right(v) for v in vectors]
        norms = jnp.sqrt(sum(r**2 for r in right) + NORM_SOFTENING**2)
        hidden = jax.nn.silu(self.from_scalars(scalars) + self.from_norms(norms))
        inner = sum(u * v for u, v in zip(left, right, strict=True))
        scalars = scalars + self.scalar(hidden) + self.product(hidden) * inner
        if self.vector is None:
            return scalars, vectors
        x, y, z = left
        return scalars, _added(vectors, _scaled((x, y, z), self.vector(hidden)))


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


class PaiNN(AbstractPotential):
    """The potential: embedding, L times message and update, readout, and a scale and shift for each element."""

    class Config(FrozenConfig):
        """Size of the network; the defaults are those of the paper's base model."""

        kind: Literal["painn"] = "painn"
        elements: tuple[str, ...] = Field(
            (), description="symbols of the elements that it is for; [] for those of the training data"
        )
        features: int = Field(256, ge=1, le=8192, description="scalar and vector features of an atom")
        layers: int = Field(3, ge=1, le=64, description="messages, each followed by an update")
        radial_functions: int = Field(20, ge=1, le=1024, description="functions of the distance in filters")
        cutoff_angstrom: float = Field(5.0, ge=0.5, lt=50, description="farther atoms are no neighbours")

        @field_validator("elements")
        @classmethod
        def _known_and_sorted(cls, elements: tuple[str, ...]) -> tuple[str, ...]:
            unknown = [e for e in elements if not number_of_symbol.get(e)]
            if unknown:
                raise HuefieldError(f"{unknown[0]!r} is no element; write symbols such as 'H' and 'C'")
            return tuple(sorted(set(elements), key=lambda e: number_of_symbol[e]))

        def for_elements(self, found: tuple[str, ...]) -> "PaiNN.Config":
            """The configuration for data with these elements, which it must know if it names any."""
            missing = [element for element in found if element not in self.elements]
            if self.elements and missing:
                raise HuefieldError(
                    f"the data have {', '.join(missing)}, but the potential is for {', '.join(self.elements)}: name "
                    "all elements, or none to take them from the data"
                )
            return self if self.elements else self.model_copy(update={"elements": self._known_and_sorted(found)})

        def build(self, num_raw: int, *, key: Key[Array, ""]) -> "PaiNN":
            """A network with random weights and ``num_raw`` raw noise outputs."""
            if not self.elements:
                raise HuefieldError("a potential is built for certain elements: name them, as in elements=('H', 'C')")
            numbers, features, last = range(self.layers), self.features, self.layers - 1
            deviations = PaiNN(
                embedding=jnp.ones((len(self.elements), features)),
                messages=tuple(Message.deviations(features, self.radial_functions, n == 0) for n in numbers),
                updates=tuple(Update.deviations(features, n < last) for n in numbers),
                readout=Readout.deviations(features, num_raw),
                scale_ev=jnp.zeros(len(self.elements)),
                shift_ev=jnp.zeros(len(self.elements)),
                config=self,
            )
            return eqx.tree_at(lambda p: p.scale_ev, drawn(deviations, key=key), jnp.ones(len(self.elements)))

    embedding: Float[Array, "Z F"]
    messages: tuple[Message, ...]
    updates: tuple[Update, ...]
    readout: Readout
    scale_ev: Float[Array, " Z"]
    """Energy that an output of 1 stands for, for each element."""
    shift_ev: Float[Array, " Z"]
    """Energy of an atom at an output of 0, for each element."""
    config: Config = eqx.field(static=True)

    def __call__(self, graph: Graph) -> AtomOutputs:
        """Energy contributions and raw outputs of the atoms."""
        pairs, elements = self._pairs(graph), self._one_hot(graph.atomic_numbers)
        scalars = Linear(self.embedding, None)(elements)
        zero = jnp.zeros_like(scalars)
        vectors = (zero, zero, zero)
        for index, (message, update) in enumerate(zip(self.messages, self.updates, strict=True)):
            if index == 0 and len(self.config.elements) < MANY_ELEMENTS:
                change = message.from_elements(self.embedding, elements, pairs)
            else:
                change = message(scalars, vectors, pairs)
            scalars, vectors = update(scalars + change[0], _added(vectors, change[1]))
        outputs = self.readout(scalars)
        scale, shift = elements @ self.scale_ev, elements @ self.shift_ev
        return AtomOutputs(outputs.energy * scale + shift, outputs.raw, scalars)

    def serves_noise(self) -> "PaiNN":
        """The last layer of the readout that noise outputs have for themselves."""
        nothing = jax.tree.map(jnp.zeros_like, eqx.filter(self, eqx.is_inexact_array))
        return eqx.tree_at(lambda p: p.readout.raw, nothing, jax.tree.map(jnp.ones_like, nothing.readout.raw))

    def with_energy_scale(self, scale_ev: float) -> "PaiNN":
        """The same scale for each element."""
        return eqx.tree_at(lambda p: p.scale_ev, self, jnp.full_like(self.scale_ev, scale_ev))

    def require_fit(self, graph: Graph) -> None:
        """Raise if the graph holds an element that the potential was not built for."""
        known = [0, *(number_of_symbol[e] for e in self.config.elements)]
        strange = np.setdiff1d(np.asarray(graph.atomic_numbers), known)
        if strange.size:
            names = ", ".join(chemical_symbols[z] for z in strange)
            raise HuefieldError(
                f"the structures contain {names}, but the potential was built for {', '.join(self.config.elements)}: "
                "leave such structures out, or train a potential with these elements"
            )

    def _pairs(self, graph: Graph) -> PairFeatures:
        cutoff = self.config.cutoff_angstrom
        if graph.neighbours is not None and graph.neighbours.cutoff_angstrom < cutoff:
            found = f"neighbours within {graph.neighbours.cutoff_angstrom:g} Å"
            raise HuefieldError(
                f"the graph has {found}, but the cutoff of the potential is {cutoff:g} Å: build it for this cutoff"
            )
        distances, directions = distances_and_directions(graph.vectors())
        radial = radial_features(distances, cutoff, self.config.radial_functions)
        assert graph.neighbours is not None  # noqa: S101 - graph.vectors() has raised otherwise
        return PairFeatures(radial, directions, graph.neighbours)

    def _one_hot(self, atomic_numbers: Int[Array, " A"]) -> Float[Array, "A Z"]:
        """The element of each atom as a unit vector: zeros for padding atoms, NaN for an unknown element."""
        numbers = np.array([number_of_symbol[e] for e in self.config.elements])
        rows = np.full((MAX_ATOMIC_NUMBER + 1, len(numbers)), np.nan)
        rows[0] = 0.0
        rows[numbers] = np.eye(len(numbers))
        return jnp.asarray(rows, self.embedding.dtype)[atomic_numbers]


def _added(first: Vectors, second: Vectors) -> Vectors:
    x, y, z = (a + b for a, b in zip(first, second, strict=True))
    return x, y, z


def _scaled(vectors: Vectors, factors: Float[Array, "A F"]) -> Vectors:
    x, y, z = (v * factors for v in vectors)
    return x, y, z
