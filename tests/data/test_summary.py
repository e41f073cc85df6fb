from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase.build import bulk, molecule
from scipy.spatial.distance import pdist

from huefield.core.structure import Block, Structure, pack
from huefield.core.units import BOHR_ANGSTROM, HARTREE_EV, KCAL_PER_MOL_EV, KJ_PER_MOL_EV
from huefield.data.readers.detect import read_blocks
from huefield.data.summary import (
    SAMPLE,
    Distribution,
    UnitHint,
    describe,
    summarise_data,
    thomas_fermi_hartree,
    unit_hints,
)
from tests.data.store.test_writer import random_block
from tests.paths import SHARED as DATA

WATER_HARTREE, METHANE_HARTREE = -76.4, -40.5


def molecules(count: int = 20, *, energy_factor: float = HARTREE_EV, length_factor: float = 1.0) -> Block:
    """Water and methane with all-electron energies and forces of thermal size."""
    rng, structures = np.random.default_rng(0), []
    for index in range(count):
        atoms = molecule("CH4" if index % 2 else "H2O")
        hartree = METHANE_HARTREE if index % 2 else WATER_HARTREE
        positions = (atoms.positions + 0.03 * rng.normal(size=(len(atoms), 3))) * length_factor
        forces = rng.normal(size=(len(atoms), 3)) * energy_factor / HARTREE_EV / length_factor
        numbers = atoms.numbers.astype(np.uint8)
        structures.append(Structure(numbers, positions, energy=hartree * energy_factor, forces=forces))
    return pack(structures, np.arange(count), "molecules")


def test_counts_and_ranges_are_those_of_plain_loops() -> None:
    rng = np.random.default_rng(0)
    blocks = [random_block(40, rng=rng), random_block(30, rng=rng, labels=("energy",))]
    structures = [structure for block in blocks for structure in block]
    summary = summarise_data(blocks, rng=np.random.default_rng(1))
    assert (summary.structures, summary.atoms) == (70, sum(map(len, structures)))
    assert (summary.smallest, summary.largest) == (min(map(len, structures)), max(map(len, structures)))
    assert [summary.sizes[n] for n in range(1, 21)] == [sum(len(s) == n for s in structures) for n in range(1, 21)]
    assert summary.with_energy == sum(s.energy is not None for s in structures)
    assert summary.with_forces == sum(s.forces is not None for s in structures)
    assert summary.with_stress == sum(s.stress is not None for s in structures)
    assert summary.periodic == sum(bool(s.pbc.any()) for s in structures)
    assert summary.elements["H"] == sum(int((s.atomic_numbers == 1).sum()) for s in structures)
    per_atom = [s.energy / len(s) for s in structures if s.energy is not None]
    assert (summary.energy_per_atom.minimum, summary.energy_per_atom.maximum) == (min(per_atom), max(per_atom))
    assert summary.energy_per_atom.median == pytest.approx(np.median(per_atom))
    forces = np.concatenate([s.forces for s in structures if s.forces is not None])
    assert summary.force_norm.maximum == pytest.approx(np.sqrt((forces**2).sum(1)).max())
    assert summary.force_component.rms == pytest.approx(np.sqrt((forces**2).mean()))
    kept = [s.positions[~np.isin(s.atomic_numbers, [2, 10, 18, 36, 54, 86])] for s in structures if len(s) > 2]
    assert summary.shortest_distance.minimum == pytest.approx(min(pdist(p).min() for p in kept if len(p) > 1))


def test_large_distributions_keep_a_fair_sample_and_the_exact_range() -> None:
    values, rng = np.random.default_rng(0).random(4 * SAMPLE), np.random.default_rng(1)
    distribution = Distribution()
    for part in np.array_split(np.sort(values), 7):
        distribution.add(part, rng=rng)
    assert distribution.sample.size == SAMPLE
    assert (distribution.count, distribution.maximum) == (values.size, values.max())
    np.testing.assert_allclose(np.quantile(distribution.sample, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.01)


def test_duplicates_are_the_same_atoms_in_the_same_places() -> None:
    block = molecules(10)
    moved = replace(block, positions=block.positions + 0.001)
    nearly = replace(block, positions=np.round(block.positions, 6), source="copy")
    assert summarise_data([block, moved], rng=np.random.default_rng(0)).duplicates == 0
    assert summarise_data([block, block.select(np.arange(10) < 4)], rng=np.random.default_rng(0)).duplicates == 4
    assert summarise_data(
        [nearly, replace(nearly, positions=nearly.positions + 1e-9)], rng=np.random.default_rng(0)
    ).duplicates


def test_data_in_the_right_units_raise_no_suspicion() -> None:
    assert summarise_data([molecules()], rng=np.random.default_rng(0)).hints == []


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("hartree", 1.0), ("kcal/mol", HARTREE_EV / KCAL_PER_MOL_EV), ("kJ/mol", HARTREE_EV / KJ_PER_MOL_EV)],
)
def test_energies_and_forces_in_other_units_are_suspected(unit: str, factor: float) -> None:
    energy, forces = summarise_data([molecules(energy_factor=factor)], rng=np.random.default_rng(0)).hints
    assert (energy.quantity, energy.unit, energy.certain) == ("energies", unit, unit != "hartree")
    assert f"energies look like {unit}, not eV" in str(energy)
    assert ("forces look like hartree" if unit == "hartree" else "forces look like kcal/mol/Å") in str(forces)
    assert not forces.certain


@pytest.mark.parametrize(("unit", "factor"), [("bohr", 1 / BOHR_ANGSTROM), ("nm", 0.1)])
def test_lengths_in_other_units_are_suspected(unit: str, factor: float) -> None:
    block = replace(molecules(length_factor=factor), forces=molecules().forces)
    (hint,) = summarise_data([block], rng=np.random.default_rng(0)).hints
    assert f"lengths look like {unit}, not Å" in str(hint)


def test_metals_with_valence_energies_raise_no_suspicion() -> None:
    images = [bulk(name).repeat(2) for name in ("Na", "Al", "Cu", "Fe")]
    structures = [Structure(a.numbers.astype(np.uint8), a.positions, energy=-3.0 * len(a)) for a in images]
    assert summarise_data([pack(structures, np.arange(4), "metals")], rng=np.random.default_rng(0)).hints == []
    assert unit_hints(*[float("nan")] * 4) == []


def test_a_few_wild_frames_raise_no_suspicion() -> None:
    block = molecules(200)
    wild = block.forces.copy()
    wild[:5] = 1000.0
    assert summarise_data([replace(block, forces=wild)], rng=np.random.default_rng(0)).hints == []


def test_strained_frames_among_relaxed_ones_raise_no_suspicion() -> None:
    block = molecules(200)
    mostly_relaxed = np.where(np.arange(len(block.forces))[:, None] % 10, 1e-3 * block.forces, block.forces)
    assert summarise_data([replace(block, forces=mostly_relaxed)], rng=np.random.default_rng(0)).hints == []


@pytest.mark.parametrize(
    ("per_ev", "suspected"), [(1.0, False), (1 / KCAL_PER_MOL_EV, True), (1 / KJ_PER_MOL_EV, True)]
)
def test_forces_of_a_soft_metal_in_other_units_are_suspected(per_ev: float, suspected: bool) -> None:
    rng, lithium = np.random.default_rng(0), bulk("Li", cubic=True).repeat(3)
    numbers = lithium.numbers.astype(np.uint8)
    structures = [
        Structure(
            numbers,
            lithium.positions + 0.1 * rng.normal(size=(54, 3)),
            energy=-1.9 * 54 * per_ev,
            forces=0.22 * rng.normal(size=(54, 3)) * per_ev,
        )
        for _ in range(5)
    ]
    hints = summarise_data([pack(structures, np.arange(5), "lithium")], rng=np.random.default_rng(0)).hints
    assert (
        any("forces look like kcal/mol/Å or kJ/mol/Å, not eV/Å: their median is" in str(hint) for hint in hints)
        == suspected
    )


def test_valence_energies_that_look_like_hartree_are_excused_in_the_hint() -> None:
    chlorine = -0.7687 * 17 ** (7 / 3)  # hartree by the law; a pseudopotential leaves -14.9
    (hint,) = unit_hints(-14.9 * HARTREE_EV / chlorine, 1.0, 1.0, 1.0)
    assert "energies look like hartree, not eV, unless they include valence electrons only" in str(hint)
    assert not hint.certain


def test_energies_below_those_of_all_electrons_are_certainly_wrong() -> None:
    (hint,) = unit_hints(100.0 * HARTREE_EV, 1.0, 1.0, 1.0)
    assert (hint.unit, hint.certain) == (None, True)


REAL = sorted(path for suffix in ("xyz", "h5") for path in DATA.rglob(f"*.{suffix}"))
UNSEEN_LENGTHS = ("iso_atoms", "isolated_atoms", "test_dimers")
"""Single atoms have no distances, and scans of two atoms have all of them."""


@pytest.mark.skipif(not REAL, reason=f"no reference data at {DATA}; set HUEFIELD_DATA")
@pytest.mark.parametrize("path", REAL, ids=[f"{path.parent.name}/{path.name}" for path in REAL])
def test_real_files_are_suspected_in_wrong_units_only(path: Path) -> None:
    blocks = list(read_blocks(path))

    def hints(energy: float, length: float) -> list[UnitHint]:
        scaled = (
            replace(b, energy=b.energy * energy, forces=b.forces * energy / length, positions=b.positions * length)
            for b in blocks
        )
        return summarise_data(scaled, rng=np.random.default_rng(0)).hints

    assert hints(1.0, 1.0) == []
    for unit in (HARTREE_EV, KCAL_PER_MOL_EV, KJ_PER_MOL_EV):
        assert hints(1 / unit, 1.0)
    assert any("bohr, not Å" in str(hint) for hint in hints(1.0, 1 / BOHR_ANGSTROM)) == (
        path.stem not in UNSEEN_LENGTHS
    )


def test_the_thomas_fermi_sum_is_that_of_the_atoms() -> None:
    expected = [-0.7687 * (8 ** (7 / 3) + 2), -0.7687 * (6 ** (7 / 3) + 4)]
    np.testing.assert_allclose(thomas_fermi_hartree(molecules(2)), expected)


def test_a_description_names_everything_that_was_asked_for() -> None:
    text = "\n".join(describe(summarise_data([molecules(energy_factor=1.0)], rng=np.random.default_rng(0))))
    for part in ("structures        20", "atoms             80, 3 to 5", "H 60, C 10, O 10", "duplicates        0"):
        assert part in text
    assert "without labels    energy 0, forces 0, stress 20" in text
    assert "suspicious        energies look like hartree" in text
    assert "none" in "\n".join(describe(summarise_data([], rng=np.random.default_rng(0))))
