r"""Functions of the distance of two atoms that vanish smoothly at a cutoff.

======  ========================  ==================
symbol  code                      meaning
======  ========================  ==================
r       ``distances`` [Å]         of two atoms
r_c     ``cutoff_angstrom``       cutoff
======  ========================  ==================
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

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
