import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from huefield.data.splits import duplicates
from huefield.data.splits.duplicates import configuration_hashes, pairs_across
from tests.data.test_composition import packed
from tests.paths import SHARED


def hashes_of(*structures: tuple[list[int], np.ndarray], cell: float = 0.0, pbc: bool = False) -> np.ndarray:
    sizes, numbers = packed([s[0] for s in structures])
    positions = np.concatenate([np.zeros((0, 3)), *(np.reshape(s[1], (-1, 3)) for s in structures)])
    cells = np.tile(cell * np.eye(3), (len(sizes), 1, 1))
    return configuration_hashes(sizes, numbers, positions, cells, np.full((len(sizes), 3), pbc))


WATER = np.array([[0.0, 0.0, 0.0], [0.76, 0.58, 0.0], [-0.76, 0.58, 0.0]])
ELEMENTS = [8, 1, 1]


def test_the_same_configuration_has_the_same_hash_wherever_it_stands() -> None:
    other = ([6, 1], WATER[:2])
    hashes = hashes_of((ELEMENTS, WATER), other, ([], WATER[:0]), (ELEMENTS, WATER), other)
    assert hashes[0] == hashes[3] == hashes_of((ELEMENTS, WATER))[0]
    assert hashes[1] == hashes[4]
    assert len(set(hashes.tolist())) == 3


def test_hashes_do_not_depend_on_the_runs_they_are_made_in(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    structures = [([int(n) for n in rng.integers(1, 9, 5)], rng.normal(size=(5, 3))) for _ in range(7)]
    whole, cut = hashes_of(*structures, cell=9.0, pbc=True), duplicates.runs
    monkeypatch.setattr(duplicates, "runs", lambda sizes: cut(sizes, 12))
    np.testing.assert_array_equal(hashes_of(*structures, cell=9.0, pbc=True), whole)


def test_minus_zero_is_zero_and_rounding_forgives_noise() -> None:
    expected = hashes_of((ELEMENTS, WATER))
    assert hashes_of((ELEMENTS, np.where(WATER == 0, -0.0, WATER))) == expected
    assert hashes_of((ELEMENTS, WATER - 3e-5)) == expected
    assert hashes_of((ELEMENTS, WATER.astype(np.float32))) == expected


@pytest.mark.parametrize(
    ("elements", "positions"),
    [
        ([8, 1, 9], WATER),
        ([1, 8, 1], WATER),
        (ELEMENTS, WATER + 1e-3),
        (ELEMENTS, WATER[[0, 2, 1]]),
        (ELEMENTS, WATER[:, [1, 0, 2]]),
        (ELEMENTS, -WATER),
    ],
    ids=["element", "elements exchanged", "shifted", "atoms exchanged", "axes exchanged", "mirrored"],
)
def test_everything_but_rounding_changes_the_hash(elements: list[int], positions: np.ndarray) -> None:
    assert hashes_of((elements, positions)) != hashes_of((ELEMENTS, WATER))


def test_the_cell_counts_where_the_structure_is_periodic_only() -> None:
    water = (ELEMENTS, WATER)
    assert hashes_of(water, cell=50.0) == hashes_of(water)
    assert hashes_of(water, cell=50.0, pbc=True) != hashes_of(water)
    assert hashes_of(water, cell=50.0, pbc=True) != hashes_of(water, cell=50.1, pbc=True)
    assert hashes_of(water, cell=50.0, pbc=True) == hashes_of(water, cell=50.00001, pbc=True)


def test_different_configurations_have_different_hashes_spread_over_all_bits() -> None:
    steps = np.stack(np.meshgrid(*[np.arange(32)] * 3), -1).reshape(-1, 1, 3) * 1e-4
    n = len(steps)
    positions = (WATER + steps).reshape(-1, 3)
    hashes = configuration_hashes(
        np.full(n, 3), np.tile(np.array(ELEMENTS, np.uint8), n), positions, np.zeros((n, 3, 3)), np.zeros((n, 3), bool)
    )
    assert len(np.unique(hashes)) == n
    ones = np.unpackbits(hashes.view(np.uint8).reshape(n, 8), axis=1).mean(0)
    np.testing.assert_allclose(ones, 0.5, atol=5 * 0.5 / np.sqrt(n))


def test_positions_that_cannot_be_rounded_are_errors() -> None:
    with pytest.raises(ValueError, match=r"positions must be finite, but is nan at index \(1, 2\)"):
        hashes_of(([1, 1], np.array([[0.0, 0, 0], [0, 0, np.nan]])))
    with pytest.raises(ValueError, match=r"positions reach 1e\+20 Å, too far to count in steps of 0\.0001 Å"):
        hashes_of(([1], np.array([[1e20, 0, 0]])))


@pytest.mark.skipif(not (SHARED / "transition1x").exists(), reason="needs transition1x of the shared data")
def test_end_points_of_transition1x_are_found_again_among_the_frames_of_the_path() -> None:
    import h5py

    with h5py.File(SHARED / "transition1x" / "t1x_mini.h5") as file:
        reactions = [r for r in file["data/C3H8O"].values() if "reactant" in r]
        assert len(reactions) == 12
        for reaction in reactions:
            elements = reaction["atomic_numbers"][:].tolist()
            frames = hashes_of(*((elements, p) for p in reaction["positions"][:]))
            ends = hashes_of(*((elements, reaction[end]["positions"][0]) for end in ("reactant", "product")))
            assert len(set(frames.tolist())) == len(frames)
            assert ends.tolist() == [frames[0], frames[-1]]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(-1, 2)), min_size=3, max_size=30))
@settings(deadline=None, max_examples=50)
def test_pairs_are_those_of_a_loop_over_all_pairs(structures: list[tuple[int, int]]) -> None:
    hashes = np.array([h for h, _ in structures], np.uint64)
    parts = np.array([p for _, p in structures])
    found = pairs_across(hashes, parts)
    expected = []
    for j, (hash_j, part_j) in enumerate(structures):
        earlier = [(p, i) for i, (h, p) in enumerate(structures) if h == hash_j and 0 <= p < part_j]
        expected += [[min(earlier)[1], j]] if earlier else []
    assert found.T.tolist() == expected


@pytest.mark.skipif(not (SHARED / "acac").exists(), reason="needs acac of the shared data")
def test_official_files_of_acac_share_no_configuration_and_a_copied_frame_is_found() -> None:
    import ase.io

    train, test = (ase.io.read(SHARED / "acac" / f"{name}.xyz", ":30") for name in ("train_300K", "test_MD_300K"))
    parts = np.repeat([0, 1], 30)
    for frames, expected in ((train + test, []), (train + test[:-1] + train[17:18], [[17, 59]])):
        hashes = configuration_hashes(
            np.array([len(a) for a in frames]),
            np.concatenate([a.numbers for a in frames]).astype(np.uint8),
            np.concatenate([a.positions for a in frames]),
            np.array([a.cell.array for a in frames]),
            np.array([a.pbc for a in frames]),
        )
        assert pairs_across(hashes, parts).T.tolist() == expected
