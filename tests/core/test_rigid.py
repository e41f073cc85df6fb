"""Motions of bodies as a whole."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from huefield.core.rigid import internal_motions, rigid_motions, rotation_onto, rotations

BODIES = pytest.mark.parametrize(
    ("atoms", "count"),
    [(molecule("H2O"), 6), (molecule("CO2"), 5), (Atoms("H"), 3), (Atoms("HH", [[0, 0, 0], [0, 0, 1]]), 5)],
    ids=["bent", "linear", "atom", "pair"],
)


@BODIES
def test_bodies_have_as_many_motions_as_they_should(atoms: Atoms, count: int) -> None:
    motions = rigid_motions(atoms.positions, atoms.get_masses(), with_rotations=True)
    assert motions.shape == (3 * len(atoms), count)
    np.testing.assert_allclose(motions.T @ motions, np.eye(count), atol=1e-12)
    assert rigid_motions(atoms.positions, atoms.get_masses(), with_rotations=False).shape[1] == 3


@BODIES
def test_internal_motions_are_all_others(atoms: Atoms, count: int) -> None:
    inside = internal_motions(atoms.positions)
    assert inside.shape == (3 * len(atoms), 3 * len(atoms) - count)
    np.testing.assert_allclose(inside.T @ inside, np.eye(inside.shape[1]), atol=1e-12)
    moved = inside.T.reshape(-1, len(atoms), 3)
    np.testing.assert_allclose(moved.sum(1), 0, atol=1e-12)
    np.testing.assert_allclose(np.cross(atoms.positions - atoms.positions.mean(0), moved).sum(1), 0, atol=1e-12)


def test_rotations_are_those_of_a_turned_body() -> None:
    atoms, angle = molecule("CH3CH2OH"), 1e-4
    centre = np.array([0.3, -0.2, 0.5])
    for axis, expected in zip("xyz", rotations(atoms.positions, centre), strict=True):
        turned = atoms.copy()
        turned.rotate(np.rad2deg(angle), axis, center=centre)
        np.testing.assert_allclose((turned.positions - atoms.positions) / angle, expected, atol=1e-3)


def test_products_with_forces_are_the_torque() -> None:
    positions, forces = np.random.default_rng(0).normal(size=(2, 5, 3))
    torque = np.einsum("eix,ix->e", rotations(positions, positions.mean(0)), forces)
    np.testing.assert_allclose(torque, np.cross(positions - positions.mean(0), forces).sum(0))


@pytest.mark.parametrize("handed", [1, -1])
def test_superposition_has_the_handedness_it_should_even_for_mirror_images_and_planes(handed: int) -> None:
    flat = np.array([[1.0, 0, 0], [0, 1, 0], [-1, -1, 0]])
    for positions in (np.random.default_rng(0).normal(size=(6, 3)), flat):
        rotation = rotation_onto(positions, positions * [1, 1, -1], handed=handed)
        assert np.linalg.det(rotation) == pytest.approx(handed)
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
