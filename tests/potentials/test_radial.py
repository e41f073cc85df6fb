"""Radial functions: against their formula, at the cutoff and at zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from huefield.potentials.radial import SOFTENING_ANGSTROM, distances_and_directions, envelope, radial_features

CUTOFF, COUNT = 4.0, 6


def features(distances: Array) -> Array:
    """Of some distances, [n, N + 1]."""
    return radial_features(distances[None], CUTOFF, COUNT)[0]


def derivatives(distance: float, order: int) -> Array:
    """The derivatives of this order of all radial features at a distance."""
    function = lambda r: features(r[None])[0]  # noqa: E731
    for _ in range(order):
        function = jax.jacrev(function)
    return jax.jit(function)(jnp.asarray(distance))


def test_they_are_the_formula(x64: None) -> None:
    r = np.linspace(0.3, 1.5 * CUTOFF, 50)
    x = r / CUTOFF
    smooth = np.where(x < 1, 1 - 10 * x**3 + 15 * x**4 - 6 * x**5, 0.0)
    sines = [np.sqrt(2 / CUTOFF) * np.sin(n * np.pi * x) / r for n in range(1, COUNT + 1)]
    expected = np.stack([*sines, np.ones_like(r)], axis=1) * smooth[:, None]
    np.testing.assert_allclose(features(jnp.asarray(r)), expected, atol=1e-14)


def test_the_envelope_falls_from_one_to_zero(precision: str) -> None:
    values = envelope(jnp.linspace(0.0, CUTOFF, 200), CUTOFF)
    assert values.dtype == precision
    assert values[0] == 1
    assert abs(values[-1]) < 1e-6
    assert np.all(np.diff(values[2:-2]) < 1e-6)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_value_and_two_derivatives_of_the_envelope_vanish_at_the_cutoff(order: int, x64: None) -> None:
    function = lambda r: envelope(r, CUTOFF)  # noqa: E731
    for _ in range(order):
        function = jax.grad(function)
    for distance in (CUTOFF * (1 - 1e-10), CUTOFF, CUTOFF * (1 + 1e-10)):
        assert abs(function(jnp.asarray(distance))) < 1e-8
    assert abs(function(jnp.asarray(0.9 * CUTOFF))) > 1e-4


@pytest.mark.parametrize("order", [0, 1, 2])
def test_features_vanish_with_two_derivatives_at_the_cutoff(order: int, x64: None) -> None:
    assert np.abs(derivatives(CUTOFF - 1e-9, order)).max() < 1e-6
    assert np.abs(derivatives(0.9 * CUTOFF, order)).min() > 1e-6


@pytest.mark.parametrize("order", [0, 1, 2])
def test_beyond_the_cutoff_features_are_zero_and_stay_so(order: int, precision: str) -> None:
    for distance in (CUTOFF * 1.001, 100.0):
        np.testing.assert_allclose(derivatives(distance, order), 0.0, atol=0)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_features_of_vectors_have_finite_derivatives_at_zero(order: int, precision: str) -> None:
    def function(vector: Array) -> tuple[Array, Array]:
        distances, directions = distances_and_directions(vector[None, None])
        return radial_features(distances, CUTOFF, COUNT), directions

    for _ in range(order):
        function = jax.jacrev(function)
    for vector in (jnp.zeros(3), jnp.array([1e-7, 0.0, 0.0])):
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.jit(function)(vector)))


def test_features_at_zero_are_their_limit(precision: str) -> None:
    """sin(nπr/r_c)/r → nπ/r_c, and the envelope is one."""
    distances, directions = distances_and_directions(jnp.zeros((1, 1, 3)))
    expected = [*(np.sqrt(2 / CUTOFF) * n * np.pi / CUTOFF for n in range(1, COUNT + 1)), 1.0]
    np.testing.assert_allclose(radial_features(distances, CUTOFF, COUNT)[0, 0], expected, rtol=1e-5)
    np.testing.assert_array_equal(directions, 0)


def test_distances_and_directions_are_those_of_vectors(x64: None) -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 5, 3))
    distances, directions = distances_and_directions(jnp.asarray(vectors))
    lengths = np.linalg.norm(vectors, axis=-1)
    np.testing.assert_allclose(distances, lengths, rtol=SOFTENING_ANGSTROM**2 / lengths.min() ** 2)
    np.testing.assert_allclose(
        directions, vectors / lengths[..., None], atol=SOFTENING_ANGSTROM**2 / lengths.min() ** 2
    )
