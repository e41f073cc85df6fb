import jax
import jax.numpy as jnp
import numpy as np

from huefield.core.lowrank import observe_scalar, safe_divide, safe_sqrt


def test_safe_sqrt_hides_nothing_but_the_slope_at_zero(precision: str) -> None:
    x = jnp.array([0.0, 4.0, -1.0, jnp.nan])
    got = np.asarray(safe_sqrt(x))
    np.testing.assert_array_equal(got[:2], [0.0, 2.0])
    assert np.all(np.isnan(got[2:]))
    np.testing.assert_allclose(jax.vmap(jax.grad(safe_sqrt))(x[:2]), [0.0, 0.25])


def test_safe_divide_by_zero_is_zero_with_zero_derivative() -> None:
    assert safe_divide(jnp.ones(()), jnp.zeros(())) == 0
    assert jax.grad(safe_divide, argnums=(0, 1))(jnp.ones(()), jnp.zeros(())) == (0, 0)


def test_observing_a_scalar_is_that_of_dense_algebra(precision: str) -> None:
    """Also without noise, where the root is a projection, and where nothing is seen, where it is the identity."""
    rng = np.random.default_rng(0)
    row, noise = rng.normal(size=(4, 3)), np.array([0.7, 0.0, 0.5])
    row[:, 2] = 0.0
    gain, root = observe_scalar(jnp.asarray(row, float), jnp.asarray(noise, float))
    tolerance = {"float32": 1e-5, "float64": 1e-12}[precision]
    for s in range(3):
        variance = row[:, s] @ row[:, s] + noise[s]
        np.testing.assert_allclose(gain[:, s], row[:, s] / variance, atol=tolerance)
        posterior = np.eye(4) - np.outer(row[:, s], row[:, s]) / variance
        np.testing.assert_allclose(root[:, :, s] @ root[:, :, s], posterior, atol=tolerance)
        np.testing.assert_allclose(root[:, :, s], root[:, :, s].T, atol=tolerance)
