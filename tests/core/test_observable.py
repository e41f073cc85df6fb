import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from huefield.core import EnergyForcesStack, Gaussian, Observable, Partition
from tests.core.helpers import SIZES, flat, padded_partition, random_gaussian

TOLERANCE = {"float32": 2e-4, "float64": 1e-10}
STRUCTURES = range(len(SIZES))

linear = eqx.filter_jit(Gaussian.linear)


def random_direction(seed: int, partition: Partition, dimension: int = 3) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(partition.num_atoms, dimension)), float)


def random_observable(seed: int, gaussian: Gaussian, rows: int = 4) -> Observable:
    """Weights on energies, forces and also on padding atoms, where they must not matter."""
    rng = np.random.default_rng(seed)
    energy, forces = (rng.normal(size=(rows, *part.shape)) for part in (gaussian.mean.energy, gaussian.mean.forces))
    return Observable(jnp.asarray(energy, float), jnp.asarray(forces, float))


def dense_rows(observable: Observable, gaussian: Gaussian, structure: int) -> np.ndarray:
    """A for one structure, columns ordered (E, F_1x, F_1y, ...)."""
    atoms = gaussian.partition.atoms_of(structure)
    forces = np.asarray(observable.forces)[:, atoms].reshape(len(observable), -1)
    return np.concatenate([np.asarray(observable.energy)[:, structure, None], forces], axis=1)


def without(part: str, gaussian: Gaussian) -> Gaussian:
    nothing = EnergyForcesStack.empty(gaussian.mean)
    if part == "epistemic":
        return eqx.tree_at(lambda g: g.epistemic, gaussian, nothing)
    silent = jax.tree.map(jnp.zeros_like, gaussian.diagonal)
    return eqx.tree_at(lambda g: (g.diagonal, g.aleatoric), gaussian, (silent, nothing))


def check_against_dense_algebra(observable: Observable, gaussian: Gaussian, tolerance: float) -> None:
    got = linear(gaussian, observable)
    for s in STRUCTURES:
        a = dense_rows(observable, gaussian, s)
        noise = a @ without("epistemic", gaussian).covariance(s) @ a.T
        spread = a @ without("aleatoric", gaussian).covariance(s) @ a.T
        options = {"rtol": tolerance, "atol": tolerance * np.abs(noise + spread).max()}
        np.testing.assert_allclose(got.aleatoric_cov[s], noise, **options)
        np.testing.assert_allclose(got.epistemic_cov[s], spread, **options)
        np.testing.assert_allclose(got.covariance()[s], a @ gaussian.covariance(s) @ a.T, **options)
        np.testing.assert_allclose(got.variance()[s], np.diag(a @ gaussian.covariance(s) @ a.T), **options)
        mean = flat(gaussian.mean, gaussian, s)
        np.testing.assert_allclose(got.mean[s], a @ mean, rtol=tolerance, atol=tolerance * np.abs(mean).max())


@pytest.mark.parametrize("columns", [(2, 3), (1, 0), (0, 2)])
def test_linear_observables_have_the_moments_of_dense_algebra(columns: tuple[int, int], precision: str) -> None:
    gaussian = random_gaussian(0, noise_columns=columns[0], member_columns=columns[1])
    check_against_dense_algebra(random_observable(1, gaussian), gaussian, TOLERANCE[precision])


def test_energy_itself_is_the_observable_with_weight_one() -> None:
    gaussian = random_gaussian(4)
    observable = Observable(jnp.ones((1, 3)), jnp.zeros((1, 10, 3)))
    got = linear(gaussian, observable)
    np.testing.assert_allclose(got.mean[:, 0], gaussian.mean.energy, rtol=1e-6)
    np.testing.assert_allclose(got.variance()[:, 0], gaussian.variance().energy, rtol=1e-6)
    np.testing.assert_allclose(got.epistemic_cov[:, 0, 0], gaussian.epistemic_variance().energy, rtol=1e-6)


class TestNetForce:
    @pytest.mark.usefixtures("x64")
    @pytest.mark.parametrize("dimension", [1, 3])
    def test_is_the_sum_of_the_forces_of_a_structure(self, dimension: int) -> None:
        gaussian = random_gaussian(5, dimension=dimension)
        observable = Observable.net_force(gaussian.partition, dimension)
        assert len(observable) == dimension
        got = linear(gaussian, observable)
        for s in STRUCTURES:
            forces = np.asarray(gaussian.mean.forces)[gaussian.partition.atoms_of(s)]
            np.testing.assert_allclose(got.mean[s], forces.sum(0), rtol=1e-12)
        check_against_dense_algebra(observable, gaussian, 1e-10)

    def test_has_no_variance_where_the_noise_has_no_net_force(self) -> None:
        gaussian = random_gaussian(6, noise_columns=1, member_columns=0)
        partition = gaussian.partition
        push = gaussian.aleatoric.forces[0]
        mean_push = partition.sum(push) / jnp.asarray(SIZES)[:, None]
        balanced = jnp.where(partition.atom_mask[:, None], push - partition.spread(mean_push), 0.0)
        quiet = eqx.tree_at(
            lambda g: (g.diagonal.forces, g.aleatoric.forces), gaussian, (jnp.zeros_like(push), balanced[None])
        )
        assert np.max(linear(quiet, Observable.net_force(partition, 3)).variance()) < 1e-10
        assert np.max(linear(gaussian, Observable.net_force(partition, 3)).variance()) > 0.1


class TestAlong:
    def test_direction_of_each_structure_has_length_one(self, precision: str) -> None:
        partition = padded_partition()
        observable = Observable.along(random_direction(7, partition), partition)
        assert observable.forces.dtype == precision
        assert observable.energy.shape == (1, len(SIZES))
        assert not np.any(observable.energy)
        lengths = partition.sum(jnp.sum(observable.forces[0] ** 2, axis=1))
        np.testing.assert_allclose(lengths, 1.0, rtol=1e-6)

    def test_length_of_the_direction_does_not_matter_but_its_sign_does(self) -> None:
        partition = padded_partition()
        direction = random_direction(8, partition)
        scale = partition.spread(jnp.array([1e-3, 40.0, -5.0]))[:, None]
        once, scaled = Observable.along(direction, partition), Observable.along(scale * direction, partition)
        sign = partition.spread(jnp.array([1.0, 1.0, -1.0]))[:, None]
        np.testing.assert_allclose(scaled.forces[0], sign * once.forces[0], rtol=1e-5)

    @pytest.mark.usefixtures("x64")
    def test_is_the_projection_of_the_forces(self) -> None:
        gaussian = random_gaussian(9)
        direction = random_direction(10, gaussian.partition)
        observable = Observable.along(direction, gaussian.partition)
        got = linear(gaussian, observable)
        for s in STRUCTURES:
            atoms = gaussian.partition.atoms_of(s)
            unit = np.asarray(direction)[atoms].ravel()
            unit /= np.linalg.norm(unit)
            np.testing.assert_allclose(got.mean[s, 0], unit @ np.asarray(gaussian.mean.forces)[atoms].ravel())
            np.testing.assert_allclose(got.variance()[s, 0], unit @ gaussian.covariance(s)[1:, 1:] @ unit)

    def test_has_the_mean_and_variance_of_samples(self) -> None:
        gaussian, count = random_gaussian(11), 20_000
        observable = Observable.along(random_direction(12, gaussian.partition), gaussian.partition)
        got = linear(gaussian, observable)
        draws = eqx.filter_jit(lambda g: g.samples(count, key=jax.random.key(13)))(gaussian)
        for s in STRUCTURES:
            atoms = gaussian.partition.atoms_of(s)
            projected = np.einsum("nad,ad->n", draws.forces[:, atoms], observable.forces[0, atoms])
            variance = float(got.variance()[s, 0])
            assert abs(projected.mean() - got.mean[s, 0]) < 5 * np.sqrt(variance / count)
            assert abs(projected.var() - variance) < 5 * variance * np.sqrt(2 / count)

    def test_padding_atoms_have_no_weight_whatever_their_direction(self) -> None:
        partition = padded_partition()
        padding = ~np.asarray(partition.atom_mask)
        for value in (0.0, 1.0, jnp.nan):
            direction = jnp.where(partition.atom_mask[:, None], random_direction(14, partition), value)
            weights = np.asarray(Observable.along(direction, partition).forces[0])
            assert np.isfinite(weights).all()
            assert not np.any(weights[padding])

    def test_zero_direction_of_a_structure_is_an_error_that_names_it(self) -> None:
        partition = padded_partition()
        direction = random_direction(15, partition).at[3].set(0.0)  # all of structure 1
        message = r"length of the direction of a structure must be positive, but is 0.0 at index 1 \(1 of 3"
        with pytest.raises(ValueError, match=message):
            Observable.along(direction, partition)

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_direction_that_is_no_number_is_an_error(self, bad: float) -> None:
        partition = padded_partition()
        direction = random_direction(16, partition).at[5, 1].set(bad)
        with pytest.raises(ValueError, match=rf"direction .* must be positive, but is {bad} at index 2"):
            Observable.along(direction, partition)

    def test_structure_without_atoms_needs_no_direction(self) -> None:
        partition = Partition.from_sizes([2, 0])
        observable = Observable.along(jnp.ones((2, 3)), partition)
        np.testing.assert_allclose(observable.forces, 6**-0.5, rtol=1e-6)

    def test_can_be_compiled(self) -> None:
        partition = padded_partition()
        direction = random_direction(17, partition)
        compiled = eqx.filter_jit(Observable.along)(direction, partition)
        np.testing.assert_allclose(compiled.forces, Observable.along(direction, partition).forces, rtol=1e-6)


class TestWrongShapes:
    def test_weights_of_another_batch(self) -> None:
        with pytest.raises(ValueError, match=r"weights must have shape \(any, 10, any\), but has shape \(1, 9, 3\)"):
            Observable.of_forces(jnp.ones((1, 9, 3)), padded_partition())

    def test_direction_of_another_batch(self) -> None:
        with pytest.raises(ValueError, match=r"direction must have shape \(10, any\), but has shape \(9, 3\)"):
            Observable.along(jnp.ones((9, 3)), padded_partition())

    def test_observable_of_another_dimension(self) -> None:
        observable = Observable.net_force(padded_partition(), 2)
        message = r"observable.forces must have shape \(2, 10, 3\), but has shape \(2, 10, 2\)"
        with pytest.raises(ValueError, match=message):
            linear(random_gaussian(0), observable)

    def test_observable_of_another_number_of_structures(self) -> None:
        observable = Observable(jnp.ones((1, 4)), jnp.ones((1, 10, 3)))
        message = r"observable.energy must have shape \(any, 3\), but has shape \(1, 4\)"
        with pytest.raises(ValueError, match=message):
            linear(random_gaussian(0), observable)

    @pytest.mark.usefixtures("as_users_run")
    def test_energies_and_forces_of_different_numbers_of_rows(self) -> None:
        observable = Observable(jnp.ones((2, 3)), jnp.ones((1, 10, 3)))
        message = r"observable.forces must have shape \(2, 10, 3\), but has shape \(1, 10, 3\)"
        with pytest.raises(ValueError, match=message):
            linear(random_gaussian(0), observable)

    @pytest.mark.usefixtures("as_users_run")
    def test_direction_without_coordinates(self) -> None:
        with pytest.raises(ValueError, match=r"direction must have shape \(10, any\), but has shape \(10,\)"):
            Observable.along(jnp.ones(10), padded_partition())
