from dataclasses import replace

import numpy as np
import pytest

from huefield.apps.predictions.units import ENERGY_UNITS, FORCE_UNITS, unit_remark
from huefield.core.structure import Structure, pack
from huefield.evaluation.predictions import Marginals, Predictions


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
    return Predictions(
        "model", block, Marginals(energy, np.full_like(energy, 0.1)), Marginals(forces, np.full_like(forces, 0.1))
    )


def scaled(found: Predictions, *, energy: float | np.ndarray = 1.0, forces: float = 1.0) -> Predictions:
    return replace(
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
    exact = replace(
        found,
        energy=Marginals(block.energy, np.ones_like(block.energy)),
        forces=Marginals(block.forces, np.ones_like(block.forces)),
    )
    assert unit_remark(exact) is None


def test_useless_predictions_have_no_remark() -> None:
    found = predicted(offset=0.0)
    rng = np.random.default_rng(1)
    noise = replace(
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
    assert unit_remark(replace(found, energy=None, forces=None)) is None
