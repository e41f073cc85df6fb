"""Matrix products whose derivatives of every order are again products of rows with a matrix, in the layout at hand.

X has R rows of length I, G has R rows of length O, W is an I × O matrix. Three products are closed under transposition:

    X W,  G Wᵀ,  Xᵀ G.

Plain reverse differentiation of the second and third needs transposed copies of X or G, which are large: in
a second derivative of a message over pairs these copies took as long as everything else together.
"""

import jax
from jaxtyping import Array, Float


@jax.custom_vjp
def times(rows: Float[Array, "*R I"], matrix: Float[Array, "I O"]) -> Float[Array, "*R O"]:
    """X W."""
    return _contract(rows, rows.ndim - 1, matrix, 0)


@jax.custom_vjp
def times_transposed(rows: Float[Array, "*R O"], matrix: Float[Array, "I O"]) -> Float[Array, "*R I"]:
    """G Wᵀ."""
    return _contract(rows, rows.ndim - 1, matrix, 1)


@jax.custom_vjp
def outer(left: Float[Array, "*R I"], right: Float[Array, "*R O"]) -> Float[Array, "I O"]:
    """Xᵀ G, summed over all rows."""
    return _contract(left.reshape(-1, left.shape[-1]), 0, right.reshape(-1, right.shape[-1]), 0)


def _contract(
    left: Float[Array, "*L"], left_axis: int, right: Float[Array, "*M"], right_axis: int
) -> Float[Array, "*N"]:
    """Sum over one axis of each."""
    return jax.lax.dot_general(left, right, (((left_axis,), (right_axis,)), ((), ())))


times.defvjp(
    lambda rows, matrix: (times(rows, matrix), (rows, matrix)),
    lambda kept, seed: (times_transposed(seed, kept[1]), outer(kept[0], seed)),
)
times_transposed.defvjp(
    lambda rows, matrix: (times_transposed(rows, matrix), (rows, matrix)),
    lambda kept, seed: (times(seed, kept[1]), outer(seed, kept[0])),
)
outer.defvjp(
    lambda left, right: (outer(left, right), (left, right)),
    lambda kept, seed: (times_transposed(kept[1], seed), times(kept[0], seed)),
)
