"""Pairs against ASE's neighbour list, and the matrix that is made from them."""

from collections import Counter

import ase
import jax.numpy as jnp
import numpy as np
import pytest
from ase.neighborlist import neighbor_list

from huefield.core.neighbours import Neighbours
from huefield.core.structure import Block, Structure, pack
from huefield.data.batches.neighbours import (
    Pairs,
    block_pairs,
    completed_cell,
    most_neighbours,
    near_origin,
    neighbour_matrix,
    neighbour_pairs,
)

NONE, ALL = np.zeros(3, bool), np.ones(3, bool)


def structure(positions: np.ndarray, cell: np.ndarray | None = None, pbc: np.ndarray = NONE) -> Structure:
    cell = np.zeros((3, 3)) if cell is None else cell
    return Structure(np.ones(len(positions), np.uint8), positions, cell, pbc)


def block_of(*structures: Structure) -> Block:
    return pack(list(structures), np.arange(len(structures)), "test")


def triples(pairs: Pairs) -> Counter[tuple[int, ...]]:
    return Counter(map(tuple, np.c_[pairs.first, pairs.second, pairs.shifts].tolist()))


def ase_triples(given: Structure, cutoff: float) -> Counter[tuple[int, ...]]:
    atoms = ase.Atoms(given.atomic_numbers, given.positions, cell=given.cell, pbc=given.pbc)
    i, j, shifts = neighbor_list("ijS", atoms, cutoff)
    return Counter(map(tuple, np.c_[i, j, shifts].tolist()))


def random_structure(rng: np.random.Generator) -> Structure:
    """A few atoms, in no order, inside and far outside of a skewed cell, which may be smaller than an atom's reach."""
    pbc = rng.random(3) < 0.6
    while True:
        cell = rng.normal(size=(3, 3)) * rng.uniform(1.5, 5)
        lengths = np.linalg.norm(cell, axis=1)
        if lengths.min() > 0.8 and abs(np.linalg.det(cell)) > 0.15 * lengths.prod():
            break
    inside = rng.uniform(-2, 3, size=(rng.integers(1, 8), 3)) @ cell
    cell[~pbc] *= rng.integers(0, 2)  # open directions with and without a lattice vector
    return structure(inside, cell, pbc)


@pytest.mark.parametrize("seed", range(10))
def test_pairs_are_those_of_ase_in_skewed_small_and_mixed_cells(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds, images = set(), 0
    for _ in range(30):
        given, cutoff = random_structure(rng), rng.uniform(1, 5)
        pairs = neighbour_pairs(given, cutoff)
        expected = ase_triples(given, cutoff)
        assert triples(pairs) == expected
        kinds.add(int(given.pbc.sum()))
        images += sum(i == j for i, j, *_ in expected)
    assert kinds == {0, 1, 2, 3}
    assert images


def test_a_small_cell_has_many_images_of_its_only_atom() -> None:
    given = structure(np.array([[7.0, -3.0, 0.2]]), np.diag([1.0, 1.2, 1.5]), ALL)
    pairs = neighbour_pairs(given, 4.0)
    assert triples(pairs) == ase_triples(given, 4.0)
    assert len(pairs) > 100


@pytest.mark.parametrize(
    ("positions", "expected"),
    [(np.zeros((0, 3)), 0), (np.zeros((1, 3)), 0), (np.diag([0.0, 5.0, 90.0]), 0), (np.diag([0.0, 4.9, 90.0]), 2)],
    ids=["no atom", "one atom", "at the cutoff", "one pair and one alone"],
)
def test_open_structures_with_few_pairs(positions: np.ndarray, expected: int) -> None:
    assert len(neighbour_pairs(structure(positions), 5.0)) == expected


def test_what_stands_in_open_directions_of_a_cell_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    positions, cell, pbc = rng.uniform(-5, 5, (9, 3)), rng.normal(size=(3, 3)) * 4, np.array([True, False, True])
    flat, tiny = cell.copy(), cell.copy()
    flat[1], tiny[1] = cell[0] + cell[2], [1e-9, 0, 0]
    expected = ase_triples(structure(positions, cell, pbc), 5.0)
    assert expected
    for other in (flat, tiny):
        assert triples(neighbour_pairs(structure(positions, other, pbc), 5.0)) == expected


def test_single_precision_positions_are_accepted() -> None:
    positions = np.random.default_rng(0).uniform(0, 6, (20, 3)).astype(np.float32)
    given = structure(positions, np.diag([6.0, 6, 6]), ALL)
    assert triples(neighbour_pairs(given, 5.0)) == ase_triples(given, 5.0)
    assert triples(neighbour_pairs(structure(positions), 5.0)) == ase_triples(structure(positions), 5.0)


def test_the_second_half_is_the_first_half_turned_round() -> None:
    rng = np.random.default_rng(2)
    pairs = block_pairs(block_of(*(random_structure(rng) for _ in range(9))), 4.0)
    half = len(pairs) // 2
    np.testing.assert_array_equal(pairs.first[:half], pairs.second[half:])
    np.testing.assert_array_equal(pairs.second[:half], pairs.first[half:])
    np.testing.assert_array_equal(pairs.shifts[:half], -pairs.shifts[half:])


def test_a_block_has_the_pairs_of_its_structures_wherever_they_are() -> None:
    rng = np.random.default_rng(3)
    spread = [structure(rng.normal(size=(4, 3)) + offset) for offset in (0, 0, 1e3, -20)]
    apart = structure(np.array([[0.0, 0, 0], [3e7, 0, 0], [3e7, 1, 0]]))  # longer than a row of molecules may be
    structures = [*spread[:2], apart, random_structure(rng), *spread[2:], random_structure(rng)]
    block = block_of(*structures)
    expected: Counter[tuple[int, ...]] = Counter()
    for start, given in zip(block.starts, structures, strict=False):
        alone = neighbour_pairs(given, 3.0)
        expected += triples(Pairs(alone.first + start, alone.second + start, alone.shifts, alone.cutoff_angstrom))
    assert triples(block_pairs(block, 3.0)) == expected


@pytest.mark.parametrize("extent", [(1e6, 0, 0), (0, 3, 1e9), (2e3, 2e3, 0), (2e4, 1, 40), (1e5, 1e5, 1e5)])
def test_atoms_far_apart_are_no_danger(extent: tuple[float, float, float]) -> None:
    corners = np.array([[0, 0, 0], extent])
    positions = np.concatenate([corners + offset for offset in np.diag([0, 1.0, 0.5])])
    expected = {(i, j) for i in range(6) for j in range(6) if 0 < np.linalg.norm(positions[i] - positions[j]) < 1}
    pairs = neighbour_pairs(structure(positions), 1.0)
    assert set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)) == expected
    assert len(pairs) == len(expected) == 4


def test_a_large_and_flat_periodic_cell_is_searched() -> None:
    given = structure(np.array([[0.1, 0.2, 0.3], [99.5, 299.9, 2.8]]), np.diag([100.0, 300, 3]), ALL)
    pairs = neighbour_pairs(given, 1.0)
    assert triples(pairs) == Counter([(0, 1, -1, -1, -1), (1, 0, 1, 1, 1)])


def test_most_neighbours_are_counted_for_each_structure() -> None:
    rng = np.random.default_rng(4)
    structures = [random_structure(rng) for _ in range(12)] + [structure(np.zeros((1, 3)))]
    counts = [np.bincount([i for i, *_ in ase_triples(s, 4.0).elements()], minlength=1).max() for s in structures]
    np.testing.assert_array_equal(most_neighbours(block_of(*structures), 4.0), counts)
    assert counts[-1] == 0


class TestMatrix:
    block = block_of(*(random_structure(np.random.default_rng(s)) for s in range(6)), structure(np.zeros((1, 3))))
    pairs = block_pairs(block, 4.0)
    num_atoms, num_slots = len(block.positions) + 3, int(np.bincount(pairs.first).max()) + 2

    @pytest.fixture
    def matrix(self) -> Neighbours:
        return neighbour_matrix(self.pairs, self.num_atoms, self.num_slots)

    def test_it_holds_every_pair_once(self, matrix: Neighbours) -> None:
        atoms, slots = np.nonzero(np.asarray(matrix.mask))
        held = Pairs(
            atoms,
            np.asarray(matrix.index)[atoms, slots],
            np.asarray(matrix.shifts)[atoms, slots],
            matrix.cutoff_angstrom,
        )
        assert triples(held) == triples(self.pairs)

    def test_every_slot_is_the_reverse_of_its_reverse(self, matrix: Neighbours) -> None:
        reverse = np.asarray(matrix.reverse).ravel()
        np.testing.assert_array_equal(reverse[reverse], np.arange(reverse.size))
        own = np.repeat(np.arange(self.num_atoms), self.num_slots)
        np.testing.assert_array_equal(np.asarray(matrix.index).ravel()[reverse], own)
        np.testing.assert_array_equal(np.asarray(matrix.index).ravel(), own[reverse])
        np.testing.assert_array_equal(np.asarray(matrix.shifts).reshape(-1, 3)[reverse], -matrix.shifts.reshape(-1, 3))

    def test_empty_slots_point_to_themselves(self, matrix: Neighbours) -> None:
        empty = ~np.asarray(matrix.mask).ravel()
        np.testing.assert_array_equal(np.asarray(matrix.reverse).ravel()[empty], np.flatnonzero(empty))
        assert empty.reshape(self.num_atoms, -1)[-4:].all()

    def test_vectors_have_the_lengths_that_ase_finds(self, matrix: Neighbours, x64: None) -> None:
        owner = np.repeat(np.arange(len(self.block)), self.block.sizes)
        cells, positions = np.zeros((self.num_atoms, 3, 3)), np.zeros((self.num_atoms, 3))
        cells[: len(owner)], positions[: len(owner)] = self.block.cells[owner], self.block.positions
        vectors = matrix.vectors(jnp.asarray(positions), jnp.asarray(cells))
        found = np.linalg.norm(vectors, axis=-1)[np.asarray(matrix.mask)]
        given = [ase.Atoms(s.atomic_numbers, s.positions, cell=s.cell, pbc=s.pbc) for s in self.block]
        expected = np.concatenate([neighbor_list("d", atoms, 4.0) for atoms in given])
        np.testing.assert_allclose(np.sort(found), np.sort(expected), atol=1e-10)


def test_moving_near_the_origin_keeps_every_distance() -> None:
    rng = np.random.default_rng(6)
    for _ in range(20):
        given = random_structure(rng)
        far = structure(given.positions + 500, given.cell, given.pbc)
        moved = structure(near_origin(block_of(far)), given.cell, given.pbc)

        def lengths(of: Structure) -> np.ndarray:
            pairs = neighbour_pairs(of, 4.0)
            return np.sort(
                np.linalg.norm(of.positions[pairs.second] + pairs.shifts @ of.cell - of.positions[pairs.first], axis=1)
            )

        np.testing.assert_allclose(lengths(moved), lengths(given), atol=1e-9)
        fractional = moved.positions @ np.linalg.inv(completed_cell(given.cell, given.pbc, ""))
        assert (np.abs(fractional[:, given.pbc]) <= 0.5 + 1e-9).all()
        np.testing.assert_allclose(moved.positions[:, 0].mean() if not given.pbc.any() else 0, 0, atol=1e-9)


class TestMessages:
    cell = np.diag([3.0, 4.0, 5.0])

    @pytest.mark.parametrize("cutoff", [0.0, -1.0, 100.0, float("nan")])
    def test_impossible_cutoffs(self, cutoff: float) -> None:
        with pytest.raises(ValueError, match=f"cutoff_angstrom must be between 0 and 100 Å, but is {cutoff}"):
            neighbour_pairs(structure(np.zeros((2, 3))), cutoff)

    def test_positions_that_are_not_numbers(self) -> None:
        good, bad = structure(np.zeros((2, 3))), structure(np.array([[0.0, 0, 0], [np.inf, 0, 0]]))
        with pytest.raises(ValueError, match=r"test, frame 1: a position is NaN or infinite"):
            block_pairs(block_of(good, bad), 5.0)

    def test_periodic_directions_without_a_lattice_vector(self) -> None:
        given = structure(np.zeros((1, 3)), np.diag([3.0, 0, 5]), np.array([True, True, False]))
        with pytest.raises(ValueError, match=r"frame 0: a periodic direction has the lattice vector .*give the cell"):
            neighbour_pairs(given, 5.0)

    def test_dependent_lattice_vectors(self) -> None:
        given = structure(np.zeros((1, 3)), np.array([[3.0, 0, 0], [0, 3, 0], [1, 1, 0]]), ALL)
        with pytest.raises(ValueError, match=r"frame 0: the lattice vectors .* are linearly dependent"):
            neighbour_pairs(given, 5.0)

    def test_a_cell_that_is_far_too_small(self) -> None:
        given = structure(np.zeros((1, 3)), np.diag([5, 5, 1e-3]), ALL)
        with pytest.raises(ValueError, match=r"frame 0: a cell only 0.001 Å high for a cutoff of 5.0 Å"):
            neighbour_pairs(given, 5.0)

    def test_a_slab_with_an_atom_astray(self) -> None:
        given = structure(np.diag([0, 0, 1e7]), self.cell, np.array([True, True, False]))
        with pytest.raises(ValueError, match=r"frame 0: it is 1e\+07 Å long, but 3 Å thin: are atoms lost\?"):
            neighbour_pairs(given, 5.0)

    def test_too_few_slots(self) -> None:
        pairs = neighbour_pairs(structure(np.zeros((1, 3)), self.cell, ALL), 4.5)
        with pytest.raises(ValueError, match=r"atom 0 has 4 neighbours, but the matrix has 3 slots"):
            neighbour_matrix(pairs, 1, 3)

    def test_too_few_atoms(self) -> None:
        pairs = neighbour_pairs(structure(np.zeros((2, 3)), self.cell, ALL), 4.5)
        with pytest.raises(ValueError, match=r"a pair names atom 1, but the matrix has 1 atoms"):
            neighbour_matrix(pairs, 1, 30)

    def test_atoms_that_are_too_many_cells_apart(self) -> None:
        given = structure(np.array([[0.0, 0, 0], [0, 0, 1000]]), self.cell, ALL)
        with pytest.raises(ValueError, match=r"a pair is 200 cells apart, but at most 127 are kept.*near_origin"):
            neighbour_matrix(neighbour_pairs(given, 2.0), 2, 8)
