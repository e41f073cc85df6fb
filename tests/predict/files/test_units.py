import numpy as np
import pytest

from huefield.core.structure import Structure, pack
from huefield.predict.files.units import ENERGY_UNITS, FORCE_UNITS, unit_remark
from huefield.predict.marginals import EnergyForcesMarginals, Marginals
from huefield.predict.predictions import Predictions
from tests.predict.helpers import changed


def predicted(count: int = 20, *, offset: float = -40.0, seed: int = 0) -> Predictions:
    """Good predictions of total energies and forces."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 9, count)
    structures = [
        Structure(
            np.full(size, 6, np.uint8),
            rng.normal(size=(size, 3)),
            energy=float(offset * size + rng.normal()),
            forces=rng.normal(size=(size, 3)),
        )
        for size in sizes
    ]
    block = pack(structures, np.arange(count), "made")
    energy, forces = (
        block.energy + 0.02 * rng.normal(size=count),
        block.forces + 0.02 * rng.normal(size=(sizes.sum(), 3)),
    )
    found = (Marginals(values, np.full_like(values, 0.1)) for values in (energy, forces))
    return Predictions("model", block, EnergyForcesMarginals(*found))


def scaled(found: Predictions, *, energy: float | np.ndarray = 1.0, forces: float = 1.0) -> Predictions:
    return changed(
        found,
        energy=Marginals(found.energy.mean * energy, found.energy.variance),
        forces=Marginals(found.forces.mean * forces, found.forces.variance),
    )


@pytest.mark.parametrize("offset", [0.0, -40.0, -1e4])
def test_good_predictions_have_no_remark(offset: float) -> None:
    assert unit_remark(predicted(offset=offset)) is None


def test_exact_predictions_have_no_remark() -> None:
    found = predicted()
    block = found.structures
    exact = changed(
        found,
        energy=Marginals(block.energy, np.ones_like(block.energy)),
        forces=Marginals(block.forces, np.ones_like(block.forces)),
    )
    assert unit_remark(exact) is None


def test_useless_predictions_have_no_remark() -> None:
    found = predicted(offset=0.0)
    rng = np.random.default_rng(1)
    noise = changed(
        found,
        energy=Marginals(3 * rng.normal(size=len(found)), found.energy.variance),
        forces=Marginals(np.zeros_like(found.forces.mean), found.forces.variance),
    )
    assert unit_remark(noise) is None


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("unit", ENERGY_UNITS)
def test_other_units_of_energies_are_named(unit: str, count: int) -> None:
    found = predicted(count)
    assert f"the predicted energies seem to be in {unit} " in unit_remark(scaled(found, energy=1 / ENERGY_UNITS[unit]))
    assert f"the reference energies seem to be in {unit} " in unit_remark(scaled(found, energy=ENERGY_UNITS[unit]))


@pytest.mark.parametrize("unit", FORCE_UNITS)
def test_other_units_of_forces_are_named(unit: str) -> None:
    found = predicted()
    assert f"the predicted forces seem to be in {unit} " in unit_remark(scaled(found, forces=1 / FORCE_UNITS[unit]))
    assert f"the reference forces seem to be in {unit} " in unit_remark(scaled(found, forces=FORCE_UNITS[unit]))


def test_factors_of_the_units() -> None:
    assert ENERGY_UNITS["hartree"] == pytest.approx(27.2114, rel=1e-5)
    assert 1 / ENERGY_UNITS["kcal/mol"] == pytest.approx(23.0605, rel=1e-5)
    assert FORCE_UNITS["hartree/bohr"] == pytest.approx(51.4221, rel=1e-5)
    assert 1 / FORCE_UNITS["kJ/mol/nm"] == pytest.approx(964.853, rel=1e-5)


def test_energies_per_atom_and_gradients_are_named() -> None:
    found = predicted()
    sizes = found.structures.sizes
    assert "predicted energies seem to be energies per atom" in unit_remark(scaled(found, energy=1 / sizes))
    assert "reference energies seem to be energies per atom" in unit_remark(scaled(found, energy=sizes))
    assert "opposite signs" in unit_remark(scaled(found, forces=-1.0))


def test_both_quantities_are_named_together() -> None:
    remark = unit_remark(scaled(predicted(), energy=23.0605, forces=23.0605))
    assert "energies seem to be in kcal/mol " in remark
    assert "forces seem to be in kcal/mol/Å " in remark
    assert "must be eV for the whole structure" in remark


def test_quantities_that_are_not_there_have_no_remark() -> None:
    found = predicted()
    assert unit_remark(changed(found, energy=None, forces=None)) is None


@pytest.mark.parametrize(("factor", "error"), [(1.0, 0.02), (1.0, 0.4), (0.6, 0.02)])
def test_opposite_signs_are_named_though_the_model_be_poor(factor: float, error: float) -> None:
    found = predicted()
    noise = np.random.default_rng(1).normal(size=found.structures.forces.shape)
    forces = factor * found.structures.forces + error * noise
    turned = changed(found, forces=Marginals(-forces, np.full_like(forces, 0.1)))
    assert "predicted and reference forces have opposite signs" in unit_remark(turned)
    assert unit_remark(changed(found, forces=Marginals(forces, np.full_like(forces, 0.1)))) is None


@pytest.mark.parametrize("unit", ["kcal/mol/Å", "kJ/mol/Å", "hartree/bohr"])
def test_units_of_forces_are_named_though_the_model_be_poor(unit: str) -> None:
    """Not a level of theory: energies in kcal/mol also differ by nearly a constant for each element."""
    found = predicted()
    noise = np.random.default_rng(1).normal(size=found.structures.forces.shape)
    forces = FORCE_UNITS[unit] * (found.structures.forces + 0.3 * noise)
    poor = changed(found, forces=Marginals(forces, np.full_like(forces, 0.1)))
    assert f"the reference forces seem to be in {unit} " in unit_remark(poor)
    few = changed(predicted(1), energy=None)
    noise = 0.3 * noise[: len(few.forces.mean)]
    forces = FORCE_UNITS[unit] * (few.structures.forces + noise)
    assert unit_remark(changed(few, forces=Marginals(forces, np.full_like(forces, 0.1)))) is None


def test_gradients_in_atomic_units_are_named_as_both() -> None:
    remark = unit_remark(scaled(predicted(), forces=-FORCE_UNITS["hartree/bohr"]))
    assert "have opposite signs, and the reference forces seem to be in hartree/bohr (" in remark


@pytest.mark.parametrize(("count", "factor", "error"), [(1, 1.0, 0.3), (20, 0.1, 0.02), (20, 1.0, 1.0), (20, 5.0, 0.1)])
def test_forces_that_happen_to_point_the_other_way_have_no_remark(count: int, factor: float, error: float) -> None:
    """Few of them, or of another size: a model that was not trained can do that."""
    found = predicted(count)
    forces = found.structures.forces
    noise = np.random.default_rng(0).normal(size=forces.shape)
    turned = changed(found, forces=Marginals(-factor * forces + error * noise, np.ones_like(forces)))
    assert unit_remark(turned) is None


def test_another_level_of_theory_is_not_taken_for_energies_per_atom() -> None:
    """Acetylacetone at PBE and at GFN2-xTB: totals differ by 15.08, which is nearly its 15 atoms."""
    rng = np.random.default_rng(0)
    elements = np.array([6] * 5 + [8] * 2 + [1] * 8, np.uint8)
    structures = [
        Structure(elements, rng.normal(size=(15, 3)), energy=-9391.25 + 0.4 * rng.normal()) for _ in range(30)
    ]
    block = pack(structures, np.arange(30), "made")
    xtb = -622.71 + 0.9 * (block.energy + 9391.25)
    found = Predictions("xtb", block, EnergyForcesMarginals(Marginals(xtb, np.full(30, 0.01)), None))
    assert unit_remark(found) is None
    per_atom = changed(found, energy=Marginals(block.energy / 15 + 0.002 * rng.normal(size=30), np.full(30, 0.01)))
    assert "predicted energies seem to be energies per atom" in unit_remark(per_atom)
