"""Products of rows with matrices, and their derivatives, against einsum."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from huefield.core.products import outer, times, times_transposed

pytestmark = pytest.mark.usefixtures("x64")

Product = Callable[[Array, Array], Array]
INPUTS, OUTPUTS = 3, 5
CASES = {
    "times": (times, "...i,io->...o", "rows I", "matrix"),
    "times_transposed": (times_transposed, "...o,io->...i", "rows O", "matrix"),
    "outer": (outer, "...i,...o->io", "rows I", "rows O"),
}


def normal(shape: tuple[int, ...], seed: int) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def derivative(product: Product, order: int) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Gradients of a scalar that needs so many nested backward passes and depends on both factors in each."""

    def scalar(left: Array, right: Array) -> Array:
        return jnp.sum(jnp.sin(product(jnp.tanh(left), jnp.tanh(right))))

    for _ in range(order - 1):
        scalar = (lambda inner: lambda *x: sum(jnp.sum(g**3) for g in jax.grad(inner, argnums=(0, 1))(*x)))(scalar)
    return jax.grad(scalar, argnums=(0, 1))


def arguments(rows: tuple[int, ...], name: str) -> tuple[Product, Product, tuple[Array, Array]]:
    """Ours, einsum's, and two factors that fit."""
    product, formula, *kinds = CASES[name]
    shapes = {"rows I": (*rows, INPUTS), "rows O": (*rows, OUTPUTS), "matrix": (INPUTS, OUTPUTS)}
    if name == "outer":  # einsum sums over an ellipsis only where the result has none
        formula = "ai,ao->io"
        flat: Product = lambda x, y: jnp.einsum(formula, x.reshape(-1, INPUTS), y.reshape(-1, OUTPUTS))  # noqa: E731
    else:
        flat = lambda x, y: jnp.einsum(formula, x, y)  # noqa: E731
    return product, flat, (normal(shapes[kinds[0]], 0), normal(shapes[kinds[1]], 1))


@pytest.mark.parametrize("rows", [(4,), (2, 6), (2, 3, 2)])
@pytest.mark.parametrize("name", CASES)
def test_the_product_is_that_of_einsum(name: str, rows: tuple[int, ...]) -> None:
    ours, theirs, factors = arguments(rows, name)
    np.testing.assert_allclose(ours(*factors), theirs(*factors), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_those_of_einsum(name: str, order: int) -> None:
    ours, theirs, factors = arguments((2, 3), name)
    got, expected = (jax.jit(derivative(product, order))(*factors) for product in (ours, theirs))
    for one, other in zip(got, expected, strict=True):
        assert np.abs(other).max() > 1e-3
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13 * np.abs(other).max())


@pytest.mark.parametrize("name", CASES)
def test_derivatives_under_vmap_are_those_of_a_loop(name: str) -> None:
    ours, _, factors = arguments((4,), name)
    stacked = tuple(jnp.stack([x, 2 * x, x + 1]) for x in factors)
    function = derivative(ours, 2)
    together = jax.jit(jax.vmap(function))(*stacked)
    one_by_one = zip(*(jax.jit(function)(*pair) for pair in zip(*stacked, strict=True)), strict=True)
    for got, expected in zip(together, one_by_one, strict=True):
        np.testing.assert_allclose(got, np.stack(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_no_derivative_transposes_rows(name: str) -> None:
    """The purpose of the module: rows stay as they lie in memory, however often one differentiates."""
    ours, theirs, factors = arguments((50, 20), name)
    texts = {}
    for key, product in (("ours", ours), ("einsum", theirs)):
        texts[key] = str(jax.make_jaxpr(derivative(product, 2))(*factors))
    assert "transpose" in texts["einsum"]
    transposed = [line for line in texts["ours"].splitlines() if "= transpose[" in line]
    assert not any("[50,20" in line or "[1000" in line or ",1000]" in line for line in transposed)
