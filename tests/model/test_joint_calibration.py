"""Calibration of the joint distribution, and of everything that an ensemble predicts."""

from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm, t

import huefield
from huefield.core import EnergyForces, Graph, Observable, Scaling
from huefield.core.structure import Structure
from huefield.data.batches.batching import BatchShape, make_batch
from huefield.data.readers.ase_files import AseReader
from huefield.model.calibration import ConformalCalibration, IsotonicCalibration, ScaleCalibration
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import (
    AbstractJointCalibration,
    CoherentCalibration,
    EnergyForcesCalibration,
    Tails,
)
from huefield.model.modelfile import ModelFileError
from tests.potentials.cases import LOCAL, randomised
from tests.training.helpers import POTENTIAL as ANY_ELEMENTS
from tests.training.helpers import waters

POTENTIAL = {**ANY_ELEMENTS, "elements": ["H", "O"]}

CUTOFF = 3.0
ISOTONIC = IsotonicCalibration(variances=(1e-3, 0.1, 10.0), calibrated=(2e-3, 0.5, 6.0), outside="ratio")
BOTH = EnergyForcesCalibration(energy=ScaleCalibration(factor=4.0), forces=ISOTONIC)


def structures(count: int) -> list[Structure]:
    return [AseReader().convert(atoms) for atoms in waters(count)]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return make_batch(structures(3), CUTOFF, [BatchShape(4, 12, 4)]).graph


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    config = ForceField.Config.model_validate({"potential": POTENTIAL, "noise": {"kind": "colored", "channels": 2}})
    return Ensemble.build(config, 3, key=jax.random.key(1)).with_atom_energies({1: -1.0, 8: -10.0})


def test_the_covariance_is_scaled_from_both_sides(ensemble: Ensemble, graph: Graph) -> None:
    before, after = ensemble(graph), ensemble.with_calibration(BOTH)(graph)
    factors = BOTH.scaling(before).columns
    atoms = before.partition.atoms_of(1)
    roots = np.sqrt(np.append(factors.energy[1], np.asarray(factors.forces)[atoms]))
    expected = roots[:, None] * before.covariance(1) * roots
    np.testing.assert_allclose(after.covariance(1), expected, rtol=1e-4, atol=1e-6 * expected.max())
    np.testing.assert_allclose(factors.energy, 4.0, rtol=1e-6)


def test_variances_are_what_the_maps_say(ensemble: Ensemble, graph: Graph) -> None:
    before, after = ensemble.predict(graph), ensemble.with_calibration(BOTH).predict(graph)
    real = np.asarray(graph.partition.atom_mask)
    np.testing.assert_allclose(after.energy_uncertainty[:3], 2 * before.energy_uncertainty[:3], rtol=1e-5)
    variance = np.asarray(before.forces_uncertainty)[real] ** 2
    level = variance.mean(1, keepdims=True)
    np.testing.assert_allclose(
        np.asarray(after.forces_uncertainty)[real] ** 2, variance * ISOTONIC(level) / level, rtol=1e-4
    )


def test_error_bars_turn_with_the_structure(ensemble: Ensemble) -> None:
    """A curve for each component would give a molecule other error bars when it is turned."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    calibrated = ensemble.map_noise(lambda n: n.with_gamma(1e-4)).with_calibration(BOTH)
    molecule = structures(1)[0]
    traces = []
    for positions in (molecule.positions, molecule.positions @ turn):
        batch = make_batch([replace(molecule, positions=positions)], CUTOFF, [BatchShape(1, 8, 4)])
        traces.append(np.sum(np.asarray(calibrated(batch.graph).variance().forces)[:3], axis=1))
    np.testing.assert_allclose(traces[1], traces[0], rtol=1e-3)


def test_means_stay_and_both_parts_scale_alike(ensemble: Ensemble, graph: Graph) -> None:
    before, after = ensemble.predict(graph), ensemble.with_calibration(BOTH).predict(graph)
    real = np.asarray(graph.partition.atom_mask)
    np.testing.assert_array_equal(after.energy, before.energy)
    np.testing.assert_array_equal(after.forces, before.forces)
    ratios = [
        np.asarray(getattr(after, name) / getattr(before, name))[real]
        for name in ("forces_uncertainty", "forces_uncertainty_aleatoric", "forces_uncertainty_epistemic")
    ]
    np.testing.assert_allclose(ratios[1], ratios[0], rtol=1e-4)
    np.testing.assert_allclose(ratios[2], ratios[0], rtol=1e-4)


def test_members_spread_as_the_epistemic_uncertainty_says(ensemble: Ensemble, graph: Graph) -> None:
    after = ensemble.with_calibration(BOTH).predict(graph)
    for name in ("energy", "forces"):
        members = np.asarray(getattr(after, f"{name}_ensemble"))
        spread = getattr(after, f"{name}_uncertainty_epistemic")
        np.testing.assert_allclose(members.std(0)[:3], spread[:3], rtol=2e-3, atol=1e-6)
        np.testing.assert_allclose(members.mean(0)[:3], getattr(after, name)[:3], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_samples_and_observables_have_the_calibrated_variances(ensemble: Ensemble, graph: Graph) -> None:
    after = ensemble.with_calibration(BOTH)(graph)
    samples = after.samples(4000, key=jax.random.key(0))
    real = np.asarray(graph.partition.atom_mask)
    np.testing.assert_allclose(samples.energy.std(0)[:3], jnp.sqrt(after.variance().energy[:3]), rtol=0.06)
    np.testing.assert_allclose(samples.forces.std(0)[real], jnp.sqrt(after.variance().forces[real]), rtol=0.08)
    one_force = Observable(jnp.zeros((1, 4)), jnp.zeros((1, *after.mean.forces.shape)).at[0, 0, 0].set(1.0))
    found = after.linear(one_force).variance()
    np.testing.assert_allclose(found[0, 0], after.variance().forces[0, 0], rtol=1e-5)


def test_stress_has_the_factor_of_the_forces(ensemble: Ensemble) -> None:
    cells = structures(2)
    boxed = [replace(s, cell=9.0 * np.eye(3), pbc=np.ones(3, bool)) for s in cells]
    graph = make_batch(boxed, CUTOFF, [BatchShape(2, 8, 4)]).graph
    doubled = EnergyForcesCalibration(forces=ScaleCalibration(factor=4.0))
    before, after = (e.predict(graph, stress=True) for e in (ensemble, ensemble.with_calibration(doubled)))
    np.testing.assert_allclose(after.stress_uncertainty, 2 * before.stress_uncertainty, rtol=1e-4)
    np.testing.assert_array_equal(after.energy_uncertainty, before.energy_uncertainty)


def test_zero_variances_have_the_factor_one() -> None:
    noiseless = ForceField.Config.model_validate({"potential": POTENTIAL, "noise": {"kind": "vanilla"}})
    single = Ensemble.build(noiseless, 1, key=jax.random.key(0))
    graph = make_batch(structures(1), CUTOFF, [BatchShape(1, 4, 4)]).graph
    factors = BOTH.scaling(single(graph)).columns
    assert np.all(np.asarray(factors.energy) == 1)
    assert np.all(np.asarray(factors.forces) == 1)


def test_half_widths(ensemble: Ensemble, graph: Graph) -> None:
    """Those of a normal distribution, unless the calibration is conformal."""
    promised = EnergyForcesCalibration(energy=ConformalCalibration.fit(np.ones(99), np.arange(1.0, 100.0)))
    plain, sure = ensemble.predict(graph), ensemble.with_calibration(promised).predict(graph)
    np.testing.assert_allclose(
        plain.energy_half_width(0.9), norm.ppf(0.95) * np.asarray(plain.energy_uncertainty), rtol=1e-6
    )
    np.testing.assert_allclose(
        sure.energy_half_width(0.9)[:3], 90 * np.asarray(plain.energy_uncertainty)[:3], rtol=1e-4
    )
    np.testing.assert_allclose(sure.forces_half_width(0.9), plain.forces_half_width(0.9), rtol=1e-6)
    with pytest.raises(ValueError, match="coverage must lie between 0 and 1, but is 95"):
        plain.energy_half_width(95)


def test_it_is_saved_with_the_model(ensemble: Ensemble, graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    huefield.save(ensemble.with_calibration(BOTH), path)
    loaded = huefield.load(path)
    assert loaded.calibration == BOTH
    expected = ensemble.with_calibration(BOTH).predict(graph).forces_uncertainty
    np.testing.assert_array_equal(loaded.predict(graph).forces_uncertainty, expected)
    huefield.save(loaded.with_calibration(None), path)
    assert huefield.load(path).calibration is None


def test_a_calibration_that_cannot_be_read_is_named(
    ensemble: Ensemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    monkeypatch.setattr(EnergyForcesCalibration, "model_dump_json", lambda self, **_: '{"energy": {"kind": "magic"}}')
    huefield.save(ensemble.with_calibration(BOTH), path)
    with pytest.raises(ModelFileError, match="its 'calibration' cannot be used"):
        huefield.load(path)


def test_energies_of_atoms_and_calibration_do_not_lose_each_other(ensemble: Ensemble) -> None:
    both = ensemble.with_calibration(BOTH).with_atom_energies({1: 2.0, 8: 3.0})
    assert (both.calibration, both.atom_energies) == (BOTH, ((1, 2.0), (8, 3.0)))
    assert ensemble.with_calibration(BOTH).atom_energies == ensemble.atom_energies


def test_scaled_leaves_what_has_the_factor_one(ensemble: Ensemble, graph: Graph) -> None:
    before = ensemble(graph)
    ones = EnergyForces(jnp.ones(4), jnp.ones_like(before.mean.forces))
    assert eqx.tree_equal(before.scaled(Scaling.of_all(ones)), before)


COHERENT = CoherentCalibration(
    noise=0.3, energy_diagonal=2.0, force_diagonal=5.0, spread=9.0, tails=Tails(energy=4.0, forces=3.0, joint=5.0)
)
STEP = 1e-4


@pytest.fixture(scope="module")
def local() -> Ensemble:
    """In double precision, for finite differences."""
    config = ForceField.Config.model_validate({"potential": POTENTIAL, "noise": LOCAL})
    with jax.enable_x64(True):
        return randomised(Ensemble.build(config, 2, key=jax.random.key(1)))


def displaced(structure: Structure) -> list[Structure]:
    """The structure, and each coordinate moved up and down: one batch, and so one compiled program."""
    steps = [sign * STEP * step.reshape(-1, 3) for step in np.eye(3 * len(structure)) for sign in (1, -1)]
    return [structure, *(replace(structure, positions=structure.positions + step) for step in steps)]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("calibration", "holds"), [(COHERENT, True), (BOTH, False)], ids=["coherent", "separate"])
def test_the_gradient_of_an_energy_error_bar_is_its_covariance_with_forces(
    local: Ensemble, calibration: AbstractJointCalibration, holds: bool
) -> None:
    """∇σ_E = −Cov(E, F)/σ_E, after a calibration that is coherent and not after others."""
    predict = local.with_calibration(calibration).predict
    found = predict(make_batch(displaced(structures(1)[0]), CUTOFF, ()).graph)
    deviation = np.asarray(found.energy_uncertainty)
    gradient = (deviation[1:19:2] - deviation[2:20:2]) / (2 * STEP)
    expected = -found.distribution.covariance(0)[0, 1:] / deviation[0]
    assert np.allclose(gradient, expected, rtol=1e-5, atol=1e-8) == holds
    assert calibration.is_coherent == holds
    assert np.abs(expected).max() > 1e-3


@pytest.mark.usefixtures("x64")
def test_each_part_has_its_factor(local: Ensemble) -> None:
    graph = make_batch(structures(1), CUTOFF, ()).graph
    before, after = local(graph), local.with_calibration(COHERENT)(graph)
    parts = {
        "noise": lambda g: g.aleatoric.energy[:, 0, None] * g.aleatoric.forces[:, 0],
        "force_diagonal": lambda g: g.diagonal.forces[:3],
        "spread": lambda g: g.epistemic.energy[:, 0, None] * g.epistemic.forces[:, 0],
    }
    for name, part in parts.items():
        np.testing.assert_allclose(part(after), getattr(COHERENT, name) * part(before), rtol=1e-12)
    assert eqx.tree_equal(after.mean, before.mean)
    assert eqx.tree_equal(local.with_calibration(CoherentCalibration())(graph), before)


@pytest.mark.usefixtures("x64")
def test_intervals_of_a_coherent_calibration_have_its_tails(local: Ensemble) -> None:
    """Half-widths are quantiles of t distributions with the variances of the prediction."""
    found = local.with_calibration(COHERENT).predict(make_batch(structures(1), CUTOFF, ()).graph)
    for name, dof in (("energy", 4.0), ("forces", 3.0)):
        deviation = np.asarray(getattr(found, f"{name}_uncertainty"))
        expected = t.ppf(0.95, dof) * np.sqrt((dof - 2) / dof) * deviation
        np.testing.assert_allclose(getattr(found, f"{name}_half_width")(0.9), expected, rtol=1e-6)
    assert COHERENT.difference_width(0.9) == COHERENT.interval_widths(0.9)[0]
    assert (COHERENT.difference_scale, COHERENT.largest_coverage) == (1.0, 1.0)


@pytest.mark.parametrize("dof", [2.0, float("nan"), float("inf")])
def test_tails_need_a_variance(dof: float) -> None:
    with pytest.raises(ValueError, match=r"energy\n.*(greater than or equal to 2\.05|finite number)"):
        Tails(energy=dof)


def test_a_calibration_of_another_noise_model_is_refused() -> None:
    config = ForceField.Config.model_validate({"potential": POTENTIAL, "noise": LOCAL})
    ensemble = Ensemble.build(config, 1, key=jax.random.key(0))
    assert ensemble.with_calibration(CoherentCalibration(fitted_for="local")).calibration is not None
    with pytest.raises(ValueError, match="fitted for the noise model white, but the model has local: fit it again"):
        ensemble.with_calibration(CoherentCalibration(fitted_for="white"))
