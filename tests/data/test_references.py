import itertools
import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from huefield.core.structure import Structure, pack
from huefield.core.units import HARTREE_EV
from huefield.data.references import (
    AtomicReferences,
    CompositionFit,
    EnergyChunk,
    MissingReferenceError,
    ReferenceConfig,
    fitted_references,
    isolated_atoms,
    isolated_references,
)
from tests.paths import SHARED

HCNO = {1: -13.587222780835477, 6: -1029.4889999855063, 7: -1484.9814568572233, 8: -2041.9816003861047}
NUMBERS = np.array([1, 6, 7, 8], np.uint8)


def chunk(structures: list[list[int]], energy: np.ndarray, tag: str = "a") -> EnergyChunk:
    sizes = np.array([len(s) for s in structures], np.int64)
    numbers = np.array(list(itertools.chain(*structures)), np.uint8)
    n = len(sizes)
    return EnergyChunk(sizes, numbers, np.asarray(energy, float), np.ones(n, bool), sizes == 1, np.full(n, tag))


def from_counts(counts: np.ndarray, energy: np.ndarray, tag: str = "a") -> EnergyChunk:
    """Structures with these counts of H, C, N and O."""
    n = len(counts)
    numbers = np.repeat(np.tile(NUMBERS, n), counts.ravel())
    return EnergyChunk(counts.sum(1), numbers, energy, np.ones(n, bool), np.zeros(n, bool), np.full(n, tag))


def pieces(whole: EnergyChunk, length: int) -> Iterator[EnergyChunk]:
    starts = np.concatenate([[0], np.cumsum(whole.sizes)])
    for i in range(0, len(whole.sizes), length):
        part, j = slice(i, i + length), min(i + length, len(whole.sizes))
        yield EnergyChunk(
            whole.sizes[part], whole.atomic_numbers[starts[i] : starts[j]], whole.energy[part], whole.has_energy[part],
            whole.isolated[part], whole.tags[part],
        )  # fmt: skip


def values(references: AtomicReferences, tag: str = "a") -> np.ndarray:
    return np.array(list(references.energies_ev[tag].values()))


# Least squares.


def test_fit_in_pieces_is_lstsq_of_all_to_1e_6_ev_with_totals_near_minus_1e5_ev() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(60, 120, (100_000, 4)) // np.array([1, 2, 8, 5])
    true = np.array(list(HCNO.values()))
    energy = counts @ true + rng.normal(0, 1.0, len(counts))
    assert -1.1e5 < energy.mean() < -0.9e5
    expected = np.linalg.lstsq(counts.astype(float), energy, rcond=None)[0]
    fitted = fitted_references(pieces(from_counts(counts, energy), 7_000))
    assert list(fitted.energies_ev["a"]) == [1, 6, 7, 8]
    assert not fitted.underdetermined
    np.testing.assert_allclose(values(fitted), expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(values(fitted), true, rtol=0, atol=5e-3)  # as the noise allows


def test_fit_of_nearly_collinear_compositions_keeps_its_digits() -> None:
    """Alkanes CₙH₂ₙ₊₂ alone: the cond of their counts is large, and normal equations would square it."""
    n = np.arange(2000, 3000)
    counts = np.stack([2 * n + 2, n, 0 * n, 0 * n], 1)
    energy = counts[:, :2] @ np.array([HCNO[1], HCNO[6]])
    assert np.linalg.cond(counts[:, :2].astype(float)) > 1e4
    fitted = fitted_references(pieces(from_counts(counts, energy), 90))
    np.testing.assert_allclose(values(fitted), [HCNO[1], HCNO[6]], rtol=0, atol=1e-5)


def test_elements_may_come_late_and_in_any_order() -> None:
    structures = [[8, 1, 1], [8, 8], [6, 8, 8], [3, 1], [3, 17], [6, 1, 1, 1, 1]]
    true = {1: -13.5, 3: -200.25, 6: -1029.0, 8: -2042.0, 17: -12000.0}
    chunks = [chunk([s], np.array([sum(true[z] for z in s)])) for s in structures]
    fitted = fitted_references(chunks).energies_ev["a"]
    assert list(fitted) == [1, 3, 6, 8, 17]
    np.testing.assert_allclose(list(fitted.values()), list(true.values()), atol=1e-8)


@given(
    st.lists(st.lists(st.sampled_from([1, 6, 8]), min_size=1, max_size=5), min_size=1, max_size=12), st.integers(1, 5)
)
@settings(deadline=None, max_examples=50)
def test_fit_is_the_shortest_of_all_solutions_as_lstsq_has_it(structures: list[list[int]], length: int) -> None:
    energy = np.random.default_rng(len(structures)).normal(-1000, 300, len(structures))
    elements = sorted(set(itertools.chain(*structures)))
    counts = np.array([[s.count(z) for z in elements] for s in structures], float)
    expected, _, rank, _ = np.linalg.lstsq(counts, energy, rcond=None)
    fitted = fitted_references(pieces(chunk(structures, energy), length))
    np.testing.assert_allclose(values(fitted), expected, atol=1e-8)
    assert fitted.underdetermined == (() if rank == len(elements) else ("a",))


def test_a_single_formula_is_marked_and_its_sum_is_the_mean_energy() -> None:
    energy = np.array([-4219.1, -4219.4, -4218.8])
    water = chunk([[8, 1, 1]] * 3, energy, "water")
    fitted = fitted_references([water])
    assert fitted.underdetermined == ("water",)
    np.testing.assert_allclose(fitted.offsets(water.sizes, water.atomic_numbers, water.tags), energy.mean(), atol=1e-9)


def test_memory_of_a_fit_does_not_grow_with_the_number_of_pieces() -> None:
    counts = np.random.default_rng(1).integers(0, 9, (500, 4)) + 1

    def peak(count: int) -> int:
        tracemalloc.start()
        fitted_references(from_counts(counts, counts @ np.ones(4)) for _ in range(count))
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return memory

    peak(2)
    assert peak(80) < 1.2 * peak(4)


def test_the_triangle_is_small_however_many_structures_were_seen() -> None:
    counts = np.random.default_rng(2).integers(1, 9, (90_000, 4))
    fit = CompositionFit().seen(from_counts(counts, counts @ np.ones(4)))
    assert fit.triangle.shape == (5, 5)
    assert fit.num_structures == 90_000
    gram = np.column_stack([counts, counts.sum(1)]).T @ np.column_stack([counts, counts.sum(1)])
    np.testing.assert_allclose(fit.triangle.T @ fit.triangle, gram, rtol=1e-12)


def test_structures_without_energies_do_not_count() -> None:
    whole = chunk([[1, 1], [8, 8], [8, 1]], np.array([-30.0, -4000.0, 0.0]))
    fitted = fitted_references([replace(whole, has_energy=np.array([True, True, False]))])
    np.testing.assert_allclose(values(fitted), [-15.0, -2000.0])
    with pytest.raises(ValueError, match="cannot fit reference energies: no structure has an energy"):
        fitted_references([replace(whole, has_energy=np.zeros(3, bool))])


# Pooled data sets.


def test_pooled_data_sets_get_references_of_their_own() -> None:
    """Two bases, one of which is lower by 0.13 eV for a molecule of nine heavy atoms, as ANI-1x and Transition1x."""
    rng = np.random.default_rng(3)
    counts = rng.integers(0, [17, 8, 3, 3], (4000, 4)) + np.array([2, 1, 0, 0])
    cartesian = np.array(list(HCNO.values()))
    spherical = cartesian + np.array([0.0, 0.014, 0.015, 0.016])
    from_first = rng.random(4000) < 0.5
    scatter = rng.normal(0, 0.01, 4000)
    energy = np.where(from_first, counts @ cartesian, counts @ spherical) + scatter
    tags = np.where(from_first, "ani1x", "transition1x")
    pooled = replace(from_counts(counts, energy), tags=tags)
    own = fitted_references(pieces(pooled, 300))
    np.testing.assert_allclose(values(own, "ani1x"), cartesian, atol=2e-3)
    np.testing.assert_allclose(values(own, "transition1x"), spherical, atol=2e-3)
    rest = energy - own.offsets(pooled.sizes, pooled.atomic_numbers, tags)
    np.testing.assert_allclose(rest.std(), 0.01, rtol=0.05)
    one = replace(pooled, tags=np.full(4000, "both"))
    rest = energy - fitted_references([one]).offsets(one.sizes, one.atomic_numbers, one.tags)
    assert rest.std() > 0.03  # one table for both leaves half the gap in each molecule


def read_ani1x() -> list[tuple[list[int], float]]:
    import h5py

    with h5py.File(SHARED / "ani1x" / "ani1x_96_official_layout.h5") as file:
        return [
            (group["atomic_numbers"][:].tolist(), float(energy) * HARTREE_EV)
            for group in file.values()
            for energy in group["wb97x_dz.energy"][:]
        ]


def read_transition1x() -> list[tuple[list[int], float]]:
    import h5py

    with h5py.File(SHARED / "transition1x" / "t1x_mini.h5") as file:
        return [
            (reaction["atomic_numbers"][:].tolist(), float(energy))
            for formula in file["data"].values()
            for reaction in formula.values()
            for energy in reaction["wB97x_6-31G(d).energy"][:]
        ]


@pytest.mark.skipif(not (SHARED / "transition1x").exists(), reason="needs ani1x and transition1x of the shared data")
def test_real_ani1x_and_transition1x_are_fitted_each_as_lstsq_does() -> None:
    data = {"ani1x": read_ani1x(), "transition1x": read_transition1x()}
    assert {tag: len(rows) for tag, rows in data.items()} == {"ani1x": 96, "transition1x": 44}
    chunks = [chunk([s for s, _ in rows], np.array([e for _, e in rows]), tag) for tag, rows in data.items()]
    fitted = fitted_references(c for whole in chunks for c in pieces(whole, 10))
    assert not fitted.underdetermined
    for whole, (tag, rows) in zip(chunks, data.items(), strict=True):
        counts = np.array([[s.count(z) for z in NUMBERS] for s, _ in rows], float)
        expected = np.linalg.lstsq(counts, whole.energy, rcond=None)[0]
        np.testing.assert_allclose(values(fitted, tag), expected, rtol=0, atol=1e-6)
        rest = whole.energy - fitted.offsets(whole.sizes, whole.atomic_numbers, whole.tags)
        assert np.abs(rest).max() < 2e-3 * np.abs(whole.energy).max()
        np.testing.assert_allclose(rest, whole.energy - counts @ expected, rtol=0, atol=1e-6)
        one_for_both = fitted_references(replace(c, tags=whole.tags[:1].repeat(len(c.sizes))) for c in chunks)
        worse = whole.energy - one_for_both.offsets(whole.sizes, whole.atomic_numbers, whole.tags)
        assert (worse**2).sum() > (rest**2).sum() + 1e-3


@pytest.mark.skipif(not (SHARED / "3bpa").exists(), reason="needs 3bpa of the shared data")
def test_real_isolated_atoms_of_3bpa_give_atomisation_energies() -> None:
    import ase.io

    def read(name: str, selection: str) -> EnergyChunk:
        frames = ase.io.read(SHARED / "3bpa" / name, selection)
        structures = [
            Structure(a.numbers.astype(np.uint8), a.positions, a.cell.array, a.pbc, a.get_potential_energy())
            for a in frames
        ]
        return EnergyChunk.from_block(pack(structures, np.arange(len(frames)), name), "3bpa")

    atoms, molecules = read("iso_atoms.xyz", ":"), read("train_300K.xyz", ":20")
    references = isolated_references([molecules, atoms])
    assert references.energies_ev == {"3bpa": HCNO}
    rest = molecules.energy - references.offsets(molecules.sizes, molecules.atomic_numbers, molecules.tags)
    assert np.all((rest < -27 * 3.5) & (rest > -27 * 7))  # bound by 3.5 to 7 eV an atom
    fitted = fitted_references([molecules])
    assert fitted.underdetermined == ("3bpa",)


# Isolated atoms.


def test_isolated_atoms_are_single_atoms_whose_images_are_far() -> None:
    sizes = np.array([1, 1, 1, 1, 2, 1])
    cells = np.array([0.0, 3.5, 15.0, 3.5, 0.0, 3.5])[:, None, None] * np.eye(3)
    pbc = np.array([[0, 0, 0], [1, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 1]], bool)
    assert isolated_atoms(sizes, cells, pbc).tolist() == [True, False, True, True, False, False]


def test_isolated_atoms_are_found_for_each_data_set() -> None:
    first = chunk([[6, 1], [1], [6]], np.array([-1040.0, -13.5, -1029.0]), "a")
    second = chunk([[1], [1, 1], [1]], np.array([-13.6, -31.0, -13.6]), "b")
    references = isolated_references([first, second])
    assert references.energies_ev == {"a": {1: -13.5, 6: -1029.0}, "b": {1: -13.6}}
    assert (references.method, references.underdetermined) == ("isolated_atoms", ())


def test_isolated_atoms_that_contradict_one_another_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"data set 'a' has isolated atoms of H with energies -13.5 and -13.2 eV"):
        isolated_references([chunk([[1], [1]], np.array([-13.5, -13.2]))])


def test_data_without_isolated_atoms_or_without_their_energies_are_an_error() -> None:
    atom = chunk([[1]], np.array([0.0]))
    for without in (chunk([[1, 1]], np.array([-31.0])), replace(atom, has_energy=np.array([False]))):
        with pytest.raises(ValueError, match="there are no isolated atoms with an energy"):
            isolated_references([without])


# Taking off.


def test_offsets_are_sums_over_atoms_of_their_data_set() -> None:
    rng = np.random.default_rng(4)
    tables = {"a": HCNO, "b": {name: energy - 0.5 for name, energy in HCNO.items()}}
    structures = [rng.choice(NUMBERS, size).tolist() for size in rng.integers(0, 20, 200)]
    tags = rng.choice(["a", "b"], 200)
    whole = chunk(structures, np.zeros(200))
    expected = [sum(tables[tag][z] for z in s) for tag, s in zip(tags.tolist(), structures, strict=True)]
    offsets = AtomicReferences(tables).offsets(whole.sizes, whole.atomic_numbers, tags)
    assert offsets.dtype == np.float64
    np.testing.assert_allclose(offsets, expected, rtol=1e-14)


def test_totals_of_minus_1e5_ev_keep_their_micro_ev() -> None:
    counts = np.array([[40, 30, 10, 15]] * 7)
    rest = np.array([0.0, 1e-6, -1e-6, 2.5e-6, 1.0, 1.000001, -3.0])
    heavy = {name: 1.25 * energy for name, energy in HCNO.items()}
    energy = counts @ np.array(list(heavy.values())) + rest
    assert energy.max() < -9e4
    whole = from_counts(counts, energy)
    got = energy - AtomicReferences({"a": heavy}).offsets(whole.sizes, whole.atomic_numbers, whole.tags)
    np.testing.assert_allclose(got, rest, rtol=0, atol=1e-9)


def test_an_element_without_reference_is_named_with_its_data_set_and_structure() -> None:
    references = AtomicReferences({"a": HCNO, "b": {1: -13.0}})
    whole = chunk([[6, 1], [1, 1], [1, 6]], np.zeros(3))
    match = r"element C has no reference energy in data set 'b' \(needed by structure 2; there are H\): give it by hand"
    with pytest.raises(MissingReferenceError, match=match):
        references.offsets(whole.sizes, whole.atomic_numbers, np.array(["a", "b", "b"]))


def test_a_data_set_without_references_is_named() -> None:
    with pytest.raises(MissingReferenceError, match=r"no reference energies for data set 'c', only for \['a'\]"):
        AtomicReferences({"a": HCNO}).offsets(np.array([1]), np.array([1], np.uint8), np.array(["c"]))


def test_tags_must_be_as_many_as_structures(as_users_run: None) -> None:
    with pytest.raises(ValueError, match=r"tags must have shape \(2\), but has shape \(1,\)"):
        AtomicReferences({"a": HCNO}).offsets(np.array([1, 1]), np.array([1, 1], np.uint8), np.array(["a"]))


def test_no_structures_have_no_offsets() -> None:
    assert AtomicReferences({"a": HCNO}).offsets(np.zeros(0, int), np.zeros(0, np.uint8), np.zeros(0, "U1")).shape == (
        0,
    )


# Value objects, files, configurations.


@pytest.mark.parametrize(
    ("energies", "message"),
    [
        ({}, "at least one data set, but none is given"),
        ({"a": {"Hy": 1.0}}, "data set 'a' has a reference energy for 'Hy', which is not an element"),
        ({"a": {"X": 1.0}}, "for 'X', which is not an element"),
        ({"a": {"H": float("nan")}}, "reference energy of H in data set 'a' must be finite, but is nan"),
    ],
)
def test_wrong_references_are_errors(energies: dict[str, dict[str, float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AtomicReferences.from_symbols(energies)


def test_numbers_that_are_no_elements_are_errors() -> None:
    with pytest.raises(ValueError, match="for 0, which is not an element"):
        AtomicReferences({"a": {0: 1.0}})


def test_chunks_are_checked(as_users_run: None) -> None:
    with pytest.raises(ValueError, match=r"energy must be finite, but is nan at index 1 .* has_energy"):
        chunk([[1], [1]], np.array([0.0, np.nan]))
    with pytest.raises(ValueError, match=r"energy must have shape \(2\), but has shape \(3,\)"):
        chunk([[1], [1]], np.zeros(3))


def test_references_do_not_change_with_the_dictionary_they_came_from() -> None:
    table = {"a": {1: -13.5}}
    references = AtomicReferences(table)
    table["a"][1] = 0.0
    assert references.energies_ev["a"][1] == -13.5


def test_round_trip_through_json_is_exact(tmp_path: Path) -> None:
    elements = {number: -np.pi * number**2.4 for number in range(1, 119)}
    references = AtomicReferences({"ωB97X": elements, "b": {1: -13.587222780835477}}, "least_squares", ("b",))
    references.save(tmp_path / "runs" / "references.json")
    assert AtomicReferences.load(tmp_path / "runs" / "references.json") == references


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"format"', r"references\.json: not atomic references, or cut off"),
        (b"\xff\xfe", r"references\.json: not atomic references, or cut off"),
        (b"[]", r"not atomic references:\n.*references\.json: configuration: Input should be a valid dictionary"),
        (b'{"energies_ev": {"a": {"H": "low"}}, "method": "", "underdetermined": []}', r"energies_ev\.a\.H: .* number"),
        (b'{"energies_ev": {"a": {"H": NaN}}, "method": "", "underdetermined": []}', "should be a finite number"),
    ],
)
def test_wrong_files_are_errors_that_name_the_file(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "references.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        AtomicReferences.load(tmp_path / "references.json")


CHUNKS = [chunk([[1], [8], [8, 1, 1], [8, 8], [8, 1]], np.array([-13.5, -2040.0, -2078.0, -4085.0, -2058.0]))]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"kind": "given", "energies_ev": {"a": {"H": -1.0}}}, AtomicReferences({"a": {1: -1.0}})),
        ({"kind": "isolated_atoms"}, isolated_references(CHUNKS)),
        ({"kind": "least_squares"}, fitted_references(CHUNKS)),
    ],
    ids=["given", "isolated_atoms", "least_squares"],
)
def test_a_configuration_makes_the_references_it_names(config: dict[str, object], expected: AtomicReferences) -> None:
    adapter = TypeAdapter(ReferenceConfig)
    parsed = adapter.validate_json(json.dumps(config))
    assert adapter.validate_json(adapter.dump_json(parsed)).make(iter(CHUNKS)) == expected
