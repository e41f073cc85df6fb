from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from huefield.core.structure import Block, Structure, pack
from huefield.data.readers.base import Fault
from huefield.data.readers.checks import CLOSEST_ANGSTROM, LARGE, checked, fault_reasons

WATER = Structure(
    atomic_numbers=np.array([8, 1, 1], np.uint8),
    positions=np.array([[0.0, 0.0, 0.0], [0.0, 0.76, 0.59], [0.0, -0.76, 0.59]]),
    cell=np.diag([5.0, 6.0, 7.0]),
    pbc=np.array([True, True, False]),
    energy=-2.0,
    forces=np.ones((3, 3)),
    stress=np.eye(3),
)


def one(structure: Structure) -> Block:
    """The structure between two good ones."""
    return pack([WATER, structure, WATER], np.array([10, 11, 12]), "some.xyz")


def with_value(array: np.ndarray, where: tuple[int, ...], value: float) -> np.ndarray:
    changed = array.copy()
    changed[where] = value
    return changed


BAD = {
    "it has no atoms": Structure(np.zeros(0, np.uint8), np.zeros((0, 3))),
    r"unknown element: atomic numbers \[0, 1, 8\]": replace(WATER, atomic_numbers=np.array([8, 1, 0], np.uint8)),
    r"unknown element: atomic numbers \[1, 8, 119\]": replace(WATER, atomic_numbers=np.array([8, 1, 119], np.uint8)),
    "a position is NaN or infinite": replace(WATER, positions=with_value(WATER.positions, (1, 2), np.nan)),
    "a position is NaN or infinite$": replace(WATER, positions=np.full((3, 3), np.inf)),
    "the cell is NaN or infinite": replace(WATER, cell=with_value(WATER.cell, (0, 0), np.inf)),
    "the energy is nan": replace(WATER, energy=float("nan")),
    "the energy is -inf": replace(WATER, energy=-float("inf")),
    "a force is NaN or infinite": replace(WATER, forces=with_value(WATER.forces, (2, 2), np.nan)),
    "the stress is NaN or infinite": replace(WATER, stress=with_value(WATER.stress, (0, 1), np.inf)),
    "a periodic direction has no lattice vector": replace(WATER, cell=np.diag([1.0, 0.0, 1.0])),
    "are linearly dependent": replace(WATER, cell=np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.0, 0.0, 1.0]])),
    "two atoms are closer than 0.1 Å": replace(WATER, positions=WATER.positions * 0.05),
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_structure_becomes_a_fault_and_its_neighbours_pass(reason: str) -> None:
    fault, block = checked([one(BAD[reason])])
    assert isinstance(fault, Fault)
    assert isinstance(block, Block)
    np.testing.assert_array_equal(block.frames, [10, 12])
    with pytest.raises(ValueError, match=f"some.xyz, frame 11: .*{reason}"):
        raise ValueError(str(fault))


def test_good_structures_pass_untouched_with_faults_of_the_reader_in_their_place() -> None:
    good, fault = one(WATER), Fault("some.xyz", 3, "cannot be read")
    assert list(checked([good, fault, good])) == [good, fault, good]


def test_a_block_of_bad_structures_only_gives_faults_only() -> None:
    bad = pack([replace(WATER, energy=float("nan"))] * 2, np.arange(2), "some.xyz")
    assert [item.frame for item in checked([bad]) if isinstance(item, Fault)] == [0, 1]
    assert len(list(checked([bad]))) == 2


@pytest.mark.parametrize(
    ("pbc", "good"), [((True, False, True), True), ((False, False, False), True), ((True, True, False), False)]
)
def test_only_periodic_lattice_vectors_must_be_independent(pbc: tuple[bool, ...], good: bool) -> None:
    parallel = replace(WATER, cell=np.array([[5.0, 0, 0], [5.0, 0, 0], [0, 1e-3, 9.0]]), pbc=np.array(pbc))
    assert (fault_reasons(one(parallel)) == {}) is good


@pytest.mark.parametrize("size", [2, 5, LARGE, LARGE + 1, 3 * LARGE])
def test_crowded_structures_are_those_with_a_pair_closer_than_the_limit(size: int) -> None:
    rng = np.random.default_rng(size)
    scale = CLOSEST_ANGSTROM * size ** (2 / 3)  # about half of them are crowded
    structures = [Structure(np.ones(size, np.uint8), rng.uniform(0, scale, (size, 3)), energy=0.0) for _ in range(60)]
    expected = {i for i, s in enumerate(structures) if pdist(s.positions).min() < CLOSEST_ANGSTROM}
    assert 5 < len(expected) < 55
    assert set(fault_reasons(pack(structures, np.arange(60), "random"))) == expected


def test_many_atoms_in_one_place_need_no_memory_for_their_pairs() -> None:
    heap = Structure(np.ones(50_000, np.uint8), np.zeros((50_000, 3)))
    assert list(fault_reasons(pack([heap], np.arange(1), "heap"))) == [0]
