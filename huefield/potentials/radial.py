r"""Functions of the distance of two atoms that vanish smoothly at a cutoff.

======  ========================  ==================
symbol  code                      meaning
======  ========================  ==================
r       ``distances`` [Å]         of two atoms
r_c     ``cutoff_angstrom``       cutoff
======  ========================  ==================
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from huefield.core.products import times

SOFTENING_ANGSTROM = 1e-6
"""ε in r = √(|r⃗|² + ε²): 5e-13 Å more at 1 Å, and finite derivatives at r⃗ = 0."""


def distances_and_directions(
    vectors: Float[Array, "A K 3"],
) -> tuple[Float[Array, "A K"], Float[Array, "A K 3"]]:
    """Lengths r = √(|r⃗|² + ε²) and directions r⃗/r. Two atoms in one place have finite derivatives of everything."""
    distances = jnp.sqrt(jnp.sum(vectors**2, axis=-1) + SOFTENING_ANGSTROM**2)
    return distances, vectors / distances[..., None]


def envelope(distances: Float[Array, "*n"], cutoff_angstrom: float) -> Float[Array, "*n"]:
    """1 − 10x³ + 15x⁴ − 6x⁵ for x = r/r_c < 1, else 0: one at r = 0, and twice continuously differentiable at r_c."""
    x = jnp.minimum(distances / cutoff_angstrom, 1.0)
    return 1.0 + x**3 * (-10.0 + x * (15.0 - 6.0 * x))


def radial_features(distances: Float[Array, "A K"], cutoff_angstrom: float, count: int) -> Float[Array, "A K N1"]:
    """√(2/r_c) sin(nπr/r_c)/r for n = 1 ... N, and 1, all times the envelope.

    The sines are those of [S21], after Gasteiger et al., arXiv:2003.03123v2, Eq. (7). A product with N + 1 rows of
    weights makes a filter of them, the last row being its constant.
    """
    orders = jnp.arange(1, count + 1, dtype=distances.dtype)
    phases = jnp.pi / cutoff_angstrom * distances[..., None] * orders
    sines = (2.0 / cutoff_angstrom) ** 0.5 * jnp.sin(phases) / distances[..., None]
    functions = jnp.concatenate([sines, jnp.ones_like(distances)[..., None]], axis=-1)
    return functions * envelope(distances, cutoff_angstrom)[..., None]


Matrices = tuple[Float[Array, "_ _"], ...]
Outputs = tuple[Float[Array, "A K _"], ...]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def radial_network(
    cutoff_angstrom: float, count: int, hidden: Matrices, last: Matrices, distances: Float[Array, "A K"]
) -> Outputs:
    """Networks f(r) of the radial features with SiLU between their layers; they vanish beyond the cutoff.

    One distance goes in and many numbers come out: the slope f′(r), computed along with f, serves every derivative with
    respect to positions, in place of one pass back through the network for the energy and one for each noise level.

    Args:
        cutoff_angstrom: r_c.
        count: number of sines among the radial features.
        hidden: weights of the hidden layers, which all networks share.
        last: weights of the last layer of each network.
        distances: r.
    """
    return _values_and_slopes(cutoff_angstrom, count, hidden, last, distances)[0]


def _values_and_slopes(
    cutoff_angstrom: float, count: int, hidden: Matrices, last: Matrices, distances: Float[Array, "A K"]
) -> tuple[Outputs, Outputs]:
    """f(r) and f′(r)."""
    features = partial(radial_features, cutoff_angstrom=cutoff_angstrom, count=count)
    values, slopes = jax.jvp(features, (distances,), (jnp.ones_like(distances),))
    for matrix in hidden:
        inputs, input_slopes = times(values, matrix), times(slopes, matrix)
        gate = jax.nn.sigmoid(inputs)
        values, slopes = inputs * gate, input_slopes * gate * (1.0 + inputs * (1.0 - gate))
    return tuple(times(values, each) for each in last), tuple(times(slopes, each) for each in last)


_Kept = tuple[Matrices, Matrices, Float[Array, "A K"], Outputs]


def _network_forward(
    cutoff_angstrom: float, count: int, hidden: Matrices, last: Matrices, distances: Float[Array, "A K"]
) -> tuple[Outputs, _Kept]:
    values, slopes = _values_and_slopes(cutoff_angstrom, count, hidden, last, distances)
    return values, (hidden, last, distances, slopes)


def _network_backward(
    cutoff_angstrom: float, count: int, kept: _Kept, seeds: Outputs
) -> tuple[Matrices, Matrices, Float[Array, "A K"]]:
    hidden, last, distances, slopes = kept
    _, pull_back = jax.vjp(
        lambda *w: _values_and_slopes(cutoff_angstrom, count, w[0], w[1], distances)[0], hidden, last
    )
    by_distance = sum(jnp.sum(seed * slope, axis=-1) for seed, slope in zip(seeds, slopes, strict=True))
    return (*pull_back(seeds), jnp.asarray(by_distance))


radial_network.defvjp(_network_forward, _network_backward)
