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
from jaxtyping import Array, Float, Key
from pydantic import Field

from huefield.core import Graph, Neighbours
from huefield.core.pairwise import sum_over_neighbours
from huefield.potentials.atomic import (
    MANY_ELEMENTS,
    AbstractAtomicPotential,
    AbstractElementsConfig,
    Pairs,
    Readout,
    random_potential,
)
from huefield.potentials.base import AtomOutputs
from huefield.potentials.layers import WRITE_SCALE, Linear
from huefield.potentials.radial import radial_features

NORM_SOFTENING = 1e-4
"""ε of the norm √(|V v|² + ε²), in units of features."""

Vectors = tuple[Float[Array, "A F"], Float[Array, "A F"], Float[Array, "A F"]]
"""x, y and z components. Three arrays: loops over one [A, 3, F] took up to three times as long in derivatives."""


class PairFeatures(eqx.Module):
    """Features of pairs that messages need."""

    radial: Float[Array, "A K N1"]
    directions: Float[Array, "A K 3"]
    neighbours: Neighbours

    @classmethod
    def of(cls, graph: Graph, config: "PaiNN.Config") -> "PairFeatures":
        """The features of all pairs of a graph."""
        pairs = Pairs.within(config.cutoff_angstrom, graph)
        radial = radial_features(pairs.distances, config.cutoff_angstrom, config.radial_functions)
        return cls(radial, pairs.directions, pairs.neighbours)


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


class PaiNN(AbstractAtomicPotential):
    """The potential: embedding, L times message and update, readout, and a scale and shift for each element."""

    class Config(AbstractElementsConfig):
        """Size of the network; the defaults are those of the paper's base model."""

        kind: Literal["painn"] = "painn"
        features: int = Field(256, ge=1, le=8192, description="scalar and vector features of an atom")
        layers: int = Field(3, ge=1, le=64, description="messages, each followed by an update")
        radial_functions: int = Field(20, ge=1, le=1024, description="functions of the distance in filters")

        @property
        def num_features(self) -> int:
            """Scalar features of an atom."""
            return self.features

        def build(self, num_raw: int, *, key: Key[Array, ""]) -> "PaiNN":
            """A network with random weights and ``num_raw`` raw noise outputs."""
            self.require_elements()
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
            return random_potential(deviations, key=key)

    embedding: Float[Array, "Z F"]
    messages: tuple[Message, ...]
    updates: tuple[Update, ...]
    readout: Readout
    scale_ev: Float[Array, " Z"]
    shift_ev: Float[Array, " Z"]
    config: Config = eqx.field(static=True)

    def __call__(self, graph: Graph) -> AtomOutputs:
        """Energy contributions and raw outputs of the atoms."""
        pairs, elements = PairFeatures.of(graph, self.config), self.one_hot(graph)
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
        return AtomOutputs(self.scaled(outputs.energy, elements), outputs.raw, scalars)


def _added(first: Vectors, second: Vectors) -> Vectors:
    x, y, z = (a + b for a, b in zip(first, second, strict=True))
    return x, y, z


def _scaled(vectors: Vectors, factors: Float[Array, "A F"]) -> Vectors:
    x, y, z = (v * factors for v in vectors)
    return x, y, z
