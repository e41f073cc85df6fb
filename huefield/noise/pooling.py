r"""Averages over the neighbours of an atom, which let the noise of an atom depend on its surroundings.

    x̄_i = (x_i + Σ_j w_ij x_j) / (1 + Σ_j w_ij),      w_ij = (1 − r_ij²/r_c²)³ for r_ij < r_c, else 0.

A network could compute this average itself, from its messages. It is offered because noise outputs are trained for few
steps: an average passes on what one atom learns to its neighbours at once. :func:`pooled` multiplies it by about the
number of neighbours, so that it is learnt as fast as a sum (docs/reproduction/local-noise.md).

It is an average, not a sum: more neighbours than in training, as when a cluster becomes a liquid, cannot push it below
the smallest of their outputs. w and its first two derivatives vanish at the cutoff r_c, so that forces and
their noise are continuous; atoms beyond it are not heard.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from huefield.core import Graph

GAIN = 10.0
"""Weight of an average in :func:`pooled`: about the number of neighbours of an atom in a molecule."""


def pooled(values: Float[Array, "A k"], graph: Graph) -> Float[Array, "A k"]:
    """``GAIN`` times the average over each atom and its neighbours; the values themselves for points without any."""
    return values if graph.neighbours is None else GAIN * neighbour_average(values, graph)


def neighbour_average(values: Float[Array, "A k"], graph: Graph) -> Float[Array, "A k"]:
    """The average of values over each atom and its neighbours; the values themselves if there are no neighbours."""
    if graph.neighbours is None:
        return values
    relative = jnp.sum(graph.vectors() ** 2, axis=-1) / graph.neighbours.cutoff_angstrom**2
    weights = (jnp.maximum(1.0 - relative, 0.0) ** 3)[..., None]
    summed = values + jnp.sum(weights * graph.neighbours.gather(values), axis=1)
    return summed / (1.0 + jnp.sum(weights, axis=1))
