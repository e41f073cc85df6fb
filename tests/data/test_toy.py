import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import CubicSpline

from huefield.data import toy

GRID = np.linspace(-1.5, 1.5, 31)


@pytest.mark.usefixtures("x64")
def test_mean_force_is_minus_the_slope_of_the_mean_energy() -> None:
    def energy(x: jax.Array) -> jax.Array:
        return x + 0.3 * jnp.sin(2 * jnp.pi * x) + 0.1 * jnp.sin(4 * jnp.pi * x)

    np.testing.assert_allclose(toy.mean_energy(GRID), energy(GRID), rtol=1e-14)
    np.testing.assert_allclose(toy.mean_force(GRID), -jax.vmap(jax.grad(energy))(GRID), rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_process_covariance_is_that_of_the_differentiated_kernel() -> None:
    def kernel(a: jax.Array, b: jax.Array) -> jax.Array:
        return 0.2**2 * jnp.exp(-((a - b) ** 2) / (2 * 0.5**2))

    x, got = GRID[:7], toy.process_covariance(GRID[:7], 0.2, 0.5)
    blocks = [
        [kernel, jax.grad(kernel, 1)],
        [jax.grad(kernel, 0), jax.grad(jax.grad(kernel, 0), 1)],
    ]
    expected = np.block([[jax.vmap(lambda a, f=f: jax.vmap(lambda b: f(a, b))(x))(x) for f in row] for row in blocks])
    np.testing.assert_allclose(got, expected, atol=1e-14)


def test_draws_have_the_covariance_of_the_process() -> None:
    process = toy.ToyProcess(num_train=1)
    x = np.array([-0.2, 0.3])
    draws = [toy.draw_toy(process, x, key=key) for key in jax.random.split(jax.random.key(0), 1000)]
    noise = np.array(
        [np.append(d.realisation.energy - d.truth.energy, d.truth.forces - d.realisation.forces) for d in draws]
    )
    dense = toy.process_covariance(x, process.amplitude, process.length_scale)
    scatter = np.sqrt((np.outer(np.diag(dense), np.diag(dense)) + dense**2) / len(draws))
    assert np.all(np.abs(np.cov(noise.T) - dense) < 4.5 * scatter)


def test_observations_lie_on_the_realisation_but_for_the_nugget() -> None:
    data = toy.draw_toy(toy.ToyProcess(), np.linspace(-1, 1, 401), key=jax.random.key(1))
    curve = CubicSpline(data.realisation.x, data.realisation.energy)
    assert 0.5 * 0.002 < np.std(data.train.energy - curve(data.train.x)) < 2 * 0.002
    np.testing.assert_allclose(data.train.forces, -curve(data.train.x, 1), atol=1e-3)
    np.testing.assert_allclose(data.realisation.forces[3:-3], -curve(data.realisation.x, 1)[3:-3], atol=1e-3)


def test_training_points_are_uniform_in_the_interval() -> None:
    process = toy.ToyProcess(num_train=400, low=-1.0, high=1.0)
    x = toy.draw_toy(process, np.array([0.0]), key=jax.random.key(2)).train.x
    assert x.min() >= -1.0
    assert x.max() <= 1.0
    np.testing.assert_allclose(np.histogram(x, bins=4, range=(-1, 1))[0], 100, atol=40)


def test_a_key_gives_the_same_draw_and_another_key_another() -> None:
    first, second = (toy.draw_toy(toy.ToyProcess(), GRID, key=jax.random.key(3)) for _ in range(2))
    np.testing.assert_array_equal(first.train.energy, second.train.energy)
    other = toy.draw_toy(toy.ToyProcess(), GRID, key=jax.random.key(4))
    assert not np.array_equal(first.train.x, other.train.x)
