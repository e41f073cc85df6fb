"""Calibration of the joint distribution, and of everything that an ensemble predicts."""

from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import huefield
from huefield.core import EnergyForces, Graph, Observable
from huefield.core.structure import Structure
from huefield.data.batches.batching import BatchShape, make_batch
from huefield.data.readers.ase_files import AseReader
from huefield.model.calibration import ConformalCalibration, IsotonicCalibration, ScaleCalibration
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import EnergyForcesCalibration
from huefield.model.modelfile import ModelFileError
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
    factors = BOTH.factors(before)
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
    factors = BOTH.factors(single(graph))
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
    monkeypatch.setattr(EnergyForcesCalibration, "model_dump_json", lambda self: '{"energy": {"kind": "magic"}}')
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
    assert eqx.tree_equal(before.scaled(ones), before)
