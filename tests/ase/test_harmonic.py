"""Frequencies and relaxed geometries, propagated by members."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from ase import Atoms, units
from ase.optimize import BFGS
from ase.vibrations import Vibrations

from huefield import Calculator
from huefield.ase.harmonic import harmonic, oscillators
from huefield.model.calibration import IsotonicCalibration
from huefield.model.ensemble import Ensemble
from huefield.model.joint_calibration import EnergyForcesCalibration
from huefield.training import train
from tests.ase.md.test_run import ensemble
from tests.training.helpers import config_for, write_waters

BENT = np.array([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])


def springs(lengths: list[float], stiff: list[float]) -> Callable[[np.ndarray], np.ndarray]:
    """Forces of members that hold each atom but the first to the one before it."""

    def forces(positions: np.ndarray) -> np.ndarray:
        found = np.zeros((len(lengths), *positions.shape))
        for member, (length, constant) in enumerate(zip(lengths, stiff, strict=True)):
            for atom in range(1, len(positions)):
                bond = positions[atom] - positions[atom - 1]
                pull = constant * (np.linalg.norm(bond) - length) * bond / np.linalg.norm(bond)
                found[member, atom - 1] += pull
                found[member, atom] -= pull
        return found

    return forces


@pytest.mark.parametrize("length", [1.1, 1.15], ids=["relaxed", "not quite relaxed"])
def test_two_atoms_on_a_spring(length: float) -> None:
    """ν = √(k/μ) / 2πc; members' minima are at their lengths, wherever one looks from."""
    masses = np.array([12.0, 16.0])
    found = oscillators(springs([1.0, 1.2], [40.0, 40.0]), np.diag([length, 0, 0])[:2], masses, step_angstrom=1e-3)
    reduced = masses.prod() / masses.sum() * units._amu
    expected = np.sqrt(40.0 * units._e * 1e20 / reduced) / (2 * np.pi * units._c * 100)
    np.testing.assert_allclose(found.wavenumbers, [expected], rtol=1e-6)
    assert found.zero_point_energy == pytest.approx(0.5 * expected / 8065.544, rel=1e-6)
    assert found.wavenumbers_uncertainty[0] == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(found.positions_uncertainty, [[0.05, 0, 0]] * 2, atol=1e-9)
    assert found.soft_modes == 0


def test_members_of_other_stiffness() -> None:
    positions, masses = np.diag([1.0, 0, 0])[:2], np.array([1.0, 1.0])
    alone = [oscillators(springs([1.0], [k]), positions, masses, step_angstrom=1e-3) for k in (10.0, 30.0)]
    both = oscillators(springs([1.0, 1.0], [10.0, 30.0]), positions, masses, step_angstrom=1e-3)
    spread = 0.5 * (alone[1].wavenumbers - alone[0].wavenumbers)
    np.testing.assert_allclose(both.wavenumbers_uncertainty, spread, rtol=1e-6)
    half = 0.5 * (alone[1].zero_point_energy - alone[0].zero_point_energy)
    assert both.zero_point_energy_uncertainty == pytest.approx(half)
    np.testing.assert_allclose(both.positions_uncertainty, 0, atol=1e-9)


def test_soft_modes_are_counted() -> None:
    """Three atoms in a row, which nothing keeps from bending."""
    row = np.array([[0.0, 0, 0], [1.0, 0, 0], [2.0, 0, 0]])
    found = oscillators(springs([0.9, 1.1], [40.0, 40.0]), row, np.ones(3), step_angstrom=1e-3)
    assert found.soft_modes == 2
    np.testing.assert_allclose(found.positions_uncertainty[:, 0], [0.1, 0, 0.1], atol=1e-6)


def test_single_precision_and_crystals_are_refused() -> None:
    with pytest.raises(ValueError, match='precision="float64"'):
        harmonic(Calculator(ensemble()), Atoms("OHH", BENT))
    with pytest.raises(ValueError, match="for molecules"):
        harmonic(Calculator(ensemble(), precision="float64"), Atoms("OHH", BENT, cell=[5, 5, 5], pbc=True))


def test_members_are_uncalibrated() -> None:
    """A factor that changes with the structure would be differentiated too."""
    curve = IsotonicCalibration(variances=(1e-9, 1e-2), calibrated=(1e-8, 4e-2), outside="ratio")
    calibrated = ensemble().with_calibration(EnergyForcesCalibration(forces=curve))
    water = Atoms("OHH", BENT, info={"charge": 1})
    with pytest.warns(UserWarning, match="a charge"):
        found = harmonic(Calculator(calibrated, precision="float64"), water)
    with pytest.warns(UserWarning, match="a charge"):
        expected = harmonic(Calculator(ensemble(), precision="float64"), water)
    np.testing.assert_allclose(found.wavenumbers_uncertainty, expected.wavenumbers_uncertainty, rtol=1e-6)
    np.testing.assert_allclose(found.positions_uncertainty, expected.positions_uncertainty, rtol=1e-6)
    assert expected.positions_uncertainty.max() > 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Ensemble:
    """Two members that know water molecules on springs well enough to have a minimum."""
    folder = tmp_path_factory.mktemp("water")
    stages = [{"kind": "squared_error", "steps": 150, "learning_rate": 2e-2, "decay": 0.05}]
    often = {"validate_every": 150, "checkpoint_every": 150, "report_every": 150}
    data = write_waters(folder / "waters.xyz", 40)
    with jax.enable_x64(False):
        return train(config_for(data, stages=stages, **often), folder / "run").ensemble


@pytest.fixture(scope="module")
def calculator(trained: Ensemble) -> Calculator:
    return Calculator(trained, precision="float64")


@pytest.fixture(scope="module")
def water(calculator: Calculator) -> Atoms:
    atoms = Atoms("OHH", BENT)
    atoms.calc = calculator
    assert BFGS(atoms, logfile=None).run(fmax=1e-4, steps=200)
    return atoms


@pytest.mark.slow
def test_frequencies_are_those_of_ase(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    found = harmonic(calculator, water)
    atoms = water.copy()
    atoms.calc = calculator.sibling()
    vibrations = Vibrations(atoms, name=str(tmp_path / "vib"))
    vibrations.run()
    expected = vibrations.get_frequencies()[-3:].real
    np.testing.assert_allclose(found.wavenumbers, expected, rtol=5e-3)
    assert found.zero_point_energy == pytest.approx(0.5 * expected.sum() / 8065.54, rel=5e-3)


@pytest.mark.slow
def test_spread_of_single_members_is_the_uncertainty(trained: Ensemble, calculator: Calculator, water: Atoms) -> None:
    found = harmonic(calculator, water)
    alone, minima = [], []
    for member in range(2):
        alike = Ensemble.from_members([trained.member(member)]).with_typical(trained.typical)
        one = Calculator(alike, precision="float64")
        alone.append(harmonic(one, water).wavenumbers)
        atoms = water.copy()
        atoms.calc = one
        BFGS(atoms, logfile=None).run(fmax=1e-4, steps=200)
        minima.append([atoms.get_distance(0, 1), atoms.get_distance(0, 2), atoms.get_distance(1, 2)])
    np.testing.assert_allclose(found.wavenumbers_uncertainty, np.std(alone, axis=0), rtol=1e-4)
    spread = np.std(minima, axis=0)
    assert 0.2 * spread.max() < found.positions_uncertainty.max() < 2 * spread.max()
