"""Stress is a strain derivative, and its uncertainty belongs to the same Gaussian as that of energies and forces."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from scipy.stats import multivariate_normal, multivariate_t

from huefield import Ensemble, ForceField
from huefield.core import EnergyForces, EnergyForcesStack, Gaussian, Graph, Labels, Partition, voigt
from huefield.core.strain import strain_var
from huefield.core.structure import Structure
from huefield.data.batches.batching import BatchShape, make_batch
from huefield.noise import ColoredNoise, VanillaNoise, WhiteNoise
from huefield.potentials import PaiNN
from huefield.potentials.base import differentiate

CUTOFF = 3.0
CELL = np.array([[3.1, 0.2, 0.0], [0.3, 2.9, -0.2], [0.1, 0.4, 3.3]])
CRYSTAL = Structure(np.array([6, 8], np.uint8), np.array([[0.1, 0.0, 0.2], [1.6, 1.4, 1.5]]), CELL, np.ones(3, bool))


def graph_of(*structures: Structure) -> Graph:
    """In one shape for each number of atoms: neighbours come and go with a strain, and each shape compiles anew."""
    shape = BatchShape(len(structures), sum(len(s) for s in structures), 24)
    return make_batch(list(structures), CUTOFF, [shape]).graph


def random_ensemble(noise: ColoredNoise.Config | WhiteNoise.Config | VanillaNoise.Config, members: int = 1) -> Ensemble:
    """Random numbers for all parameters, those that start at zero included."""
    potential = PaiNN.Config(elements=("C", "O"), features=6, layers=2, radial_functions=4, cutoff_angstrom=CUTOFF)
    built = Ensemble.build(ForceField.Config(potential=potential, noise=noise), members, key=jax.random.key(0))
    return _randomised(built)


def _randomised(ensemble: Ensemble) -> Ensemble:
    leaves, tree = jax.tree.flatten(ensemble)
    rng = np.random.default_rng(0)
    return jax.tree.unflatten(
        tree, [jnp.asarray(x + 0.3 * rng.normal(size=x.shape), x.dtype) for x in map(np.asarray, leaves)]
    )


def strained(structure: Structure, strain: np.ndarray) -> Structure:
    move = np.eye(3) + strain
    return replace(structure, positions=structure.positions @ move, cell=structure.cell @ move)


def finite_difference(quantity, structure: Structure, step: float = 1e-4) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Derivative of a number of a structure with respect to a symmetric strain."""
    result = np.zeros((3, 3))
    for a in range(3):
        for b in range(3):
            unit = np.zeros((3, 3))
            unit[a, b] += 0.5 * step
            unit[b, a] += 0.5 * step
            result[a, b] = (quantity(strained(structure, unit)) - quantity(strained(structure, -unit))) / (2 * step)
    return result


def repeated(structure: Structure, times: int) -> Structure:
    """A supercell along the first lattice vector."""
    shifts = np.arange(times)[:, None, None] * structure.cell[0]
    positions = (structure.positions + shifts).reshape(-1, 3)
    cell = structure.cell * np.array([[times], [1], [1]])
    return replace(structure, atomic_numbers=np.tile(structure.atomic_numbers, times), positions=positions, cell=cell)


def test_stress_is_the_strain_derivative_of_the_energy_over_the_volume() -> None:
    with jax.enable_x64(True):
        ensemble = random_ensemble(ColoredNoise.Config())
        stress = ensemble.predict(graph_of(CRYSTAL), stress=True).stress[0]
        expected = finite_difference(lambda s: ensemble.predict(graph_of(s)).energy[0], CRYSTAL)
    expected /= abs(np.linalg.det(CELL))
    np.testing.assert_allclose(stress, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    assert np.abs(expected).min() > 1e-4


def test_the_noise_level_has_the_strain_derivative_of_finite_differences() -> None:
    with jax.enable_x64(True):
        member = random_ensemble(ColoredNoise.Config()).member(0)

        energy_noise = eqx.filter_jit(lambda graph: member(graph).aleatoric.energy[0, 0])

        def level(structure: Structure) -> float:
            return float(energy_noise(graph_of(structure)))

        found = np.asarray(eqx.filter_jit(lambda g: member(g, strain=True).aleatoric.strain)(graph_of(CRYSTAL)))[0, 0]
        expected = finite_difference(level, CRYSTAL, step=1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    assert np.abs(expected).min() > 1e-5


@pytest.mark.slow
def test_energies_and_forces_do_not_depend_on_being_asked_for_stress() -> None:
    ensemble, graph = random_ensemble(ColoredNoise.Config()), graph_of(CRYSTAL)
    with_stress, without = ensemble.predict(graph, stress=True), ensemble.predict(graph)
    np.testing.assert_allclose(with_stress.energy, without.energy, rtol=1e-5)
    np.testing.assert_allclose(with_stress.forces_uncertainty, without.forces_uncertainty, rtol=1e-4)


def test_parts_of_the_stress_uncertainty_add_in_squares_and_members_give_the_epistemic_one() -> None:
    prediction = random_ensemble(ColoredNoise.Config(), 3).predict(graph_of(CRYSTAL, repeated(CRYSTAL, 2)), stress=True)
    parts = prediction.stress_uncertainty_aleatoric**2 + prediction.stress_uncertainty_epistemic**2
    np.testing.assert_allclose(prediction.stress_uncertainty**2, parts, rtol=1e-4)
    np.testing.assert_allclose(prediction.stress_uncertainty_epistemic, prediction.stress_ensemble.std(0), rtol=1e-3)
    assert (prediction.stress_uncertainty_aleatoric > 0).all()


@pytest.mark.parametrize("noise", [ColoredNoise.Config(), WhiteNoise.Config()], ids=["colored", "white"])
def test_sampled_stress_is_symmetric(noise: ColoredNoise.Config | WhiteNoise.Config) -> None:
    prediction = random_ensemble(noise, 2).predict(graph_of(CRYSTAL), stress=True)
    drawn = np.asarray(prediction.distribution.samples(50, key=jax.random.key(0)).strain)
    np.testing.assert_allclose(drawn, np.swapaxes(drawn, -1, -2), rtol=1e-5, atol=1e-6)
    assert drawn.std(0).min() > 0.1


def test_a_vanilla_model_has_no_aleatoric_stress() -> None:
    prediction = random_ensemble(VanillaNoise.Config(), 2).predict(graph_of(CRYSTAL), stress=True)
    assert not prediction.stress_uncertainty_aleatoric.any()
    assert prediction.stress_uncertainty_epistemic.all()


@pytest.mark.slow
def test_a_supercell_has_the_same_stress() -> None:
    with jax.enable_x64(True):
        ensemble = random_ensemble(WhiteNoise.Config())
        small, large = (ensemble.predict(graph_of(s), stress=True).stress[0] for s in (CRYSTAL, repeated(CRYSTAL, 3)))
    np.testing.assert_allclose(large, small, rtol=1e-9, atol=1e-12)


def test_strain_noise_is_that_of_independent_pair_forces() -> None:
    """Monte Carlo of the process that the module describes, for equal force variances."""
    rng = np.random.default_rng(0)
    molecule = Structure(np.full(4, 6, np.uint8), rng.normal(size=(4, 3)), np.zeros((3, 3)), np.zeros(3, bool))
    positions, force_var, draws = molecule.positions, 0.7, 40_000
    vectors = positions[None] - positions[:, None]
    weights = np.maximum(1 - (vectors**2).sum(-1) / CUTOFF**2, 0) ** 3 * (1 - np.eye(4))
    shares = weights / weights.sum(1, keepdims=True)
    deviation = np.sqrt(0.5 * force_var * (shares + shares.T))
    upper = np.triu(rng.normal(size=(draws, 3, 4, 4)) * deviation, 1)
    pair_forces = upper - np.swapaxes(upper, 2, 3)
    virial = -0.5 * np.einsum("ijx,nyij->nxy", vectors, pair_forces)
    simulated = (0.5 * (virial + np.swapaxes(virial, 1, 2))).var(axis=0)
    found = strain_var(graph_of(molecule), jnp.full(4, force_var))[0]
    np.testing.assert_allclose(found, simulated, rtol=0.04)


def test_strain_noise_grows_with_the_crystal_and_ignores_lattice_shifts() -> None:
    once, twice = graph_of(CRYSTAL), graph_of(repeated(CRYSTAL, 2))
    moved = replace(CRYSTAL, positions=CRYSTAL.positions + np.array([[0.0, 0, 0], 2 * CELL[0] - CELL[2]]) + 0.3)
    var = strain_var(once, jnp.array([0.5, 2.0]))
    np.testing.assert_allclose(strain_var(twice, jnp.array([0.5, 2.0, 0.5, 2.0])), 2 * var, rtol=1e-4)
    np.testing.assert_allclose(strain_var(graph_of(moved), jnp.array([0.5, 2.0])), var, rtol=1e-4)


def test_an_isolated_atom_has_no_strain_noise() -> None:
    alone = Structure(np.array([6], np.uint8), np.zeros((1, 3)), np.zeros((3, 3)), np.zeros(3, bool))
    assert not np.asarray(strain_var(graph_of(alone), jnp.ones(1))).any()


def test_voigt_has_the_order_of_ase() -> None:
    from ase.stress import full_3x3_to_voigt_6_stress

    tensor = np.arange(9.0).reshape(3, 3)
    tensor += tensor.T
    np.testing.assert_array_equal(voigt(jnp.asarray(tensor)), full_3x3_to_voigt_6_stress(tensor))


class TestGaussianWithStrain:
    """Against dense algebra, with the strain flattened behind the forces: row 7 + 3a + b is the component ab."""

    @pytest.fixture
    def gaussian(self) -> Gaussian:
        def normal(*shape: int, seed: int) -> Array:
            return jnp.asarray(np.random.default_rng(seed).normal(size=shape))

        def symmetric(*shape: int, seed: int) -> Array:
            tensors = normal(*shape, 3, 3, seed=seed)
            return tensors + jnp.swapaxes(tensors, -1, -2)

        def stack(count: int, seed: int) -> EnergyForcesStack:
            return EnergyForcesStack(
                normal(count, 1, seed=seed), normal(count, 2, 3, seed=seed + 1), symmetric(count, 1, seed=seed + 2)
            )

        with jax.enable_x64(True):
            diagonal = EnergyForces(jnp.full(1, 0.3), normal(2, 3, seed=9) ** 2, symmetric(1, seed=8) ** 2)
            return Gaussian(stack(1, 0)[0], diagonal, stack(2, 10), stack(3, 20), Partition.from_sizes([2]))

    @staticmethod
    def dense(gaussian: Gaussian) -> np.ndarray:
        flat = np.concatenate([np.asarray(x).reshape(-1) for x in jax.tree.leaves(gaussian.diagonal)])
        columns = [np.asarray(x).reshape(5, -1) for x in jax.tree.leaves(gaussian.columns)]
        factor = np.concatenate(columns, axis=1)
        same_noise = np.eye(len(flat))
        for a, b in ((0, 1), (0, 2), (1, 2)):
            upper, lower = 7 + 3 * a + b, 7 + 3 * b + a
            same_noise[upper, lower] = same_noise[lower, upper] = 1.0
        return same_noise * flat + factor.T @ factor

    def test_conditioning_on_the_energy(self, gaussian: Gaussian) -> None:
        with jax.enable_x64(True):
            given = gaussian.condition_on_energy(gaussian.mean.energy + 0.4)
            before, after = self.dense(gaussian), self.dense(given)
        gain = before[1:, 0] / before[0, 0]
        np.testing.assert_allclose(after[1:, 1:], before[1:, 1:] - np.outer(gain, before[0, 1:]), atol=1e-10)
        strain = np.asarray(given.mean.strain - gaussian.mean.strain).reshape(-1)
        np.testing.assert_allclose(strain, 0.4 * gain[6:], atol=1e-10)

    def test_samples_have_its_covariance(self, gaussian: Gaussian) -> None:
        with jax.enable_x64(True):
            draws = gaussian.samples(40_000, key=jax.random.key(0))
        flat = np.concatenate([np.asarray(x).reshape(40_000, -1) for x in jax.tree.leaves(draws)], axis=1)
        expected = self.dense(gaussian)
        scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
        np.testing.assert_allclose(np.cov(flat.T) / scale, expected / scale, atol=0.03)

    def test_samples_are_symmetric(self, gaussian: Gaussian) -> None:
        with jax.enable_x64(True):
            one, many = gaussian.sample(key=jax.random.key(1)), gaussian.samples(3, key=jax.random.key(2))
        for strain in (np.asarray(one.strain), np.asarray(many.strain)):
            np.testing.assert_allclose(strain, np.swapaxes(strain, -1, -2), rtol=1e-12)

    @staticmethod
    def labels(gaussian: Gaussian, *, seed: int = 30, **masks: object) -> Labels:
        drawn = gaussian.sample(key=jax.random.key(seed))
        values = {name: np.asarray(getattr(drawn, name)) for name in ("energy", "forces", "strain")}
        return Labels.from_arrays(gaussian.partition, 3, **values, **masks)

    @staticmethod
    def flat(values: EnergyForces | Labels) -> np.ndarray:
        return np.concatenate([np.asarray(x).reshape(-1) for x in (values.energy, values.forces, values.strain)])

    INDEPENDENT = np.array([*range(7), 7, 8, 9, 11, 12, 15])
    """Rows of E, F and the components xx, xy, xz, yy, yz, zz."""

    @pytest.mark.parametrize("dof", [None, 4.0])
    @pytest.mark.parametrize("missing", ["nothing", "energy", "forces", "strain"], ids=lambda name: f"without {name}")
    def test_density_is_that_of_dense_algebra(self, gaussian: Gaussian, missing: str, dof: float | None) -> None:
        with jax.enable_x64(True):
            masks = {} if missing == "nothing" else {f"{missing}_mask": np.zeros(2 if missing == "forces" else 1, bool)}
            labels = self.labels(gaussian, **masks)
            found = float(gaussian.log_prob(labels, dof)[0])
            error = self.flat(labels) - self.flat(gaussian.mean)
        gone = {"nothing": [], "energy": [0], "forces": range(1, 7), "strain": range(7, 16)}[missing]
        rows = np.setdiff1d(self.INDEPENDENT, gone)
        covariance = self.dense(gaussian)[np.ix_(rows, rows)]
        if dof is None:
            expected = multivariate_normal(cov=covariance).logpdf(error[rows])
        else:
            expected = multivariate_t(shape=(dof - 2) / dof * covariance, df=dof).logpdf(error[rows])
        assert found == pytest.approx(float(expected), rel=1e-9)

    def test_density_in_single_precision(self, gaussian: Gaussian) -> None:
        with jax.enable_x64(True):
            labels = self.labels(gaussian)
            expected = float(gaussian.log_prob(labels)[0])
        with jax.enable_x64(False):
            single = jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, (gaussian, labels))
            assert float(single[0].log_prob(single[1])[0]) == pytest.approx(expected, rel=2e-5)

    def test_a_component_without_noise_does_not_count(self, gaussian: Gaussian) -> None:
        """Atoms in a plane have no stress across it in any model with a cutoff: its label says nothing about them."""
        with jax.enable_x64(True):
            flat = eqx.tree_at(
                lambda g: (g.diagonal.strain, g.aleatoric.strain, g.epistemic.strain),
                gaussian,
                replace_fn=lambda x: x.at[..., 2, 2].set(0.0),
            )
            labels = self.labels(gaussian)
            moved = eqx.tree_at(lambda x: x.strain, labels, labels.strain.at[0, 2, 2].add(1.0))
            assert float(flat.log_prob(labels)[0]) == float(flat.log_prob(moved)[0])
            assert float(flat.density_terms(labels).size[0]) == 12
            rows = self.INDEPENDENT[:-1]
            error = (self.flat(labels) - self.flat(gaussian.mean))[rows]
            expected = multivariate_normal(cov=self.dense(gaussian)[np.ix_(rows, rows)]).logpdf(error)
            assert float(flat.log_prob(labels)[0]) == pytest.approx(float(expected), rel=1e-9)

    def test_observed_stresses_must_be_predicted(self, gaussian: Gaussian) -> None:
        with jax.enable_x64(True):
            labels = self.labels(gaussian)
            without = [EnergyForces(x.energy, x.forces) for x in (gaussian.mean, gaussian.diagonal)]
            columns = [EnergyForcesStack(x.energy, x.forces) for x in (gaussian.aleatoric, gaussian.epistemic)]
            bare = Gaussian(*without, *columns, gaussian.partition)
            with pytest.raises(ValueError, match="the labels have stresses, but the distribution has none"):
                bare.log_prob(labels)
            energies_and_forces = bare.log_prob(labels.without_strain())
            hidden = self.labels(gaussian, strain_mask=np.zeros(1, bool))
            np.testing.assert_allclose(gaussian.log_prob(hidden), energies_and_forces, rtol=1e-12)

    def test_parts_must_agree_on_having_a_strain(self, gaussian: Gaussian) -> None:
        bare = EnergyForces(gaussian.mean.energy, gaussian.mean.forces)
        with pytest.raises(ValueError, match="either all parts of a distribution have a strain derivative or none"):
            Gaussian(bare, gaussian.diagonal, gaussian.aleatoric, gaussian.epistemic, gaussian.partition)


class TestMessages:
    def test_no_stress_without_a_cell(self) -> None:
        alone = replace(CRYSTAL, cell=np.zeros((3, 3)), pbc=np.zeros(3, bool))
        with pytest.raises(ValueError, match="structure 1 has no periodic cell and so no stress"):
            random_ensemble(VanillaNoise.Config()).predict(graph_of(CRYSTAL, alone), stress=True)

    def test_stress_must_be_asked_for(self) -> None:
        prediction = random_ensemble(VanillaNoise.Config()).predict(graph_of(CRYSTAL))
        with pytest.raises(ValueError, match=r"ask for it with predict\(graph, stress=True\)"):
            _ = prediction.stress


def test_differentiate_gives_no_strain_unless_asked() -> None:
    member, graph = random_ensemble(VanillaNoise.Config()).member(0), graph_of(CRYSTAL)
    outputs = eqx.filter_eval_shape(lambda: differentiate(member.potential, member.noise.levels, graph))
    assert outputs.energy_strain is None
