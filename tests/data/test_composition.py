import itertools
import re
from collections import Counter

import numpy as np
import pytest
from ase.data import chemical_symbols
from ase.formula import Formula
from hypothesis import given, settings
from hypothesis import strategies as st

from huefield.data import composition
from huefield.data.composition import element_counts, formula_index, formulas
from tests.paths import SHARED

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
