r"""Noise that grows with the distance to the training data.

A network has features φ_i of the surroundings of each atom. Far from all surroundings that it was trained on, its
errors are larger than its noise outputs say, which have seen no such surroundings either. The distance is that of the
features to the nearest ones of training atoms of the same element,

    d_i² = min_j |y_i − y_j|²,      y = (φ − φ̄) W,

where W scales the largest principal axes of the training features to unit variance, and one factor for each element
makes d = 1 the median distance of validation atoms: structures that are new, but like those of training. The noise
level of an atom is multiplied by h_i, and the rest of the variance of its force by √h_i (:class:`Growth`, ``GROWTH``):

    h_i = (1 + (d_i²/4)⁴)^⅓ / c,

where c is the geometric mean of the numerator over validation atoms: noise there stays about what it was. h is flat
among such structures and grows like d^(8/3) beyond: most of the error of the energy of a new molecule is an offset,
which grows faster than errors of forces do. For unseen molecules, reactions and higher temperatures d is 2 to 5, and
tens for bonds that are broken or compressed (docs/reproduction/new-structures.md).

d depends on an atom's surroundings alone and smoothly: atoms far away change nothing, and a level Σ_i h_i ρ_i has a
gradient, so that local noise stays coherent and size-consistent. The minimum is a softened one.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from pydantic import Field, PositiveInt, model_validator
from scipy.spatial import cKDTree

from huefield.core import Graph
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

DIMENSIONS = 16
"""Principal axes of the features that count for distances. 8, 16 and all 32 of a network did equally well."""
SMALLEST_VARIANCE = 1e-3
"""Variance along an axis, relative to the largest, below which it is not scaled up further."""
MOST_POINTS = 2048
"""Points of an element that are kept; of more training atoms, the centres of as many clusters."""
SAMPLED = 8
"""Training atoms for each point from which clusters are made."""
ROUNDS = 3
"""Rounds of the clustering."""
SOFTNESS = 2.0
"""Width of the softened minimum over points, in units of the squared distance of validation atoms. With 0.2, the slope
of d between training points near by makes force noise too large."""
SMALLEST_UNIT = 1e-2
"""Smallest unit of distances relative to the spread of the training features: validation structures may be copies."""
MOST_PAIRS = 2**23
"""Pairs of an atom and a point in memory at a time."""
FARTHEST = 1e8
"""Bound of |y|, which keeps squares finite in single precision."""


class Growth(FrozenConfig):
    """How noise grows with d²: h = (1 + (d²/begins)^sharpness)^(power/sharpness). Defaults are those of older files."""

    begins: float = Field(1.5, gt=0, le=100, description="d² from which noise grows")
    sharpness: float = Field(2.0, ge=1, le=10, description="how suddenly the growth begins")
    power: float = Field(1.0, gt=0, le=3, description="power of d² by which noise levels grow far away")
    rest_power: float = Field(1.0, gt=0, le=2, description="power of h by which the rest of force variances grows")
    largest_square: float = Field(1e6, ge=100, le=1e6, description="bound of d²")

    @model_validator(mode="after")
    def _finite_in_single_precision(self) -> "Growth":
        largest = self.largest_square / self.begins
        if largest**self.sharpness > 1e30 or largest**self.power > 1e12:
            raise HuefieldError(
                f"noise that grows with the power {self.power:g} and the sharpness {self.sharpness:g} up to d² = "
                f"{self.largest_square:g} is not finite in single precision: choose smaller values"
            )
        return self

    def __call__(self, squares: Float[Array, " A"]) -> Float[Array, " A"]:
        """The growth h of each d², not divided by its usual value."""
        bounded = squares / (1.0 + squares / self.largest_square)
        return (1.0 + (bounded / self.begins) ** self.sharpness) ** (self.power / self.sharpness)


GROWTH = Growth(begins=4.0, sharpness=4.0, power=4 / 3, rest_power=0.5, largest_square=1e4)
"""The growth of newly trained models, chosen on the bundled data and AcAc (docs/reproduction/new-structures.md)."""


class Novelty(eqx.Module):
    """Distances to the training data of one network, and the growth of noise with them."""

    class Config(FrozenConfig):
        """Shapes of the arrays."""

        kind: Literal["feature_distance"] = "feature_distance"
        numbers: tuple[PositiveInt, ...] = Field(min_length=1, description="atomic numbers of the elements")
        points: tuple[PositiveInt, ...] = Field(min_length=1, description="training points of each element")
        features: int = Field(ge=1, le=10**5, description="features of an atom")
        dimensions: int = Field(ge=1, le=10**5, description="axes that count for distances")
        growth: Growth = Field(Growth(), description="how noise grows with the distance")

        @model_validator(mode="after")
        def _points_of_each_element(self) -> "Novelty.Config":
            if len(self.numbers) != len(self.points) or sum(self.points) > 10**9:
                raise HuefieldError(
                    f"numbers of points {self.points} do not fit the elements {self.numbers}: give one for each"
                )
            return self

        def build(self) -> "Novelty":
            """A novelty with zeros in its arrays."""
            elements = len(self.numbers)
            return Novelty(
                centres=jnp.zeros((elements, self.features)),
                axes=jnp.zeros((elements, self.features, self.dimensions)),
                points=jnp.zeros((sum(self.points), self.dimensions)),
                usual=jnp.ones(()),
                config=self,
            )

    centres: Float[Array, "Z F"]
    """φ̄ of each element."""
    axes: Float[Array, "Z F R"]
    """W of each element, with the unit of distances in it."""
    points: Float[Array, "N R"]
    """y of training atoms, element by element."""
    usual: Float[Array, ""]
    """c, the geometric mean of ``config.growth`` over validation atoms."""
    config: Config = eqx.field(static=True)

    @classmethod
    def fitted(
        cls,
        numbers: Int[np.ndarray, " n"],
        features: Float[np.ndarray, "n F"],
        validation_numbers: Int[np.ndarray, " v"],
        validation_features: Float[np.ndarray, "v F"],
        growth: Growth = GROWTH,
    ) -> "Novelty":
        """The novelty of a network from features of training and of validation atoms, in double precision.

        Args:
            numbers: atomic numbers of training atoms.
            features: features of training atoms.
            validation_numbers: atomic numbers of validation atoms.
            validation_features: features of validation atoms.
            growth: how noise grows with the distance.
        """
        elements = np.unique(numbers)
        largest = float(features.var(0).max()) or 1.0
        spaces = [_Space.of(features[numbers == number], largest) for number in elements]
        distances = [
            space.distances(validation_features[validation_numbers == number])
            for number, space in zip(elements, spaces, strict=True)
        ]
        known = [float(np.median(each)) for each in distances if len(each)]
        overall = float(np.median(known)) if known else 1.0
        least = SMALLEST_UNIT * np.sqrt(spaces[0].axes.shape[1])
        units = [max(float(np.median(each)) if len(each) else overall, least) for each in distances]
        config = cls.Config(
            numbers=tuple(elements.tolist()),
            points=tuple(len(space.points) for space in spaces),
            features=features.shape[1],
            dimensions=spaces[0].axes.shape[1],
            growth=growth,
        )
        found = cls(
            centres=jnp.asarray(np.stack([space.centre for space in spaces])),
            axes=jnp.asarray(np.stack([space.axes / unit for space, unit in zip(spaces, units, strict=True)])),
            points=jnp.asarray(np.concatenate([s.points / unit for s, unit in zip(spaces, units, strict=True)])),
            usual=jnp.asarray(1.0),
            config=config,
        )
        shared = np.isin(validation_numbers, elements)
        grown = found._growth(jnp.asarray(validation_features[shared]), jnp.asarray(validation_numbers[shared]))
        return eqx.tree_at(lambda n: n.usual, found, jnp.exp(jnp.mean(jnp.log(grown)))) if len(grown) else found

    def growth(self, features: Float[Array, "A F"], graph: Graph) -> Float[Array, "A 2"]:
        """Factors of each atom's noise level and rest of the force variance; 1 for padding and unknown elements."""
        known = jnp.any(self._of_elements(graph.atomic_numbers) > 0, axis=1)
        level = jnp.where(known, self._growth(features, graph.atomic_numbers), 1.0)
        return jnp.stack([level, level**self.config.growth.rest_power], axis=1)

    def _growth(self, features: Float[Array, "A F"], numbers: Int[Array, " A"]) -> Float[Array, " A"]:
        return self.config.growth(self.squared_distances(features, numbers)) / self.usual

    def squared_distances(self, features: Float[Array, "A F"], numbers: Int[Array, " A"]) -> Float[Array, " A"]:
        """Squared distance d² of each atom."""
        elements = self._of_elements(numbers)
        centred = features - elements @ self.centres
        places = jnp.einsum("af,zfr,az->ar", centred, self.axes, elements, precision=jax.lax.Precision.HIGHEST)
        places = jnp.clip(places, -FARTHEST, FARTHEST)
        element = jnp.argmax(elements, axis=1)
        owners = jnp.asarray(np.repeat(np.arange(len(self.config.points)), self.config.points))
        chunk = max(1, MOST_PAIRS // len(self.points))
        if len(places) <= chunk:
            return _softened_minimum(places, element, self.points, owners)

        def of_one(atom: tuple[Float[Array, " R"], Int[Array, ""]]) -> Float[Array, ""]:
            return _softened_minimum(atom[0][None], atom[1][None], self.points, owners)[0]

        return jax.lax.map(of_one, (places, element), batch_size=chunk)

    def _of_elements(self, numbers: Int[Array, " A"]) -> Float[Array, "A Z"]:
        """The element of each atom as a unit vector; zeros for others."""
        return (numbers[:, None] == jnp.asarray(self.config.numbers)).astype(self.axes.dtype)


class _Space:
    """Scaled features of the training atoms of one element."""

    def __init__(
        self, centre: Float[np.ndarray, " F"], axes: Float[np.ndarray, "F R"], points: Float[np.ndarray, "N R"]
    ) -> None:
        self.centre, self.axes, self.points = centre, axes, points

    @classmethod
    def of(cls, features: Float[np.ndarray, "n F"], largest: float) -> "_Space":
        """Principal axes, and points in them.

        Args:
            features: those of the atoms of the element.
            largest: variance of features of all elements; those of one element may hardly differ.
        """
        centre = features.mean(0)
        centred = features - centre
        variances, axes = np.linalg.eigh(centred.T @ centred / len(features))
        kept = slice(None, -min(DIMENSIONS, len(axes)) - 1, -1)
        variances, axes = variances[kept], axes[:, kept]
        least = SMALLEST_VARIANCE * max(float(variances[0]), SMALLEST_VARIANCE * largest)
        axes = axes / np.sqrt(np.maximum(variances, least))
        return cls(centre, axes, _representatives(centred @ axes))

    def distances(self, features: Float[np.ndarray, "n F"]) -> Float[np.ndarray, " n"]:
        """Distances to the nearest point."""
        if not len(features):
            return np.zeros(0)
        found, _ = cKDTree(self.points).query((features - self.centre) @ self.axes)
        return np.asarray(found)


def _representatives(points: Float[np.ndarray, "n R"]) -> Float[np.ndarray, "N R"]:
    """The points, or the centres of clusters of them (Lloyd's algorithm from random points)."""
    if len(points) <= MOST_POINTS:
        return points
    some = np.random.default_rng(0).permutation(points)[: SAMPLED * MOST_POINTS]
    centres = some[:MOST_POINTS]
    for _ in range(ROUNDS):
        _, owner = cKDTree(centres).query(some)
        counts = np.bincount(owner, minlength=len(centres))
        sums = np.stack([np.bincount(owner, column, len(centres)) for column in some.T], axis=1)
        centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
    return centres


@jax.custom_jvp
def _softened_minimum(
    places: Float[Array, "A R"], element: Int[Array, " A"], points: Float[Array, "N R"], owners: Int[Array, " N"]
) -> Float[Array, " A"]:
    """Σ_j w_j |y − y_j|² of each place y, over points of its element, with the weights of a softmax of −|y − y_j|².

    Args:
        places: y of the atoms.
        element: the element of each atom.
        points: y_j of all elements, which are constants.
        owners: the element of each point.
    """
    return _with_gradient(places, element, points, owners)[0]


@_softened_minimum.defjvp
def _(primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    value, gradient = _with_gradient(*primals)
    return value, jnp.sum(gradient * tangents[0], axis=1)


def _with_gradient(
    places: Float[Array, "A R"], element: Int[Array, " A"], points: Float[Array, "N R"], owners: Int[Array, " N"]
) -> tuple[Float[Array, " A"], Float[Array, "A R"]]:
    """Value and gradient together: a backward pass would take the sums over all points again."""
    products = jnp.matmul(places, points.T, precision=jax.lax.Precision.HIGHEST)
    squares = jnp.sum(places**2, axis=1, keepdims=True) + jnp.sum(points**2, axis=1) - 2.0 * products
    squares = jnp.where(element[:, None] == owners, jnp.maximum(squares, 0.0), jnp.inf)
    nearest = jnp.min(squares, axis=1, keepdims=True)
    above = jnp.where(jnp.isinf(squares), 0.0, squares - nearest)
    weights = jnp.where(jnp.isinf(squares), 0.0, jnp.exp(-above / SOFTNESS))
    weights /= jnp.sum(weights, axis=1, keepdims=True)
    mean = jnp.sum(weights * above, axis=1, keepdims=True)
    pulls = weights * (1.0 - (above - mean) / SOFTNESS)
    return (nearest + mean)[:, 0], 2.0 * (places - pulls @ points)
