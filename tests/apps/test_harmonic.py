"""Frequencies and relaxed geometries, propagated by members."""

from pathlib import Path

import jax
import numpy as np
import pytest
from ase import Atoms
from ase.optimize import BFGS
from ase.vibrations import Vibrations

from huefield import Calculator
from huefield.apps.harmonic import harmonic
from huefield.forcefield import Ensemble
from huefield.training import train
from tests.training.helpers import config_for, write_waters


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
    atoms = Atoms("OHH", [[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])
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
def test_members_alone_spread_as_the_uncertainty_says(trained: Ensemble, calculator: Calculator, water: Atoms) -> None:
    found = harmonic(calculator, water)
    alone, minima = [], []
    for member in range(2):
        one = Calculator(Ensemble.from_members([trained.member(member)]), precision="float64")
        alone.append(harmonic(one, water).wavenumbers)
        atoms = water.copy()
        atoms.calc = one
        BFGS(atoms, logfile=None).run(fmax=1e-4, steps=200)
        minima.append([atoms.get_distance(0, 1), atoms.get_distance(0, 2), atoms.get_distance(1, 2)])
    np.testing.assert_allclose(found.wavenumbers_uncertainty, np.std(alone, axis=0), rtol=1e-4)
    spread = np.std(minima, axis=0)
    assert 0.2 * spread.max() < found.positions_uncertainty.max() < 2 * spread.max()


@pytest.mark.slow
def test_single_precision_and_crystals_are_refused(trained: Ensemble, calculator: Calculator, water: Atoms) -> None:
    with pytest.raises(ValueError, match='precision="float64"'):
        harmonic(Calculator(trained), water)
    crystal = water.copy()
    crystal.set_cell([5, 5, 5])
    crystal.pbc = True
    with pytest.raises(ValueError, match="for molecules"):
        harmonic(calculator, crystal)
