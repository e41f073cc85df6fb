"""Structures laid upon each other: operations that do not change energies do not change distances."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from huefield.core.structure import Structure
from huefield.core.superposition import superpose

NUMBERS = np.array([6, 1, 1, 8, 1, 6], np.uint8)


def molecule(seed: int = 0) -> Structure:
    return Structure(NUMBERS, np.random.default_rng(seed).normal(size=(6, 3)) * [1.5, 1.0, 0.8])


def distance(a: Structure, b: Structure, **options: bool) -> float:
    first, second = superpose([a, b], **options).positions
    return float(np.linalg.norm(first - second))


def turned(structure: Structure, seed: int = 0) -> Structure:
    rotation = Rotation.random(random_state=seed).as_matrix()
    return replace(structure, positions=structure.positions @ rotation + [3.0, -1.0, 0.5])


def test_a_turned_and_shifted_structure_is_the_same() -> None:
    assert distance(molecule(), turned(molecule()), match=False) < 1e-7


def test_exchanged_like_atoms_are_the_same() -> None:
    swapped = molecule().positions[[0, 4, 1, 3, 2, 5]]
    assert distance(molecule(), replace(turned(molecule()), positions=swapped)) < 1e-7
    assert distance(molecule(), replace(molecule(), positions=swapped), match=False) > 0.5


def test_atoms_in_another_order_are_named_by_order() -> None:
    order = np.array([3, 5, 1, 0, 4, 2])
    shuffled = Structure(NUMBERS[order], molecule().positions[order])
    laid = superpose([molecule(), shuffled])
    assert np.linalg.norm(laid.positions[0] - laid.positions[1]) < 1e-7
    np.testing.assert_array_equal(NUMBERS[order][laid.order[1]], NUMBERS[laid.order[0]])


def mirrored(structure: Structure) -> Structure:
    return replace(structure, positions=structure.positions * [1, 1, -1])


def test_a_mirror_image_is_the_same_unless_reflections_are_excluded() -> None:
    image = turned(mirrored(molecule()))
    assert distance(molecule(), image, match=False) < 1e-7
    assert distance(molecule(), image, match=False, reflect=False) > 0.3


def test_reflection_and_exchange_combine() -> None:
    order = np.array([3, 5, 1, 0, 4, 2])
    image = turned(mirrored(Structure(NUMBERS[order], molecule().positions[order])))
    assert distance(molecule(), image) < 1e-7
    assert distance(molecule(), image, reflect=False) > 0.3


def test_a_structure_near_a_mirror_image_is_near() -> None:
    """Also where it is not a copy, and with its atoms in another order."""
    order, noise = np.array([0, 4, 1, 3, 2, 5]), 0.02 * np.random.default_rng(5).normal(size=(6, 3))
    near = replace(molecule(), positions=molecule().positions + noise)
    expected, image = distance(molecule(), near), mirrored(replace(near, positions=near.positions[order]))
    assert distance(molecule(), turned(image)) == pytest.approx(expected)
    assert 0.02 < expected < 0.1


def test_copies_coincide_wherever_the_others_are() -> None:
    """A planar molecule is as close to a structure as to its mirror image: superposed on it, the two would differ."""
    planar = replace(molecule(), positions=molecule().positions * [1, 1, 0])
    laid = superpose([planar, molecule(), molecule(3), turned(mirrored(molecule())), turned(molecule(3))])
    np.testing.assert_array_equal(laid.original, [0, 1, 2, 1, 2])
    np.testing.assert_allclose(laid.positions[[1, 2]], laid.positions[[3, 4]], atol=1e-7)


def test_small_differences_of_copies_remain() -> None:
    noise = 2e-4 * np.random.default_rng(5).normal(size=(6, 3))
    near = replace(molecule(), positions=molecule().positions + noise)
    exact = distance(molecule(), near, reflect=False, match=False)
    laid = superpose([molecule(1), molecule(), turned(mirrored(near))])
    np.testing.assert_array_equal(laid.original, [0, 1, 1])
    assert np.linalg.norm(laid.positions[1] - laid.positions[2]) == pytest.approx(exact, rel=1e-6)
    assert 1e-4 < exact < np.linalg.norm(noise)


def test_two_structures_are_superposed_as_well_as_can_be() -> None:
    a, b = molecule(0), molecule(1)
    expected = Rotation.align_vectors(a.positions - a.positions.mean(0), b.positions - b.positions.mean(0))[1]
    assert distance(a, b, match=False, reflect=False) == pytest.approx(expected, rel=1e-6)
    reflected = Rotation.align_vectors(a.positions - a.positions.mean(0), b.positions.mean(0) - b.positions)[1]
    assert distance(a, b, match=False) == pytest.approx(min(expected, reflected), rel=1e-6)


def test_crystals_are_compared_at_nearest_images_and_not_turned() -> None:
    cell = np.diag([4.0, 5.0, 6.0])
    crystal = Structure(NUMBERS, molecule().positions, cell, np.ones(3, bool))
    moved = crystal.positions + np.array([0.3, 0.2, 0.1]) + np.outer(np.arange(6) % 2, cell[1])
    assert distance(crystal, replace(crystal, positions=moved)) < 1e-9
    assert distance(crystal, replace(turned(crystal))) > 0.5


@pytest.mark.parametrize("shift", [0.1, 0.5, 0.93])
@pytest.mark.parametrize("pbc", [(True, True, True), (True, True, False)])
def test_crystals_are_as_far_apart_wherever_they_are_in_the_cell(shift: float, pbc: tuple[bool, bool, bool]) -> None:
    cell = np.array([[4.0, 0.0, 0.0], [1.0, 5.0, 0.0], [0.0, 0.5, 6.0]])
    crystal = Structure(NUMBERS, molecule().positions, cell, np.array(pbc))
    jitter = 0.01 * np.random.default_rng(1).normal(size=(6, 3))
    moved = replace(crystal, positions=crystal.positions + jitter + shift * cell.sum(0))
    expected = np.linalg.norm(jitter - jitter.mean(0))
    assert distance(crystal, moved) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Structure(np.array([6, 1, 1, 8, 1, 7], np.uint8), molecule().positions), "not made of the same atoms"),
        (replace(molecule(), pbc=np.ones(3, bool), cell=np.eye(3) * 9), "not periodic in the same directions"),
    ],
)
def test_what_cannot_be_compared(other: Structure, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        superpose([molecule(), other])


def test_crystals_in_different_cells_and_nothing() -> None:
    crystal = Structure(NUMBERS, molecule().positions, np.eye(3) * 5, np.ones(3, bool))
    with pytest.raises(ValueError, match="cells of these structures differ"):
        superpose([crystal, replace(crystal, cell=np.eye(3) * 6)])
    with pytest.raises(ValueError, match="no structures"):
        superpose([])
