"""Energies of single atoms are added in double precision, outside of the network."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from huefield import Ensemble, ForceField, load, save
from huefield.core.structure import Structure
from huefield.data.batches.batching import BatchShape, make_batch
from huefield.noise import ColoredNoise
from huefield.potentials import PaiNN

OPEN = np.zeros((3, 3)), np.zeros(3, bool)
STRUCTURES = (
    Structure(np.array([8, 1, 1], np.uint8), np.array([[0, 0, 0], [0.96, 0, 0], [-0.2, 0.93, 0]]), *OPEN),
    Structure(np.array([8, 1], np.uint8), np.array([[0, 0, 0], [0, 0, 0.99]]), *OPEN),
)
ENERGIES = {1: -13.6056931, 8: -2041.3412345678}


@pytest.fixture
def ensemble() -> Ensemble:
    potential = PaiNN.Config(elements=("H", "O"), features=4, layers=2, radial_functions=3)
    config = ForceField.Config(potential=potential, noise=ColoredNoise.Config())
    return Ensemble.build(config, 2, key=jax.random.key(0))


def test_total_energies_keep_their_micro_electronvolts(ensemble: Ensemble) -> None:
    graph = make_batch(list(STRUCTURES), 5.0, ()).graph
    shifted = {number: 50 * energy for number, energy in ENERGIES.items()}
    bare, total = ensemble.predict(graph), ensemble.with_atom_energies(shifted).predict(graph)
    atoms = np.array([shifted[8] + 2 * shifted[1], shifted[8] + shifted[1]])
    assert total.energy.dtype == np.float64
    assert np.abs(atoms).max() > 1e5
    np.testing.assert_allclose(total.energy - atoms, bare.energy, atol=1e-9)
    np.testing.assert_allclose(total.energy_ensemble - atoms, bare.energy_ensemble, atol=1e-9)
    np.testing.assert_array_equal(total.energy_uncertainty, bare.energy_uncertainty)


def test_padding_atoms_have_none(ensemble: Ensemble) -> None:
    shape = BatchShape(structures=4, atoms=9, slots=6)
    graph = make_batch(list(STRUCTURES), 5.0, [shape]).graph
    energies = ensemble.with_atom_energies(ENERGIES).isolated_energies_in(graph)
    expected = [ENERGIES[8] + 2 * ENERGIES[1], ENERGIES[8] + ENERGIES[1], 0.0, 0.0]
    np.testing.assert_allclose(energies, expected, rtol=1e-15)


def test_they_are_saved_with_the_model(ensemble: Ensemble, tmp_path: Path) -> None:
    save(ensemble.with_atom_energies(ENERGIES), tmp_path / "model.safetensors")
    assert dict(load(tmp_path / "model.safetensors").atom_energies) == ENERGIES


def test_an_element_without_one_is_named(ensemble: Ensemble) -> None:
    graph = make_batch(list(STRUCTURES), 5.0, ()).graph
    with pytest.raises(ValueError, match=r"no energy of the isolated atom of atomic number 8, only of \[1\]"):
        ensemble.with_atom_energies({1: -13.6}).predict(graph)


def test_an_element_that_the_potential_does_not_know_is_named(ensemble: Ensemble) -> None:
    strange = replace(STRUCTURES[1], atomic_numbers=np.array([16, 1], np.uint8))
    with pytest.raises(ValueError, match="the structures contain S, but the potential was built for H, O"):
        ensemble.predict(make_batch([strange], 5.0, ()).graph)
