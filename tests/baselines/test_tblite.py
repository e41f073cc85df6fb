"""GFN-xTB as a baseline."""

import builtins
import importlib
from dataclasses import replace

import numpy as np
import pytest
from ase.build import bulk

from huefield.ase.calculator import structure_of
from huefield.baselines import BaselineError, TbliteBaseline
from huefield.core.structure import Structure
from huefield.support.errors import HuefieldError
from tests.baselines.molecules import shaken

STEP = 2e-4


def test_forces_are_derivatives_of_the_energy() -> None:
    baseline, structure = TbliteBaseline(TbliteBaseline.Config(accuracy=0.01)), shaken("CH3OH")
    forces = baseline.compute(structure).forces
    for atom, axis in ((0, 0), (1, 2), (5, 1)):
        energies = []
        for sign in (1, -1):
            positions = structure.positions.copy()
            positions[atom, axis] += sign * STEP
            energies.append(baseline.compute(replace(structure, positions=positions)).energy)
        assert forces[atom, axis] == pytest.approx(-(energies[0] - energies[1]) / (2 * STEP), abs=2e-5)


def test_stress_is_the_derivative_of_the_energy_by_strain() -> None:
    crystal = bulk("Si", "diamond", a=5.5)
    crystal.rattle(0.05, seed=1)
    structure = structure_of(crystal)
    baseline = TbliteBaseline(TbliteBaseline.Config(method="GFN1-xTB", accuracy=0.001))
    found = baseline.compute(structure).stress
    assert found is not None
    np.testing.assert_allclose(found, found.T, atol=1e-8)
    for row, column in ((0, 0), (1, 2)):
        energies = []
        for sign in (1, -1):
            strain = np.zeros((3, 3))
            strain[row, column] += sign * STEP / 2
            strain[column, row] += sign * STEP / 2
            change = np.eye(3) + strain
            moved = replace(structure, positions=structure.positions @ change, cell=structure.cell @ change)
            energies.append(baseline.compute(moved).energy)
        numerical = (energies[0] - energies[1]) / (2 * STEP) / crystal.get_volume()
        assert found[row, column] == pytest.approx(numerical, abs=1e-5)


def test_methods_differ_and_name_themselves() -> None:
    first, second = (TbliteBaseline(TbliteBaseline.Config(method=name)) for name in ("GFN2-xTB", "GFN1-xTB"))
    structure = shaken("H2O")
    assert (first.title, second.title) == ("GFN2-xTB", "GFN1-xTB")
    assert first.version.startswith("tblite ")
    assert abs(first.compute(structure).energy - second.compute(structure).energy) > 1.0


def test_an_odd_number_of_electrons_is_a_doublet() -> None:
    methyl = shaken("CH3")
    ion = TbliteBaseline(TbliteBaseline.Config(charge=1)).compute(methyl).energy
    radical = TbliteBaseline(TbliteBaseline.Config()).compute(methyl).energy
    assert 5.0 < ion - radical < 20.0  # about the ionisation energy of 9.8 eV


def test_a_failure_names_the_method_and_the_reason() -> None:
    unknown = Structure(np.array([100], np.uint8), np.zeros((1, 3)))
    with pytest.raises(BaselineError, match="GFN2-xTB failed: "):
        TbliteBaseline(TbliteBaseline.Config()).compute(unknown)
    with pytest.raises(BaselineError, match="GFN2-xTB failed: "):
        TbliteBaseline(TbliteBaseline.Config(max_iterations=1)).compute(shaken("CH3OH"))


def test_a_missing_program_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> object:
        if name.startswith("tblite"):
            raise ModuleNotFoundError(name)
        return real(name, package)

    monkeypatch.setattr("huefield.baselines.tblite.import_module", missing)
    with pytest.raises(HuefieldError, match="needs tblite, which is not installed: pip install tblite"):
        TbliteBaseline(TbliteBaseline.Config())
    assert builtins.__import__("tblite")
