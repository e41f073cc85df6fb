import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from huefield.core import EnergyForces, EnergyForcesStack, Gaussian, Labels, Partition, mixture
from tests.core.helpers import SIZES, flat, random_gaussian

TOLERANCE = {"float32": 2e-4, "float64": 1e-10}
SHAPES = [(2, 3), (1, 0), (0, 3), (3, 1)]


def random_labels(gaussian: Gaussian, seed: int = 1, **masks: object) -> Labels:
    draw = gaussian.sample(key=jax.random.key(seed))
    dimension = gaussian.mean.forces.shape[1]
    return Labels.from_arrays(gaussian.partition, dimension, energy=draw.energy, forces=draw.forces, **masks)


@pytest.mark.parametrize("columns", SHAPES)
def test_marginal_variances_are_the_diagonal_of_the_dense_covariance(columns: tuple[int, int], precision: str) -> None:
    gaussian = random_gaussian(0, noise_columns=columns[0], member_columns=columns[1])
    for s in range(len(SIZES)):
        dense = np.diag(gaussian.covariance(s))
        np.testing.assert_allclose(flat(gaussian.variance(), gaussian, s), dense, rtol=TOLERANCE[precision])
    parts = jax.tree.map(jnp.add, gaussian.aleatoric_variance(), gaussian.epistemic_variance())
    assert eqx.tree_equal(parts, gaussian.variance())


@pytest.mark.parametrize("energy_diagonal", [True, False])
@pytest.mark.parametrize("columns", SHAPES)
def test_log_prob_is_that_of_scipys_multivariate_normal(
    columns: tuple[int, int], energy_diagonal: bool, precision: str
) -> None:
    gaussian = random_gaussian(2, noise_columns=columns[0], member_columns=columns[1], energy_diagonal=energy_diagonal)
    labels = random_labels(gaussian)
    got = jax.jit(Gaussian.log_prob)(gaussian, labels)
    observed = EnergyForces(labels.energy, labels.forces)
    for s in range(len(SIZES)):
        reference = multivariate_normal(flat(gaussian.mean, gaussian, s), gaussian.covariance(s))
        expected = reference.logpdf(flat(observed, gaussian, s))
        np.testing.assert_allclose(got[s], expected, rtol=TOLERANCE[precision], atol=TOLERANCE[precision])


@pytest.mark.usefixtures("x64")
def test_log_prob_of_partly_observed_structures_is_the_marginal_density() -> None:
    gaussian = random_gaussian(3, energy_diagonal=False)
    energy_mask = np.array([True, False, True])
    forces_mask = np.array([True, False, True, True, False, True, False, True, True, True])
    labels = random_labels(gaussian, energy_mask=energy_mask, forces_mask=forces_mask)
    got = gaussian.log_prob(labels)
    observed = EnergyForces(labels.energy, labels.forces)
    for s in range(len(SIZES)):
        atoms = gaussian.partition.atoms_of(s)
        keep = np.append(energy_mask[s], np.repeat(forces_mask[atoms], 3))
        reference = multivariate_normal(
            flat(gaussian.mean, gaussian, s)[keep], gaussian.covariance(s)[np.ix_(keep, keep)]
        )
        np.testing.assert_allclose(got[s], reference.logpdf(flat(observed, gaussian, s)[keep]), rtol=1e-10)


def test_log_prob_of_nothing_observed_is_zero() -> None:
    gaussian = random_gaussian(4)
    assert np.array_equal(gaussian.log_prob(Labels.from_arrays(gaussian.partition, 3)), np.zeros(3))


def test_log_prob_does_not_cancel_in_float32_when_columns_dominate() -> None:
    """Woodbury's difference of two large numbers would lose every digit here."""
    small = random_gaussian(5)
    forces = 1e-6 * small.diagonal.forces
    gaussian = eqx.tree_at(lambda g: g.diagonal.forces, small, forces)
    labels = random_labels(gaussian)
    got = gaussian.log_prob(labels)
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda x: x.astype(float) if x.dtype == jnp.float32 else x, (gaussian, labels))
        np.testing.assert_allclose(got, exact[0].log_prob(exact[1]), rtol=2e-3)


@pytest.mark.parametrize("energy_diagonal", [True, False])
@pytest.mark.usefixtures("x64")
def test_conditioning_on_the_energy_is_that_of_dense_algebra(energy_diagonal: bool) -> None:
    gaussian = random_gaussian(6, energy_diagonal=energy_diagonal)
    energy = gaussian.mean.energy + jnp.array([0.3, -0.7, 1.1])
    given = gaussian.condition_on_energy(energy)
    np.testing.assert_array_equal(given.mean.energy, energy)
    for s in range(len(SIZES)):
        dense = gaussian.covariance(s)
        gain = dense[1:, 0] / dense[0, 0]
        mean = flat(gaussian.mean, gaussian, s)[1:] + gain * (energy - gaussian.mean.energy)[s]
        np.testing.assert_allclose(flat(given.mean, given, s)[1:], mean, rtol=1e-10)
        expected = np.zeros_like(dense)
        expected[1:, 1:] = dense[1:, 1:] - np.outer(gain, dense[0, 1:])
        np.testing.assert_allclose(given.covariance(s), expected, atol=1e-10)


def test_energies_that_are_known_must_be_numbers() -> None:
    gaussian = random_gaussian(6)
    energy = np.array([0.1, np.nan, 0.3], np.float32)
    with pytest.raises(ValueError, match="energy must be finite, but is nan at index 1"):
        gaussian.condition_on_energy(jnp.asarray(energy))
    given = gaussian.condition_on_energy(jnp.asarray(energy), jnp.array([True, False, True]))
    np.testing.assert_array_equal(given.mean.energy, np.where(np.isnan(energy), gaussian.mean.energy, energy))


@pytest.mark.usefixtures("as_users_run")
def test_the_number_of_samples_may_be_any_integer() -> None:
    assert len(random_gaussian(6).samples(np.int64(3), key=jax.random.key(0))) == 3


@pytest.mark.usefixtures("x64")
def test_aleatoric_part_of_a_conditional_is_the_conditional_of_the_aleatoric_part() -> None:
    gaussian = random_gaussian(7)
    nobody = EnergyForcesStack.empty(gaussian.mean)
    noise_only = eqx.tree_at(lambda g: g.epistemic, gaussian, nobody)
    energy = gaussian.mean.energy + 0.5
    given = gaussian.condition_on_energy(energy)
    given_noise_only = noise_only.condition_on_energy(energy)
    np.testing.assert_allclose(given.aleatoric_variance().forces, given_noise_only.variance().forces, rtol=1e-12)
    assert np.all(np.asarray(given.epistemic_variance().energy) == 0)


@pytest.mark.parametrize("energy_diagonal", [True, False])
def test_samples_have_the_mean_and_covariance(energy_diagonal: bool) -> None:
    gaussian = random_gaussian(8, energy_diagonal=energy_diagonal)
    count = 40_000
    draws = gaussian.samples(count, key=jax.random.key(9))
    for s in range(len(SIZES)):
        rows = gaussian.partition.atoms_of(s)
        table = np.concatenate([draws.energy[:, s, None], draws.forces[:, rows].reshape(count, -1)], axis=1)
        dense = gaussian.covariance(s)
        spread = np.sqrt((np.outer(np.diag(dense), np.diag(dense)) + dense**2) / count)
        assert np.max(np.abs(np.cov(table.T) - dense) / spread) < 5
        errors = np.abs(table.mean(0) - flat(gaussian.mean, gaussian, s)) / np.sqrt(np.diag(dense) / count)
        assert np.max(errors) < 5


def test_samples_with_tails_have_the_covariance_and_one_scale_for_a_structure() -> None:
    """Student t with ν = 9: E[z_i² z_j²] is (ν − 2)/(ν − 4) times that of a Gaussian, for i = j and for i ≠ j."""
    gaussian, count, dof = random_gaussian(8), 40_000, 9.0
    heavier = (dof - 2) / (dof - 4)  # fourth moments in units of those of a Gaussian
    draws = gaussian.samples(count, key=jax.random.key(0), dof=dof)
    whitened = []
    for structure in range(len(SIZES)):
        rows = gaussian.partition.atoms_of(structure)
        energy, forces = np.asarray(draws.energy, float), np.asarray(draws.forces, float)
        table = np.concatenate([energy[:, structure, None], forces[:, rows].reshape(count, -1)], axis=1)
        dense, mean = gaussian.covariance(structure), flat(gaussian.mean, gaussian, structure)
        fourth = heavier * (np.outer(np.diag(dense), np.diag(dense)) + 2 * dense**2)
        assert np.all(np.abs(np.cov(table.T) - dense) < 5 * np.sqrt((fourth - dense**2) / count))
        whitened.append(np.linalg.solve(np.linalg.cholesky(dense), (table - mean).T))
    kurtosis = np.mean([np.mean(rows**4) for rows in whitened])
    assert kurtosis == pytest.approx(3 * heavier, rel=0.05)
    together = np.mean([np.mean(rows[0] ** 2 * rows[1] ** 2) for rows in whitened])
    assert together == pytest.approx(heavier, rel=0.05), "all entries of a structure have one scale"
    apart = np.mean(whitened[0][0] ** 2 * whitened[2][0] ** 2)
    assert apart == pytest.approx(1.0, rel=0.05), "structures have scales of their own"


@pytest.mark.usefixtures("x64")
def test_mixture_obeys_the_law_of_total_covariance() -> None:
    members = [random_gaussian(seed, member_columns=0) for seed in (11, 12, 13, 14)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *members)
    total = mixture(stacked)
    for s in range(len(SIZES)):
        means = np.stack([flat(m.mean, m, s) for m in members])
        noise = np.mean([m.covariance(s) for m in members], axis=0)
        np.testing.assert_allclose(flat(total.mean, total, s), means.mean(0), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(total.covariance(s), noise + np.cov(means.T, bias=True), atol=1e-12)
        np.testing.assert_allclose(flat(total.aleatoric_variance(), total, s), np.diag(noise), rtol=1e-12)
        np.testing.assert_allclose(flat(total.epistemic_variance(), total, s), means.var(0), rtol=1e-10, atol=1e-14)


def test_log_prob_is_linear_in_the_number_of_atoms() -> None:
    """The compiled program never holds an array that is quadratic in the number of atoms."""
    atoms = 5_000
    partition = Partition.from_sizes([atoms])
    zeros = EnergyForces(jnp.zeros(1), jnp.zeros((atoms, 3)))
    ones = EnergyForces(jnp.ones(1), jnp.ones((atoms, 3)))
    columns = EnergyForcesStack(jnp.ones((2, 1)), jnp.ones((2, atoms, 3)))
    gaussian = Gaussian(zeros, ones, columns, EnergyForcesStack.empty(zeros), partition)
    labels = Labels.from_arrays(partition, 3, energy=np.zeros(1), forces=np.zeros((atoms, 3)))
    memory = jax.jit(Gaussian.log_prob).lower(gaussian, labels).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 200 * atoms * 4


class TestBadInput:
    def build(self, **changes: object) -> Gaussian:
        good = random_gaussian(0)
        fields = {name: getattr(good, name) for name in ("mean", "diagonal", "aleatoric", "epistemic", "partition")}
        return Gaussian(**(fields | changes))

    def test_negative_variance_is_named_with_its_place(self) -> None:
        good = random_gaussian(0)
        bad = EnergyForces(good.diagonal.energy, good.diagonal.forces.at[4, 1].set(-0.5))
        with pytest.raises(ValueError, match=r"force variances .* non-negative, but is -0.5 at index \(4, 1\)"):
            self.build(diagonal=bad)

    def test_nan_mean_is_named(self) -> None:
        good = random_gaussian(0)
        bad = EnergyForces(good.mean.energy.at[2].set(jnp.nan), good.mean.forces)
        with pytest.raises(ValueError, match=r"mean.energy must be finite, but is nan at index 2"):
            self.build(mean=bad)

    def test_vanilla_has_no_density(self) -> None:
        good = random_gaussian(0)
        flat_diagonal = jax.tree.map(jnp.zeros_like, good.diagonal)
        gaussian = self.build(diagonal=flat_diagonal)
        with pytest.raises(ValueError, match=r"no joint density.*24 force components.*marginal_nll"):
            gaussian.log_prob(random_labels(gaussian))

    def test_structure_out_of_range(self) -> None:
        with pytest.raises(IndexError, match="structure 3 is out of range: the batch has 3"):
            random_gaussian(0).covariance(3)

    def test_labels_of_another_batch(self) -> None:
        gaussian = random_gaussian(0)
        other = Labels.from_arrays(Partition.from_sizes([2]), 3, energy=np.zeros(1))
        with pytest.raises(ValueError, match=r"labels.energy must have shape \(3\), but has shape \(1,\)"):
            gaussian.log_prob(other)
