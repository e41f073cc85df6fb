r"""MACE: messages of several neighbours at once, from products of spherical expansions of an atom's surroundings.

[B22] I. Batatia, D. P. Kovács, G. N. C. Simm, C. Ortner, G. Csányi, arXiv:2206.07697v2, here with invariant messages
(L = 0).

Each atom i has an element z_i and features h_i [C]. In each of T layers, with channels k and harmonics lm,

    A_i,klm = N^-½ Σ_j R_kl(r_ij) Y_lm(r⃗_ij/r_ij) Σ_k' W_kk' h_jk'      surroundings of an atom         [B22] A-features
    B_i,kη  = Σ_m C_η,m Π_ξ Σ_k' w_kk'l_ξ A_i,k'l_ξm_ξ                 invariant products of 1 to 3    [B22] Eq. (10)
    m_i,k   = Σ_η W_z_i,kη B_i,kη                                     message                        [B22] Eq. (11)
    h_i,k   ← Σ_k' W_kk' m_i,k' + Σ_k' W_z_i,kk' h_i,k'                update                         [B22] update

and the energy of an atom is a sum over layers: linear in h after the first ones, a network of h after the last.

==========================  ==========================================================
symbol                      code
==========================  ==========================================================
h_i                         ``features`` [A, C]
A_i,klm                     ``surroundings``, for each l a tuple over m of [A, C]
R_kl                        radial functions times ``Interaction.filters``, or after ``.hidden`` (``radial_network``)
N, W_kk' of neighbours      ``Config.neighbours``, ``Interaction.neighbour``
w_kk'l                      ``Interaction.mixing``
η, C_η,m                    :func:`~huefield.potentials.spherical.invariant_products`, ``polynomial``
W_z_i,kη                    ``Interaction.products``
W_kk', W_z_i,kk'            ``Interaction.update``, ``Interaction.residual``
==========================  ==========================================================

Departures: the first update has a residual, too, which depends on the element alone; R is linear in the radial
functions, unless ``radial_widths`` asks for the network of [B22]; the radial functions include a constant, and they,
the envelope and the last readout are those of PaiNN here; sums over neighbours are divided by √N, not N, so that
products of several are not small before training.

Three things are exact and save time. Products are polynomials: for l ≤ 3 the 13 of them have 94 terms. With a linear R
the first sum over neighbours is one over elements, as h depends on the element alone. A network R depends on one
number: its slope, computed along with it, serves all derivatives with respect to positions.
"""

from functools import cache, partial
from itertools import pairwise
from typing import Annotated, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from pydantic import Field

from huefield.core import Graph, Neighbours
from huefield.core.polynomials import Polynomial, evaluate_once
from huefield.core.products import times
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
from huefield.potentials.radial import radial_features, radial_network
from huefield.potentials.spherical import MAX_DEGREE, Degrees, harmonics, invariant_products, polynomial

RADIAL_GAIN = 2.0
"""Size of random weights in the network R, which halves small numbers in each layer otherwise."""


class PairFeatures(eqx.Module):
    """Distances r_ij, radial functions b_n(r_ij) and harmonics Y_lm of pairs."""

    distances: Float[Array, "A K"]
    radial: Float[Array, "A K N1"]
    angular: tuple[Float[Array, "A _ K"], ...]
    """Y_lm for each l."""
    neighbours: Neighbours

    @classmethod
    def of(cls, graph: Graph, config: "MACE.Config") -> "PairFeatures":
        """The features of all pairs of a graph."""
        pairs = Pairs.within(config.cutoff_angstrom, graph)
        found = harmonics(*jnp.moveaxis(pairs.directions, -1, 0))[: config.max_degree + 1]
        radial = radial_features(pairs.distances, config.cutoff_angstrom, config.radial_functions)
        return cls(pairs.distances, radial, tuple(jnp.stack(each, axis=1) for each in found), pairs.neighbours)


class Interaction(eqx.Module):
    """One layer: surroundings, products, message and update."""

    neighbour: Linear
    hidden: tuple[Float[Array, "_ _"], ...]
    filters: tuple[Float[Array, "_ C"], ...]
    """Weights of R: hidden layers, and a last one for each l."""
    mixing: tuple[Linear, ...]
    products: tuple[Float[Array, "Z C"], ...]
    update: Linear
    residual: Float[Array, "Z C C"]

    @classmethod
    def deviations(cls, config: "MACE.Config") -> "Interaction":
        """Standard deviations of random weights."""
        channels, elements, count = config.channels, len(config.elements), len(config.products)
        widths = (config.radial_functions + 1, *config.radial_widths)
        plain = Linear.deviations(channels, channels, bias=False)
        gained = partial(Linear.deviations, scale=RADIAL_GAIN, bias=False)
        return cls(
            neighbour=plain,
            hidden=tuple(gained(*sizes).weight for sizes in pairwise(widths)),
            filters=(gained(widths[-1], channels).weight,) * (config.max_degree + 1),
            mixing=(plain,) * (config.max_degree + 1),
            products=(jnp.full((elements, channels), count**-0.5),) * count,
            update=plain,
            residual=jnp.full((elements, channels, channels), channels**-0.5),
        )

    def __call__(
        self,
        features: Float[Array, "A C"],
        around: tuple[Float[Array, "A C"], ...],
        elements: Float[Array, "A Z"],
        config: "MACE.Config",
    ) -> Float[Array, "A C"]:
        """The features after the layer.

        Args:
            features: h before the layer.
            around: A_i,klm mixed by w, an array for each lm.
            elements: z.
            config: sizes.
        """
        weights = tuple(times(elements, each) for each in self.products)
        message = evaluate_once(message_polynomial(config.products), weights, around)
        return self.update(message) + _by_element(features, elements, self.residual)

    def surroundings(
        self, features: Float[Array, "A C"], pairs: PairFeatures, config: "MACE.Config"
    ) -> tuple[Float[Array, "A C"], ...]:
        """A_i,klm mixed by w, an array for each lm."""
        theirs = pairs.neighbours.gather(self._carried(features, config))
        found = []
        for filters, angular, mix in zip(self._radial(pairs, config), pairs.angular, self.mixing, strict=True):
            found += _rows(mix(jnp.einsum("amk,akc->amc", angular, filters * theirs)))
        return tuple(found)

    def surroundings_of_elements(
        self, table: Float[Array, "Z C"], elements: Float[Array, "A Z"], pairs: PairFeatures, config: "MACE.Config"
    ) -> tuple[Float[Array, "A C"], ...]:
        """The same where h_j is row z_j of a table and R is linear in the radial functions b.

        A_i,klm = Σ_zn R_nkl Σ_k' W_kk' h_zk' [N^-½ Σ_{j of z} b_n(r_ij) Y_lm(r⃗_ij/r_ij)].
        """
        kinds = elements.at[pairs.neighbours.index].get(mode="promise_in_bounds")
        functions = (kinds[..., None] * pairs.radial[..., None, :]).reshape(*pairs.distances.shape, -1)
        theirs, found = self._carried(table, config), []
        for filters, angular, mix in zip(self.filters, pairs.angular, self.mixing, strict=True):
            matrix = (theirs[:, None, :] * filters).reshape(functions.shape[-1], -1) @ mix.weight
            found += _rows(times(jnp.einsum("amk,akn->amn", angular, functions), matrix))
        return tuple(found)

    def _carried(self, features: Float[Array, "A C"], config: "MACE.Config") -> Float[Array, "A C"]:
        return self.neighbour(features) / config.neighbours**0.5

    def _radial(self, pairs: PairFeatures, config: "MACE.Config") -> tuple[Float[Array, "A K C"], ...]:
        """R_kl of all pairs, for each l."""
        if not self.hidden:
            return tuple(times(pairs.radial, filters) for filters in self.filters)
        cutoff, count = config.cutoff_angstrom, config.radial_functions
        return radial_network(cutoff, count, self.hidden, self.filters, pairs.distances)


def _rows(stacked: Float[Array, "A M C"]) -> list[Float[Array, "A C"]]:
    return [each[:, 0] for each in jnp.split(stacked, stacked.shape[1], axis=1)]


@cache
def message_polynomial(products: tuple[Degrees, ...]) -> Polynomial:
    """m_k = Σ_η W_η B_kη of the variables W_η (group 0) and A_klm (group 1)."""
    numbers = {lm: n for n, lm in enumerate((d, m) for d in range(MAX_DEGREE + 1) for m in range(2 * d + 1))}
    return tuple(
        (coefficient, ((0, product), *((1, numbers[factor]) for factor in factors)))
        for product, degrees in enumerate(products)
        for coefficient, factors in polynomial(degrees)
    )


def _by_element(
    features: Float[Array, "A C"], elements: Float[Array, "A Z"], matrices: Float[Array, "Z C C"]
) -> Float[Array, "A C"]:
    """The features of each atom times the matrix of its element: one product of [A, Z C] and [Z C, C]."""
    spread = elements[:, :, None] * features[:, None, :]
    return Linear(matrices.reshape(-1, matrices.shape[-1]), None)(spread.reshape(len(features), -1))


class MACE(AbstractAtomicPotential):
    """The potential: embedding, T layers, readouts, and a scale and shift for each element."""

    class Config(AbstractElementsConfig):
        """Size of the network."""

        kind: Literal["mace"] = "mace"
        channels: int = Field(64, ge=1, le=8192, description="features of an atom")
        layers: int = Field(2, ge=1, le=64, description="sums over neighbours, each followed by products")
        max_degree: int = Field(3, ge=0, le=3, description="largest l of spherical harmonics")
        correlation: int = Field(3, ge=1, le=3, description="largest number of factors in a product")
        radial_functions: int = Field(8, ge=1, le=1024, description="functions of the distance, inputs of the filters")
        radial_widths: tuple[Annotated[int, Field(ge=1, le=8192)], ...] = Field(
            (),
            max_length=16,
            description="hidden units of the network of the filters; [] for filters linear in the radial functions",
        )
        neighbours: float = Field(
            16.0,
            gt=0,
            le=1e6,
            description="typical number of neighbours; sums over them are divided by its square root",
        )

        @property
        def num_features(self) -> int:
            """Features of an atom, all of which are scalars."""
            return self.channels

        @property
        def products(self) -> tuple[Degrees, ...]:
            """Degrees of the factors of each product η."""
            return invariant_products(self.max_degree, self.correlation)

        def build(self, num_raw: int, *, key: Key[Array, ""]) -> "MACE":
            """A network with random weights and ``num_raw`` raw noise outputs."""
            self.require_elements()
            energy = Linear.deviations(self.channels, 1, scale=WRITE_SCALE, bias=False)
            deviations = MACE(
                embedding=jnp.ones((len(self.elements), self.channels)),
                interactions=(Interaction.deviations(self),) * self.layers,
                energies=(energy,) * (self.layers - 1),
                readout=Readout.deviations(self.channels, num_raw),
                scale_ev=jnp.zeros(len(self.elements)),
                shift_ev=jnp.zeros(len(self.elements)),
                config=self,
            )
            return random_potential(deviations, key=key)

    embedding: Float[Array, "Z C"]
    interactions: tuple[Interaction, ...]
    energies: tuple[Linear, ...]
    """Readouts of all layers but the last."""
    readout: Readout
    scale_ev: Float[Array, " Z"]
    shift_ev: Float[Array, " Z"]
    config: Config = eqx.field(static=True)

    def __call__(self, graph: Graph) -> AtomOutputs:
        """Energy contributions and raw outputs of the atoms."""
        pairs, elements = PairFeatures.of(graph, self.config), self.one_hot(graph)
        features, energy = Linear(self.embedding, None)(elements), jnp.zeros(len(elements), elements.dtype)
        for index, interaction in enumerate(self.interactions):
            if index == 0 and not interaction.hidden and len(self.config.elements) < MANY_ELEMENTS:
                around = interaction.surroundings_of_elements(self.embedding, elements, pairs, self.config)
            else:
                around = interaction.surroundings(features, pairs, self.config)
            features = interaction(features, around, elements, self.config)
            if index < len(self.energies):
                energy = energy + self.energies[index](features)[:, 0]
        outputs = self.readout(features)
        return AtomOutputs(self.scaled(energy + outputs.energy, elements), outputs.raw, features)
