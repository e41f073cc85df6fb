import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, multivariate_t, norm
from scipy.stats import t as student

from huefield.core import EnergyForces, Gaussian, Labels, Partition
from huefield.training.likelihoods import (
    average_of_averages,
    beta_nll,
    joint_nll,
    marginal_nll,
    squared_error,
    structure_mean,
    weighted,
)
from tests.core.helpers import SIZES, flat, random_gaussian

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture
def gaussian() -> Gaussian:
    return random_gaussian(20)


def observed(gaussian: Gaussian, **masks: object) -> Labels:
    draw = gaussian.sample(key=jax.random.key(21))
    return Labels.from_arrays(gaussian.partition, 3, energy=draw.energy, forces=draw.forces, **masks)


def moved(gaussian: Gaussian, shift: jax.Array) -> Gaussian:
    """The mean moved by ``shift`` in every quantity: one number to differentiate by."""
    return eqx.tree_at(lambda g: g.mean, gaussian, jax.tree.map(lambda m: m + shift, gaussian.mean))


def test_marginal_nll_is_scipys(gaussian: Gaussian) -> None:
    labels = observed(gaussian)
    terms, variance = marginal_nll(gaussian, labels), gaussian.variance()
    for structure in range(len(SIZES)):
        expected = -norm(flat(gaussian.mean, gaussian, structure), np.sqrt(flat(variance, gaussian, structure))).logpdf(
            flat(EnergyForces(labels.energy, labels.forces), gaussian, structure)
        )
        np.testing.assert_allclose(flat(terms, gaussian, structure), expected, rtol=1e-12)


def test_joint_nll_is_scipys(gaussian: Gaussian) -> None:
    labels = observed(gaussian)
    for structure, got in enumerate(joint_nll(gaussian, labels)):
        reference = multivariate_normal(flat(gaussian.mean, gaussian, structure), gaussian.covariance(structure))
        expected = -reference.logpdf(flat(EnergyForces(labels.energy, labels.forces), gaussian, structure))
        np.testing.assert_allclose(got, expected, rtol=1e-10)


@pytest.mark.parametrize("dof", [2.05, 3.1, 50.0])
def test_likelihoods_of_a_t_distribution_are_scipys(gaussian: Gaussian, dof: float) -> None:
    """Its variance is the predicted one: the scale of the t, or its shape matrix, is smaller."""
    labels, smaller = observed(gaussian), (dof - 2) / dof
    terms, joint = marginal_nll(gaussian, labels, dof), joint_nll(gaussian, labels, dof)
    for structure in range(len(SIZES)):
        mean, variance = (flat(each, gaussian, structure) for each in (gaussian.mean, gaussian.variance()))
        values = flat(EnergyForces(labels.energy, labels.forces), gaussian, structure)
        marginal = student(dof, mean, np.sqrt(smaller * variance))
        np.testing.assert_allclose(flat(terms, gaussian, structure), -marginal.logpdf(values), rtol=1e-10)
        together = multivariate_t(mean, smaller * gaussian.covariance(structure), df=dof)
        np.testing.assert_allclose(joint[structure], -together.logpdf(values), rtol=1e-10)


@pytest.mark.parametrize("objective", [marginal_nll, joint_nll])
def test_many_degrees_of_freedom_are_gaussian(objective, gaussian: Gaussian) -> None:
    labels = observed(gaussian)
    assert eqx.tree_equal(objective(gaussian, labels, 1e6), objective(gaussian, labels), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("objective", "variance"), [(marginal_nll, 1e-30), (joint_nll, 1e-12)])
def test_gradients_of_tiny_noise_are_finite(objective, variance: float) -> None:
    """In single precision; those of the Gaussian are infinite for marginal variances of 1e-30."""
    with jax.enable_x64(False):
        gaussian = jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, random_gaussian(20))
        labels = observed(gaussian)

        def total(log_variance: jax.Array) -> jax.Array:
            noise = jax.tree.map(lambda d: d * jnp.exp(log_variance), gaussian.diagonal)
            columns = jax.tree.map(lambda u: u * jnp.exp(log_variance / 2), (gaussian.aleatoric, gaussian.epistemic))
            tiny = eqx.tree_at(lambda g: (g.diagonal, g.aleatoric, g.epistemic), gaussian, (noise, *columns))
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(objective(tiny, labels, 3.0)))

        slope = jax.grad(total)(jnp.log(jnp.float32(variance)))
        assert np.isfinite(slope)
        assert slope < 0, "the likelihood asks for more noise"


def test_beta_zero_is_the_likelihood(gaussian: Gaussian) -> None:
    labels = observed(gaussian)
    assert eqx.tree_equal(beta_nll(gaussian, labels, 0.0), marginal_nll(gaussian, labels), rtol=1e-14)


def test_beta_one_has_the_gradient_of_the_squared_error(gaussian: Gaussian) -> None:
    labels = observed(gaussian)

    def slopes(objective):
        def total(mean: EnergyForces) -> jax.Array:
            terms = objective(eqx.tree_at(lambda g: g.mean, gaussian, mean))
            return terms.energy.sum() + terms.forces.sum()

        return jax.jit(jax.grad(total))(gaussian.mean)

    one, squared = slopes(lambda g: beta_nll(g, labels, 1.0)), slopes(lambda g: squared_error(g, labels))
    assert eqx.tree_equal(one, squared, rtol=1e-12, atol=1e-14)
    half = slopes(lambda g: beta_nll(g, labels, 0.5))
    assert not eqx.tree_equal(half, squared, rtol=1e-3)


def test_the_weight_of_beta_nll_is_not_differentiated(gaussian: Gaussian) -> None:
    """d/dσ² of sg(σ^2β) ½ (r²/σ² + log σ²) is σ^2β ½ (1/σ² − r²/σ⁴)."""
    labels, beta = observed(gaussian), 0.5

    def total(diagonal: EnergyForces) -> jax.Array:
        return beta_nll(eqx.tree_at(lambda g: g.diagonal, gaussian, diagonal), labels, beta).energy.sum()

    got = jax.jit(jax.grad(total))(gaussian.diagonal).energy
    variance, residual = gaussian.variance().energy, labels.energy - gaussian.mean.energy
    np.testing.assert_allclose(got, variance**beta * 0.5 * (1 / variance - residual**2 / variance**2), rtol=1e-12)


@pytest.mark.parametrize(
    "objective",
    [
        squared_error,
        marginal_nll,
        joint_nll,
        lambda *pair: beta_nll(*pair, 0.5),
        lambda *pair: marginal_nll(*pair, 3.0),
        lambda *pair: joint_nll(*pair, 3.0),
    ],
)
def test_what_is_masked_never_counts(objective, gaussian: Gaussian) -> None:
    masks = {
        "energy_mask": np.array([True, False, True]),
        "forces_mask": np.array([True, False, True, False, True, True, True, True, False, False]),
    }
    labels = observed(gaussian, **masks)
    wild = eqx.tree_at(
        lambda x: (x.energy, x.forces),
        labels,
        (
            jnp.where(labels.energy_mask, labels.energy, jnp.nan),
            jnp.where(labels.forces_mask[:, None], labels.forces, jnp.nan),
        ),
    )
    compiled = jax.jit(objective)
    assert eqx.tree_equal(compiled(gaussian, labels), compiled(gaussian, wild))

    def total(shift: jax.Array, labels: Labels) -> jax.Array:
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(objective(moved(gaussian, shift), labels)))

    slope = jax.jit(jax.grad(total))
    zero = jnp.zeros(())
    assert np.isfinite(slope(zero, wild))
    assert slope(zero, wild) == slope(zero, labels)


def test_nothing_observed_costs_nothing(gaussian: Gaussian) -> None:
    nothing = Labels.from_arrays(gaussian.partition, 3)
    terms = marginal_nll(gaussian, nothing)
    assert structure_mean(terms, nothing, gaussian.partition).value == 0
    assert average_of_averages(terms, nothing).value == 0


def test_reductions_on_numbers_that_can_be_checked_by_hand() -> None:
    partition = Partition.from_sizes([1, 2])
    terms = EnergyForces(jnp.array([1.0, 2.0]), jnp.ones((3, 3)))
    labels = Labels.from_arrays(partition, 3, energy=np.zeros(2), forces=np.zeros((3, 3)))
    assert structure_mean(terms, labels, partition).value == pytest.approx(((1 + 3) + (2 + 6)) / 2)
    assert average_of_averages(terms, labels).value == pytest.approx(1.5 + 1.0)
    heavy = weighted(terms, 2.0, 10.0)
    assert structure_mean(heavy, labels, partition).value == pytest.approx(((2 + 30) + (4 + 60)) / 2)


def test_a_structure_without_labels_does_not_dilute_the_mean() -> None:
    partition = Partition.from_sizes([1, 2])
    labels = Labels.from_arrays(partition, 3, energy=np.zeros(2), energy_mask=np.array([True, False]))
    terms = EnergyForces(jnp.array([5.0, 0.0]), jnp.zeros((3, 3)))
    assert structure_mean(terms, labels, partition).value == pytest.approx(5.0)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize("objective", [squared_error, marginal_nll, joint_nll])
def test_labels_of_another_batch_are_refused(objective, gaussian: Gaussian) -> None:
    other = Labels.from_arrays(Partition.from_sizes([1]), 3, energy=np.zeros(1), forces=np.zeros((1, 3)))
    with pytest.raises(ValueError, match=r"labels.energy must have shape \(3\), but has shape \(1,\)"):
        objective(gaussian, other)
