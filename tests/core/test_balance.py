"""Forces without a net force and a net torque."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from scipy.stats import multivariate_normal

from huefield.core import EnergyForcesStack, Gaussian, Labels, Partition, RigidMotions
from huefield.core.rigid import internal_motions
from tests.core.helpers import SIZES, flat, padded_partition, random_gaussian

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
POSITIONS = np.random.default_rng(3).normal(size=(sum(SIZES) + 2, 3)) * 2.0
OPEN = np.zeros(len(SIZES), bool)


def motions(periodic: np.ndarray = OPEN) -> RigidMotions:
    return RigidMotions.of(POSITIONS, padded_partition(), periodic)


def without_rigid_columns(gaussian: Gaussian, rigid: RigidMotions) -> Gaussian:
    """Columns as those of a model: derivatives of invariant functions."""

    def cleaned(stack: EnergyForcesStack) -> EnergyForcesStack:
        ones = jnp.ones_like(gaussian.diagonal.forces)
        return EnergyForcesStack(stack.energy, jax.vmap(lambda f: rigid.removed_from(f, ones))(stack.forces))

    parts = cleaned(gaussian.aleatoric), cleaned(gaussian.epistemic)
    return eqx.tree_at(lambda g: (g.aleatoric, g.epistemic), gaussian, parts)


def torques(forces: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.cross(POSITIONS[rows] - POSITIONS[rows].mean(0), forces[..., rows, :]).sum(-2)


def test_samples_have_no_net_force_and_no_net_torque(precision: str) -> None:
    gaussian, rigid = random_gaussian(0), motions()
    one = gaussian.sample(key=jax.random.key(0), rigid=rigid)
    many = gaussian.samples(7, key=jax.random.key(1), rigid=rigid)
    scale = 10 * TOLERANCE[precision]
    for forces in (np.asarray(one.forces), *np.asarray(many.forces)):
        error = forces - np.asarray(gaussian.mean.forces)
        for structure in range(len(SIZES)):
            rows = gaussian.partition.atoms_of(structure)
            np.testing.assert_allclose(error[rows].sum(0), 0, atol=scale)
            np.testing.assert_allclose(torques(error, rows), 0, atol=scale)
    np.testing.assert_allclose(many.forces[:, 3], np.tile(gaussian.mean.forces[3], (7, 1)), atol=scale)
    free = gaussian.samples(7, key=jax.random.key(1))
    np.testing.assert_array_equal(many.energy, free.energy)
    assert np.abs(np.asarray(free.forces - gaussian.mean.forces)[:, :3].sum(1)).min() > 1e-3


@pytest.mark.usefixtures("x64")
def test_independent_noise_is_conditional_on_no_rigid_component() -> None:
    """Covariance P D Pᵀ of the draws against D − D Q (Qᵀ D Q)⁻¹ Qᵀ D."""
    gaussian, rigid = random_gaussian(1), motions()
    var = gaussian.diagonal.forces
    for structure in (0, 2):
        rows = gaussian.partition.atoms_of(structure)
        unit = np.eye(3 * len(rows)).reshape(-1, len(rows), 3)
        spikes = np.zeros((len(unit), len(POSITIONS), 3))
        spikes[:, rows] = unit
        projected = jax.vmap(lambda f: rigid.removed_from(f, var))(jnp.asarray(spikes))
        projection = np.asarray(projected)[:, rows].reshape(len(unit), -1).T
        noise = np.diag(np.asarray(var)[rows].ravel())
        basis = np.asarray(rigid.motions)[:, rows].reshape(6, -1).T
        gain = noise @ basis
        expected = noise - gain @ np.linalg.solve(basis.T @ gain, gain.T)
        np.testing.assert_allclose(projection @ noise @ projection.T, expected, atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("atoms", "count"),
    [(molecule("H2O"), 6), (molecule("CO2"), 5), (Atoms("H"), 3), (molecule("H2"), 5)],
    ids=["bent", "linear", "atom", "pair"],
)
@pytest.mark.parametrize("single", [True, False])
def test_molecules_have_as_many_motions_as_they_should(atoms: Atoms, count: int, single: bool) -> None:
    atoms.rotate(40, (1, 2, 3))
    partition = Partition.from_sizes([len(atoms)])
    positions = atoms.positions.astype(np.float32 if single else np.float64)
    rigid = RigidMotions.of(positions, partition, np.zeros(1, bool))
    table = np.asarray(rigid.motions).reshape(6, -1)
    np.testing.assert_allclose(table @ table.T, np.diag(np.arange(6) < count), atol=1e-12)
    forces = jnp.asarray(np.random.default_rng(0).normal(size=(len(atoms), 3)))
    rest = rigid.removed_from(forces, jnp.asarray(np.random.default_rng(1).uniform(0.1, 3, (len(atoms), 3))))
    np.testing.assert_allclose(rest.sum(0), 0, atol=1e-12)
    arms = positions.astype(float) - positions.astype(float).mean(0)
    np.testing.assert_allclose(np.cross(arms, rest).sum(0), 0, atol=1e-6 if single else 1e-12)
    assert (np.linalg.norm(rest) > 0.01) == (len(atoms) > 1)


@pytest.mark.usefixtures("x64")
def test_periodic_structures_lose_the_net_force_only() -> None:
    rigid = motions(np.array([True, False, False]))
    forces = jnp.asarray(np.random.default_rng(0).normal(size=POSITIONS.shape))
    rest = np.asarray(rigid.removed_from(forces, jnp.ones(POSITIONS.shape)))
    np.testing.assert_allclose(rest[:3], forces[:3] - forces[:3].mean(0), atol=1e-12)
    assert np.abs(torques(rest, np.arange(3))).min() > 0.01
    np.testing.assert_allclose(torques(rest, np.arange(4, 8)), 0, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_columns_of_a_model_are_left_alone_with_and_without_noise() -> None:
    rigid = motions()
    gaussian = without_rigid_columns(random_gaussian(2), rigid)
    noiseless = eqx.tree_at(lambda g: g.diagonal, gaussian, jax.tree.map(jnp.zeros_like, gaussian.diagonal))
    for var in (gaussian.diagonal.forces, noiseless.diagonal.forces):
        column = gaussian.aleatoric.forces[0]
        np.testing.assert_allclose(rigid.removed_from(column, var), column, atol=1e-12)
    drawn = (noiseless.sample(key=jax.random.key(0), rigid=given).forces for given in (None, rigid))
    np.testing.assert_allclose(*drawn, atol=1e-12)


def test_one_dimension_has_no_rigid_motions() -> None:
    gaussian = random_gaussian(4, dimension=1)
    rigid = RigidMotions.of(POSITIONS[:, :1], gaussian.partition, OPEN)
    drawn = (gaussian.sample(key=jax.random.key(0), rigid=given).forces for given in (None, rigid))
    np.testing.assert_array_equal(*drawn)


@pytest.mark.usefixtures("as_users_run")
def test_motions_of_another_batch_are_refused() -> None:
    other = RigidMotions.of(np.zeros((2, 3)), Partition.from_sizes([2]), np.zeros(1, bool))
    with pytest.raises(ValueError, match=r"forces must have shape \(2, 3\), but has shape \(10, 3\)"):
        random_gaussian(0).sample(key=jax.random.key(0), rigid=other)
    with pytest.raises(ValueError, match=r"periodic must have shape \(3\), but has shape \(2,\)"):
        motions(np.zeros(2, bool))


class TestLogProb:
    """Against SciPy's density of the energy and the internal components."""

    @pytest.mark.parametrize("columns", ["any", "of a model"])
    def test_it_is_that_of_the_other_components_given_the_rigid_ones(self, columns: str, precision: str) -> None:
        gaussian, rigid = random_gaussian(5), motions()
        if columns == "of a model":
            gaussian = without_rigid_columns(gaussian, rigid)
        drawn = gaussian.sample(key=jax.random.key(2), rigid=rigid)
        labels = Labels.from_arrays(gaussian.partition, 3, energy=drawn.energy, forces=drawn.forces)
        found = gaussian.log_prob(labels, rigid=rigid)
        for structure in (0, 2):
            rows = gaussian.partition.atoms_of(structure)
            inner, outer = internal_motions(POSITIONS[rows]), np.asarray(rigid.motions)[:, rows].reshape(6, -1).T
            seen = np.zeros((1 + 3 * len(rows), 1 + inner.shape[1]))
            seen[0, 0], seen[1:, 1:] = 1.0, inner
            dense = gaussian.covariance(structure).astype(float)
            gain = dense @ np.vstack([np.zeros((1, 6)), outer])
            given = dense - gain @ np.linalg.solve(outer.T @ gain[1:], gain.T)
            error = flat(drawn, gaussian, structure) - flat(gaussian.mean, gaussian, structure)
            expected = multivariate_normal(cov=seen.T @ given @ seen).logpdf(seen.T @ error)
            assert found[structure] == pytest.approx(expected, rel=100 * TOLERANCE[precision])

    @pytest.mark.usefixtures("x64")
    def test_an_atom_has_only_its_energy(self) -> None:
        gaussian = without_rigid_columns(random_gaussian(6), motions())
        labels = Labels.from_arrays(gaussian.partition, 3, energy=np.ones(3), forces=gaussian.mean.forces)
        alone = Labels.from_arrays(gaussian.partition, 3, energy=np.ones(3))
        found = gaussian.log_prob(labels, rigid=motions())[1]
        assert found == pytest.approx(float(gaussian.log_prob(alone)[1]))

    @pytest.mark.usefixtures("x64")
    def test_structures_with_missing_forces_keep_their_density(self) -> None:
        gaussian, mask = random_gaussian(7), np.ones(10, bool)
        mask[[0, 8, 9]] = False
        forces = gaussian.mean.forces + 0.1
        labels = Labels.from_arrays(gaussian.partition, 3, energy=np.ones(3), forces=forces, forces_mask=mask)
        plain, given = gaussian.log_prob(labels), gaussian.log_prob(labels, rigid=motions())
        assert plain[0] == given[0]
        assert plain[2] != given[2]
        assert not np.isnan(np.asarray(given)).any()
