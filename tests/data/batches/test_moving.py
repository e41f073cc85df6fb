"""Graphs of structures that move: all neighbours are there, and searches are few."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from huefield.core.structure import Structure
from huefield.data.batches.moving import MovingGraph
from huefield.data.batches.neighbours import neighbour_pairs

CUTOFF, SKIN = 3.0, 0.4
CELL = np.array([[4.1, 0.0, 0.0], [1.2, 4.6, 0.0], [-0.7, 0.9, 5.0]])
pytestmark = pytest.mark.usefixtures("x64")


def liquid(pbc: tuple[bool, bool, bool], seed: int = 0) -> Structure:
    rng = np.random.default_rng(seed)
    positions = rng.uniform(-3, 8, size=(12, 3))
    return Structure(np.full(12, 8, np.uint8), positions, CELL, np.array(pbc))


def distances_now(moving: MovingGraph, structure: Structure) -> np.ndarray:
    """Of all pairs within the cutoff, as a potential sees them."""
    moved = moving.at(structure)
    graph = eqx.tree_at(lambda g: g.positions, moved.graph, jnp.asarray(moved.positions))
    if moved.cells is not None:
        graph = eqx.tree_at(lambda g: g.cells, graph, jnp.asarray(moved.cells))
    lengths = np.linalg.norm(np.asarray(graph.vectors()), axis=-1)
    return np.sort(lengths[lengths < CUTOFF])


def distances_anew(structure: Structure) -> np.ndarray:
    pairs = neighbour_pairs(structure, CUTOFF)
    vectors = structure.positions[pairs.second] - structure.positions[pairs.first] + pairs.shifts @ structure.cell
    return np.sort(np.linalg.norm(vectors, axis=1))


@pytest.mark.parametrize("pbc", [(False, False, False), (True, True, True), (True, False, True)])
@pytest.mark.parametrize("breathing", [0.0, 0.004])
def test_every_neighbour_is_there_after_every_step(pbc: tuple[bool, bool, bool], breathing: float) -> None:
    rng, moving, structure = np.random.default_rng(1), MovingGraph(CUTOFF, SKIN), liquid(pbc)
    for step in range(60):
        strain = np.eye(3) + breathing * np.sin(step / 5) * rng.normal(size=(3, 3))
        structure = replace(
            structure,
            positions=structure.positions @ strain + 0.02 * rng.normal(size=(12, 3)),
            cell=structure.cell @ strain,
        )
        np.testing.assert_allclose(distances_now(moving, structure), distances_anew(structure), atol=1e-9)
    assert 1 < moving.searches < 30


def test_a_cell_that_only_shrinks_is_noticed() -> None:
    structure, moving = liquid((True, True, True)), MovingGraph(CUTOFF, SKIN)
    for factor in (1.0, 0.95, 0.89, 0.87):
        smaller = replace(structure, positions=factor * structure.positions, cell=factor * structure.cell)
        np.testing.assert_allclose(distances_now(moving, smaller), distances_anew(smaller), atol=1e-9)
    assert moving.searches == 2


def test_the_search_is_kept_until_an_atom_has_moved_by_half_the_skin() -> None:
    structure, moving = liquid((False, False, False)), MovingGraph(CUTOFF, SKIN)
    moving.at(structure)
    step = np.zeros((12, 3))
    step[3, 1] = 0.49 * SKIN
    moving.at(replace(structure, positions=structure.positions + step))
    assert moving.searches == 1
    moving.at(replace(structure, positions=structure.positions + 1.05 * step))
    assert moving.searches == 2


def test_positions_that_change_in_place_are_noticed() -> None:
    structure, moving = liquid((False, False, False)), MovingGraph(CUTOFF, SKIN)
    moving.at(structure)
    structure.positions[0] += 5.0
    np.testing.assert_allclose(distances_now(moving, structure), distances_anew(structure))


def test_atoms_that_an_engine_wraps_are_found_again() -> None:
    structure, moving = liquid((True, True, True)), MovingGraph(CUTOFF, SKIN)
    before = distances_now(moving, structure)
    wrapped = replace(structure, positions=structure.positions + np.outer(np.arange(12) % 3, CELL[0]))
    np.testing.assert_allclose(distances_now(moving, wrapped), before, atol=1e-9)


def test_more_neighbours_than_slots_make_more_slots_once() -> None:
    rng, moving = np.random.default_rng(0), MovingGraph(CUTOFF, 0.0)
    shapes = set()
    for factor in (1.0, 0.9, 0.88, 0.86):
        structure = liquid((True, True, True))
        denser = replace(structure, positions=factor * structure.positions, cell=factor * CELL)
        shapes.add(moving.at(denser).graph.neighbours.num_slots)
        jostled = replace(denser, positions=denser.positions + 0.05 * rng.normal(size=(12, 3)))
        shapes.add(moving.at(jostled).graph.neighbours.num_slots)
    assert len(shapes) == 2


def test_a_molecule_never_has_more_slots_than_other_atoms() -> None:
    structure = liquid((False, False, False))
    assert MovingGraph(20.0, 1.0).at(structure).graph.neighbours.num_slots == 11


def test_siblings_have_the_same_shapes() -> None:
    moving = MovingGraph(CUTOFF, SKIN)
    dense = moving.at(liquid((True, True, True)))
    sparse = replace(liquid((True, True, True)), cell=1.5 * CELL)
    other = moving.sibling()
    assert other.at(sparse).graph.neighbours.num_slots == dense.graph.neighbours.num_slots
    assert (moving.searches, other.searches) == (1, 1)


@pytest.mark.parametrize("skin", [-0.1, np.nan])
def test_a_skin_that_is_none(skin: float) -> None:
    with pytest.raises(ValueError, match="skin_angstrom must be zero or positive"):
        MovingGraph(CUTOFF, skin)


def test_a_small_molecule_is_searched_once_even_if_it_flies_apart() -> None:
    rng, moving = np.random.default_rng(0), MovingGraph(CUTOFF, SKIN)
    structure = Structure(np.full(6, 6, np.uint8), rng.uniform(0, 2, size=(6, 3)))
    for factor in (1.0, 1.5, 3.0, 400.0, 0.8):
        moved = replace(structure, positions=factor * structure.positions + 50 * factor)
        np.testing.assert_allclose(distances_now(moving, moved), distances_anew(moved), atol=1e-9)
    assert moving.searches == 1


def test_positions_stay_near_the_origin_wherever_a_structure_goes() -> None:
    moving = MovingGraph(CUTOFF, SKIN)
    for pbc in ((False, False, False), (True, True, True)):
        start = liquid(pbc)
        for step in range(5):
            moved = moving.at(replace(start, positions=start.positions + 1000.0 * step))
            assert np.abs(moved.positions).max() < 10
