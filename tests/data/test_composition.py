import itertools
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ase.data import chemical_symbols
from ase.formula import Formula
from hypothesis import given, settings
from hypothesis import strategies as st

from huefield.data import composition
from huefield.data.composition import configuration_hashes, deal_groups, element_counts, formula_index, formulas

SHARED = Path(os.environ.get("HUEFIELD_DATA", Path(__file__).parents[3] / "shared" / "data"))

molecules = st.lists(st.lists(st.integers(1, 118), max_size=8), max_size=12)


def packed(structures: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.array([len(s) for s in structures], np.int64)
    return sizes, np.array(list(itertools.chain(*structures)), np.uint8)


@given(molecules)
@settings(deadline=None, max_examples=50)
def test_counts_are_those_of_a_loop(structures: list[list[int]]) -> None:
    elements = sorted(set(itertools.chain(*structures)) | {6}, reverse=True)
    counts = element_counts(*packed(structures), elements)
    assert counts.tolist() == [[Counter(s)[e] for e in elements] for s in structures]


@given(molecules)
@settings(deadline=None, max_examples=50)
def test_formulas_with_carbon_are_those_of_ase_in_hill_order(structures: list[list[int]]) -> None:
    organic = [[6, *s] for s in structures]
    expected = [Formula("".join(chemical_symbols[n] for n in s)).format("hill") for s in organic]
    assert formulas(*packed(organic)).tolist() == expected


def test_formulas_without_carbon_are_in_alphabetical_order() -> None:
    # ASE puts H first here, which Hill (J. Am. Chem. Soc. 22, 478, 1900) does not
    structures = [[1, 35], [1, 1, 16, 8, 8, 8, 8], [17, 11], [7, 1, 1, 1], [9, 9, 54], [1], []]
    assert formulas(*packed(structures)).tolist() == ["BrH", "H2O4S", "ClNa", "H3N", "F2Xe", "H", ""]


def test_formula_index_has_each_formula_once_in_alphabetical_order() -> None:
    names, index = formula_index(*packed([[8, 1, 1], [6, 1, 1, 1, 1], [1, 8, 1], [11, 17], [17, 11]]))
    assert names == ("CH4", "ClNa", "H2O")
    assert index.tolist() == [2, 0, 2, 1, 1]


def test_formulas_are_told_apart_when_there_are_more_than_64_bits_of_counts() -> None:
    many = list(range(1, 41)) * 15  # 16 possible counts of each of 40 elements: 160 bits
    names, index = formula_index(*packed([many, many[1:], many, many[:-1], [40] * 9]))
    assert len(names) == 4
    assert index[0] == index[2]
    assert names[index[4]] == "Zr9"


def test_a_million_atoms_and_more_are_counted_in_several_runs() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 30, 100_000)
    numbers = rng.choice(np.array([1, 6, 7, 8], np.uint8), sizes.sum())
    assert len(list(composition.runs(sizes))) == 2
    counts = element_counts(sizes, numbers, (1, 6, 7, 8))
    ends = np.cumsum(sizes)
    for column, element in enumerate((1, 6, 7, 8)):
        cumulative = np.concatenate([[0], np.cumsum(numbers == element)])
        np.testing.assert_array_equal(counts[:, column], cumulative[ends] - cumulative[ends - sizes])


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(1, 40))
def test_runs_cover_all_structures_in_order_with_few_atoms_each(sizes: list[int], atoms: int) -> None:
    pieces = list(composition.runs(np.array(sizes, np.int64), atoms))
    assert [i for s, _ in pieces for i in range(s.start, s.stop)] == list(range(len(sizes)))
    assert [i for _, a in pieces for i in range(a.start, a.stop)] == list(range(sum(sizes)))
    for structures, rows in pieces:
        assert rows.stop - rows.start == sum(sizes[structures])
        assert rows.stop - rows.start <= atoms or structures.stop - structures.start == 1


@pytest.mark.skipif(not (SHARED / "ani1x").exists(), reason="needs ani1x of the shared data")
def test_formulas_are_the_group_names_of_ani1x() -> None:
    import h5py

    with h5py.File(SHARED / "ani1x" / "ani1x_96_official_layout.h5") as file:
        names = [re.sub(r"(?<=[A-Z])1(?!\d)", "", name) for name in file]
        structures = [file[name]["atomic_numbers"][:].tolist() for name in file]
    assert len(names) == 50
    assert formulas(*packed(structures)).tolist() == names


def test_an_element_that_was_not_asked_for_is_named_with_its_structure() -> None:
    with pytest.raises(ValueError, match=r"structure 1 has element Cl, which is not among the elements \['H', 'C'\]"):
        element_counts(*packed([[1, 6], [6, 17]]), (1, 6))


def test_elements_that_do_not_exist_are_errors() -> None:
    with pytest.raises(ValueError, match="there is no element 0: atomic numbers are 1 to 118"):
        formulas(*packed([[0]]))
    with pytest.raises(ValueError, match="there is no element 119"):
        element_counts(*packed([[1]]), (1, 119))


def test_columns_must_be_different_elements() -> None:
    with pytest.raises(ValueError, match=r"must be different from one another, but are \['H', 'H'\]"):
        element_counts(*packed([[1]]), (1, 1))


def test_sizes_that_do_not_fit_the_atoms_are_errors() -> None:
    with pytest.raises(ValueError, match="sizes of 2 structures add to 4 atoms, but atomic_numbers has 3"):
        element_counts(np.array([2, 2]), np.ones(3, np.uint8), (1,))
    with pytest.raises(ValueError, match="structure 1 has size -1"):
        formulas(np.array([2, -1]), np.ones(1, np.uint8))


# Dealing out groups.


@given(
    st.lists(st.integers(1, 40), min_size=3, max_size=9),
    st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.3, 0.2), (0.9, 0.05, 0.05), (0.3, 0.3), (0.98,), (1.0,), (0.1, 0.9)]),
)
@settings(deadline=None, max_examples=50)
def test_no_single_step_brings_the_first_filled_part_nearer_to_its_share(
    sizes: list[int], fractions: tuple[float, ...]
) -> None:
    targets = np.array(fractions) * sum(sizes)
    owners = deal_groups(np.array(sizes), targets)
    assert set(range(len(fractions))) <= set(owners.tolist()) <= {-1, *range(len(fractions))}
    if sum(fractions) > 0.999:
        assert owners.min() >= 0
    if len(fractions) == 1 and fractions[0] == 1.0:
        return
    first = int(np.argmin(targets))  # fills before all others
    inside = [g for g in range(len(sizes)) if owners[g] == first]
    outside = [g for g in range(len(sizes)) if owners[g] != first]
    missed = abs(targets[first] - sum(sizes[g] for g in inside))
    at_most = len(sizes) - (len(fractions) - 1)
    for out, into in itertools.product([*inside, None], [*outside, None]):
        others = {*inside, into} - {out, None}
        if 1 <= len(others) <= at_most:
            assert abs(targets[first] - sum(sizes[g] for g in others)) >= missed - 1e-9


def test_a_group_is_left_out_again_where_an_exchange_made_it_superfluous() -> None:
    assert deal_groups(np.array([1, 5, 9]), np.array([9.2])).tolist() == [-1, -1, 0]


def test_shares_are_exact_where_groups_allow() -> None:
    rng = np.random.default_rng(1)
    sizes = np.append(rng.integers(1, 2000, 3000), 1)
    targets = np.rint(np.array([0.9, 0.05, 0.05]) * sizes.sum())
    targets[0] = sizes.sum() - targets[1:].sum()
    owners = deal_groups(sizes, targets)
    np.testing.assert_array_equal(np.bincount(owners, weights=sizes), targets)


def test_a_group_that_is_too_large_is_passed_over_and_the_next_ones_are_taken() -> None:
    owners = deal_groups(np.array([880, *[10] * 10, 20, 100]), np.array([1000.0, 100.0]))
    assert owners.tolist() == [0, *[1] * 10, 0, 0]


def test_small_parts_get_groups_of_all_sizes() -> None:
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 1000, 4000)
    owners = deal_groups(sizes, np.array([0.9, 0.1]) * sizes.sum())
    np.testing.assert_allclose(sizes[owners == 1].mean(), sizes.mean(), rtol=4 / np.sqrt(3 * 400))


# Hashes.


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
    whole, cut = hashes_of(*structures, cell=9.0, pbc=True), composition.runs
    monkeypatch.setattr(composition, "runs", lambda sizes: cut(sizes, 12))
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
    found = composition.pairs_across(hashes, parts)
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
        assert composition.pairs_across(hashes, parts).T.tolist() == expected
