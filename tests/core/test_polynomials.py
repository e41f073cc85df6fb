"""Polynomials against numpy, and their derivatives of three orders against those of JAX."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from huefield.core.polynomials import Polynomial, evaluate, evaluate_once, gradient, variables_of

A, B, C = (0, 0), (1, 0), (1, 1)
FIRST: Polynomial = ((2.0, (A, B, C)), (-1.5, (B, B, B)), (0.5, (A,)), (3.0, ()))
SECOND: Polynomial = ((1.0, (B, C)), (4.0, (A, A)))
NONE: Polynomial = ()


def plain(groups: tuple[tuple[Array, ...], ...]) -> tuple[Array, ...]:
    ((a,), (b, c)) = groups
    return 2 * a * b * c - 1.5 * b**3 + 0.5 * a + 3, b * c + 4 * a**2, 0 * a


def groups() -> tuple[tuple[Array, ...], ...]:
    a, b, c = jnp.asarray(0.3 * np.random.default_rng(0).normal(size=(3, 4, 2)))
    return (a,), (b, c)


def ours(given: tuple[tuple[Array, ...], ...]) -> tuple[Array, ...]:
    return evaluate((FIRST, SECOND, NONE), given)


def derived(function: Callable, order: int) -> Callable:
    """The gradient of a sum of squares, taken as often as the order says."""
    for _ in range(order):
        inner = function
        function = jax.grad(lambda g, f=inner: sum(jnp.sum(jnp.sin(y) * y) for y in jax.tree.leaves(f(g))))
    return function


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_values_and_derivatives_are_those_of_jax(order: int, x64: None) -> None:
    got, expected = (jax.tree.leaves(derived(f, order)(groups())) for f in (ours, plain))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_a_single_polynomial_has_the_same_derivatives(order: int, x64: None) -> None:
    single = derived(lambda g: (evaluate_once(FIRST, *g),), order)(groups())
    expected = derived(lambda g: plain(g)[:1], order)(groups())
    for one, other in zip(jax.tree.leaves(single), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


def test_they_are_vectorised(x64: None) -> None:
    stacked = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), groups())
    for one, other in zip(jax.vmap(ours)(stacked), plain(stacked), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_the_gradient_is_a_polynomial() -> None:
    assert gradient((FIRST,), variables_of(1, 2)) == (((2.0, (A, C)), (-4.5, (B, B))), ((2.0, (A, B)),))
    assert gradient((FIRST, SECOND), (A,)) == (((2.0, (B, C)), (0.5, ()), (8.0, (A,))),)
