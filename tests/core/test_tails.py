import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_t, norm
from scipy.stats import t as student

from huefield.core import EnergyForces, Labels
from huefield.core.tails import (
    crps_terms,
    interval_width,
    joint_log_density,
    log_density_with_tails,
    nll_terms,
    standard_density,
    standard_quantile,
)
from tests.core.helpers import SIZES, flat, random_gaussian

DOF = (2.05, 3.1, 30.0, 1e6)


def scaled(dof: float, sigma: float | np.ndarray = 1.0):
    """SciPy's t distribution with the standard deviation σ."""
    return student(dof, scale=sigma * np.sqrt((dof - 2) / dof))


@pytest.fixture
def pair() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return 3 * rng.standard_normal(50), rng.uniform(0.1, 2.0, 50)


@pytest.mark.parametrize("dof", [2.5, 3.1, 30.0])
def test_sigma_is_the_standard_deviation(dof: float) -> None:
    assert scaled(dof, 1.7).std() == pytest.approx(1.7)


@pytest.mark.parametrize("dof", DOF)
def test_density_and_quantiles_are_scipys(pair: tuple[np.ndarray, np.ndarray], dof: float) -> None:
    error, sigma = pair
    np.testing.assert_allclose(nll_terms(error, sigma**2, dof), -scaled(dof, sigma).logpdf(error), rtol=1e-8)
    np.testing.assert_allclose(standard_density(error, dof), scaled(dof).pdf(error), rtol=1e-8)
    probability = np.array([0.0, 0.01, 0.5, 0.9, 0.999, 1.0])
    np.testing.assert_allclose(standard_quantile(probability, dof), scaled(dof).ppf(probability), rtol=1e-9, atol=1e-12)
    assert interval_width(0.95, dof) == pytest.approx(scaled(dof).ppf(0.975), rel=1e-9)


def test_none_is_the_normal_distribution(pair: tuple[np.ndarray, np.ndarray]) -> None:
    error, sigma = pair
    np.testing.assert_allclose(nll_terms(error, sigma**2), -norm(0, sigma).logpdf(error), rtol=1e-12)
    np.testing.assert_allclose(standard_density(error), norm.pdf(error), rtol=1e-12)
    assert interval_width(0.95) == pytest.approx(norm.ppf(0.975))


@pytest.mark.parametrize("dof", [2.05, 3.1, 30.0])
@pytest.mark.parametrize("error", [0.0, 0.7, -9.0])
def test_crps_is_the_integral_of_squared_differences_of_distributions(dof: float, error: float) -> None:
    found = scaled(dof, 1.5)
    below = quad(lambda x: found.cdf(x) ** 2, -np.inf, error, limit=500)[0]
    above = quad(lambda x: found.sf(x) ** 2, error, np.inf, limit=500)[0]
    assert crps_terms(np.array([error]), np.array([2.25]), dof)[0] == pytest.approx(below + above, rel=1e-5)


def test_crps_of_many_degrees_of_freedom_is_the_normal_one(pair: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_allclose(crps_terms(*pair, 1e6), crps_terms(*pair), rtol=1e-5)


@pytest.mark.parametrize("dof", [None, 2.05, 3.1, 1e6])
def test_crps_of_hardly_any_variance_is_the_error(dof: float | None) -> None:
    found = crps_terms(np.array([-0.3, 0.3, 20.0]), np.array([0.0, 1e-300, 5e-324]), dof)
    np.testing.assert_allclose(found, [0.3, 0.3, 20.0])


@pytest.mark.parametrize("dof", DOF)
@pytest.mark.parametrize(("single", "tolerance"), [(False, 1e-8), (True, 2e-6)])
def test_traced_density_is_scipys(
    pair: tuple[np.ndarray, np.ndarray], dof: float, single: bool, tolerance: float
) -> None:
    """Also in single precision, in which log Γ of a million is off by one half."""
    error, sigma = pair
    dtype = np.float32 if single else np.float64
    with jax.enable_x64(not single):
        found = log_density_with_tails(jnp.asarray(error, dtype), jnp.asarray(sigma**2, dtype), dof)
    np.testing.assert_allclose(found, scaled(dof, sigma).logpdf(error), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dof", [2.05, 3.1, 19.9, 20.1, 1e6])
def test_joint_density_is_scipys_multivariate_t(dof: float) -> None:
    """Its shape matrix is the covariance times (ν − 2)/ν."""
    with jax.enable_x64(True):
        gaussian = random_gaussian(3)
        draw = gaussian.sample(key=jax.random.key(4))
        labels = Labels.from_arrays(gaussian.partition, 3, energy=draw.energy, forces=draw.forces)
        values = EnergyForces(labels.energy, labels.forces)
        found = gaussian.log_prob(labels, dof)
        for structure in range(len(SIZES)):
            shape = gaussian.covariance(structure) * (dof - 2) / dof
            reference = multivariate_t(flat(gaussian.mean, gaussian, structure), shape, df=dof)
            expected = reference.logpdf(flat(values, gaussian, structure))
            np.testing.assert_allclose(found[structure], expected, rtol=1e-8)


@pytest.mark.parametrize("dof", [2.05, 15.0, 300.0, 1e6])
def test_joint_density_in_single_precision(dof: float) -> None:
    """Beside SciPy's, for one residual, ten atoms and a hundred atoms."""
    for count, quadratic in ((1, 4.0), (31, 40.0), (301, 250.0)):
        residual = np.zeros(count)
        residual[0] = np.sqrt(quadratic)
        expected = multivariate_t(np.zeros(count), np.eye(count) * (dof - 2) / dof, df=dof).logpdf(residual)
        arrays = (jnp.float32(value) for value in (quadratic, 0.0, count))
        np.testing.assert_allclose(joint_log_density(*arrays, dof), expected, rtol=2e-6)


def test_joint_density_of_many_degrees_of_freedom_is_gaussian() -> None:
    with jax.enable_x64(True):
        terms = (jnp.array([9.0, 2.0]), jnp.array([0.3, -4.0]), jnp.array([10.0, 1.0]))
        np.testing.assert_allclose(joint_log_density(*terms, 1e6), joint_log_density(*terms, None), atol=1e-4)


@pytest.mark.parametrize("variance", [1e-30, 1e-12, 1.0])
def test_gradients_of_tiny_noise_are_finite_in_single_precision(variance: float) -> None:
    """−∂/∂σ² = −½/σ² + (ν + 1)/2 · r²/((ν − 2) σ² + r²)/σ², which is −ν/2σ² for tiny σ²."""
    slope = jax.grad(lambda v: -log_density_with_tails(jnp.float32(0.5), v, 3.0))(jnp.float32(variance))
    assert slope == pytest.approx((0.5 - 2 * 0.25 / (variance + 0.25)) / variance, rel=1e-5)


def test_the_density_can_be_differentiated_by_the_degrees_of_freedom() -> None:
    """On both sides of the change of formulas."""
    with jax.enable_x64(True):
        for dof in (3.0, 19.999, 20.001, 500.0):
            slope = jax.grad(lambda nu: log_density_with_tails(jnp.asarray(1.3), jnp.asarray(0.8), nu))(dof)
            step = 1e-4 * dof
            ends = [scaled(nu, np.sqrt(0.8)).logpdf(1.3) for nu in (dof - step, dof + step)]
            assert slope == pytest.approx((ends[1] - ends[0]) / (2 * step), rel=1e-4)


def test_structures_without_labels_have_the_density_one() -> None:
    with jax.enable_x64(True):
        gaussian = random_gaussian(5)
        nothing = Labels.from_arrays(gaussian.partition, 3)
        np.testing.assert_allclose(eqx.filter_jit(gaussian.log_prob)(nothing, 3.0), 0.0, atol=1e-12)


@pytest.mark.parametrize("dof", [2.0, 1.0, float("nan")])
def test_degrees_of_freedom_without_a_variance_are_refused(dof: float) -> None:
    with pytest.raises(ValueError, match=r"degrees of freedom must be at least 2.05, for a variance to exist, not"):
        interval_width(0.9, dof)
