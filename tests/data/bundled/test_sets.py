import json
from dataclasses import replace
from importlib.resources import files
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from huefield.core.structure import Structure
from huefield.data.bundled.sets import (
    SplitData,
    bundled,
    bundled_levels_of_theory,
    load_bundled,
    read_splits,
    write_splits,
)
from huefield.data.readers.checks import fault_reasons

SPLITS = ("train", "validation", "test_id", "test_reactions", "test_hot")


@pytest.fixture(scope="module")
def shipped() -> SplitData:
    return bundled()


def coulomb_spectrum(structure: Structure) -> np.ndarray:
    """Eigenvalues of Z_i Z_j / r_ij: the same however a molecule is turned and its atoms are ordered."""
    charges = structure.atomic_numbers.astype(float)
    distances = np.linalg.norm(structure.positions[:, None] - structure.positions[None], axis=-1)
    matrix = np.outer(charges, charges) / (distances + np.eye(len(charges)))
    np.fill_diagonal(matrix, charges**2.4 / 2)
    return np.linalg.eigvalsh(matrix)


def _padded(spectrum: np.ndarray) -> np.ndarray:
    return np.pad(spectrum, (0, 12 - len(spectrum)))


def formula(structure: Structure) -> tuple[int, ...]:
    return tuple(sorted(structure.atomic_numbers.tolist()))


def test_bundled_data_are_of_the_promised_size_and_elements(shipped: SplitData) -> None:
    assert tuple(bundled().blocks) == SPLITS
    assert sum(len(block) for block in shipped.blocks.values()) >= 3000
    assert len(shipped.block("train")) >= 2400
    assert min(len(block) for block in shipped.blocks.values()) >= 200
    for block in shipped.blocks.values():
        assert set(block.atomic_numbers.tolist()) == {1, 6, 7, 8}
        assert block.sizes.max() <= 12
    folder = Path(str(files("huefield.data"))) / "bundled"
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3e6


def test_every_bundled_structure_is_sound_and_labelled(shipped: SplitData) -> None:
    for name, block in shipped.blocks.items():
        assert fault_reasons(block) == {}, name
        assert block.has_energy.all(), name
        assert block.has_forces.all(), name
        assert np.linalg.norm(block.forces, axis=1).max() <= 30.0, name
        net = np.add.reduceat(block.forces, block.starts[:-1])
        np.testing.assert_allclose(net, 0, atol=1e-3, err_msg=name)


def test_no_configuration_is_in_two_splits(shipped: SplitData) -> None:
    spectra: dict[tuple[int, ...], dict[str, list[np.ndarray]]] = {}
    for name, block in shipped.blocks.items():
        for structure in block:
            spectra.setdefault(formula(structure), {}).setdefault(name, []).append(coulomb_spectrum(structure))
    for by_split in spectra.values():
        for one, other in combinations(by_split.values(), 2):
            distances = np.abs(np.array(one)[:, None] - np.array(other)[None]).max(-1)
            assert distances.min() > 1e-4


def test_unseen_reactions_share_no_formula_with_other_splits(shipped: SplitData) -> None:
    formulas = {name: {formula(s) for s in block} for name, block in shipped.blocks.items()}
    unseen = formulas.pop("test_reactions")
    assert len(unseen) >= 2
    assert all(not unseen & others for others in formulas.values())


def test_hot_molecules_are_known_ones_with_larger_forces(shipped: SplitData) -> None:
    hot = {group.split(":")[0] for group in load_bundled("test_hot").groups}
    known = {group.split(":")[0] for group in load_bundled("train").groups}
    assert hot <= known

    def typical_force(split: str) -> float:
        block = load_bundled(split)
        dynamics = np.array(["dynamics" in group for group in block.groups])
        return float(np.sqrt((block.select(dynamics).forces ** 2).mean()))

    assert typical_force("test_hot") > 1.4 * typical_force("train")


def test_training_and_its_test_are_alike(shipped: SplitData) -> None:
    train, test = (set(load_bundled(name).groups) for name in ("train", "test_id"))
    assert test <= train
    spread = [np.sqrt((load_bundled(name).forces ** 2).mean()) for name in ("train", "validation", "test_id")]
    np.testing.assert_allclose(spread, spread[0], rtol=0.15)


def test_bundled_labels_are_what_the_oracle_gives(shipped: SplitData) -> None:
    pytest.importorskip("tblite")
    from huefield.make_data.oracles import TbliteOracle

    oracle, rng = TbliteOracle(), np.random.default_rng(0)
    for name, block in shipped.blocks.items():
        for index in rng.integers(len(block), size=3):
            stored, again = block[int(index)], oracle.label(block[int(index)])
            assert stored.energy == pytest.approx(again.energy, abs=1e-5), name
            np.testing.assert_allclose(stored.forces, again.forces, atol=1e-4, err_msg=name)
    assert {z: oracle.atom_energy(z) for z in (1, 6, 7, 8)} == pytest.approx(shipped.atom_energies, abs=1e-5)


def test_provenance_says_what_is_there(shipped: SplitData) -> None:
    provenance = shipped.provenance
    beside = files("huefield.data") / "bundled" / "gfn2_xtb.json"
    assert json.loads(beside.read_text()) == provenance
    assert provenance["counts"] == {name: len(block) for name, block in shipped.blocks.items()}
    assert provenance["level"] == provenance["labels"]["level"] == "gfn2-xtb"
    groups = {group for block in shipped.blocks.values() for group in block.groups}
    reactions = {group for group in groups if group.startswith("reaction: ")}
    assert len(reactions) >= 8
    assert reactions == {
        name for name, unit in provenance["units"].items() if name.startswith("reaction") and "failed" not in unit
    }
    unseen = {f"reaction: {name}" for name in provenance["held_out_reactions"]}
    assert set(load_bundled("test_reactions").groups) == unseen
    molecules = {group.split(":")[0] for group in groups - reactions}
    assert len(molecules) >= 15
    assert {f"molecule: {name}" for name in molecules} <= set(provenance["units"])


def test_unknown_splits_and_levels_list_the_known() -> None:
    with pytest.raises(ValueError, match="there is no split 'test'; there are train, validation, test_id, test_rea"):
        load_bundled("test")
    with pytest.raises(ValueError, match="no data set at the level of theory 'hf' comes with huefield; there are gfn2"):
        load_bundled("train", level_of_theory="hf")
    assert bundled_levels_of_theory()[0] == "gfn2-xtb"


def test_written_data_are_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = (1, 3, 2)
    structures = [
        Structure(
            rng.integers(1, 9, n).astype(np.uint8),
            rng.standard_normal((n, 3)).astype(np.float32).astype(float),
            energy=float(rng.standard_normal()),
            forces=rng.standard_normal((n, 3)).astype(np.float32).astype(float),
            group=f"g{n % 2}",
        )
        for n in sizes
    ]
    data = SplitData.from_structures(
        {"a": structures[:2], "empty": [], "b": structures[2:]}, {1: -13.6, 8: -2000.0}, {"seed": 1}
    )
    write_splits(tmp_path / "data.npz", data)
    read = read_splits(tmp_path / "data.npz")
    assert list(read.blocks) == ["a", "empty", "b"]
    assert (len(read.block("empty")), read.atom_energies, read.provenance) == (0, {1: -13.6, 8: -2000.0}, {"seed": 1})
    for given, back in zip(structures, [*read.block("a"), *read.block("b")], strict=True):
        assert (back.energy, back.group) == (given.energy, given.group)
        np.testing.assert_array_equal(back.atomic_numbers, given.atomic_numbers)
        np.testing.assert_array_equal(back.positions, given.positions)
        np.testing.assert_array_equal(back.forces, given.forces)


@pytest.mark.parametrize("damage", ["truncated", "empty", "other", "pickle", "missing"])
def test_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "data.npz"
    one = Structure(np.array([1], np.uint8), np.zeros((1, 3)), energy=0.0, forces=np.zeros((1, 3)))
    write_splits(path, SplitData.from_structures({"train": [replace(one)]}, {1: 0.0}, {}))
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "other":
        path.write_bytes(b"these are not the data")
    elif damage == "pickle":
        np.savez(path, splits=np.array([{}], object))
    else:
        np.savez(path, splits=np.zeros(1))
    with pytest.raises(
        ValueError, match=r"data.npz is not a data set of huefield, or is damaged \(.*make or copy it again"
    ):
        read_splits(path)


class TestAtThePapersLevel:
    """The second set: the same molecules and reactions, a tenth as many configurations, at ωB97X/6-31G(d)."""

    LEVEL = "wb97x/6-31g(d)"

    def test_it_has_the_same_splits_and_two_more_and_says_how_it_was_made(self) -> None:
        data = bundled(level_of_theory=self.LEVEL)
        assert tuple(bundled(level_of_theory=self.LEVEL).blocks) == (*SPLITS, "test_larger", "test_paths")
        assert data.provenance["counts"] == {name: len(block) for name, block in data.blocks.items()}
        assert sum(data.provenance["counts"].values()) >= 1000
        assert data.provenance["labels"]["program"] == "pyscf"
        beside = files("huefield.data") / "bundled" / "wb97x_6_31g_d.json"
        assert json.loads(beside.read_text()) == data.provenance

    def test_training_has_small_molecules_and_no_image_of_a_path(self) -> None:
        blocks = bundled(level_of_theory=self.LEVEL).blocks
        heavy = {name: [int((s.atomic_numbers > 1).sum()) for s in block] for name, block in blocks.items()}
        assert max(heavy["train"] + heavy["validation"] + heavy["test_id"] + heavy["test_hot"]) == 3
        assert min(heavy["test_larger"]) == 4
        spectra = {name: np.array([_padded(coulomb_spectrum(s)) for s in block]) for name, block in blocks.items()}
        for name in ("train", "validation"):
            between = np.abs(spectra[name][:, None] - spectra["test_paths"][None]).max(-1)
            assert between.min() > 1e-4, name

    def test_paths_are_whole_and_in_order(self) -> None:
        images = load_bundled("test_paths", level_of_theory=self.LEVEL)
        assert {group: images.groups.count(group) for group in images.groups} == dict.fromkeys(images.groups, 11)
        assert len(set(images.groups)) == 19
        for first, second in pairwise(images):
            if first.group == second.group:
                assert np.linalg.norm(second.positions - first.positions, axis=1).max() < 1.6

    def test_molecules_are_bound_and_forces_have_no_sum(self) -> None:
        data = bundled(level_of_theory=self.LEVEL)
        for block in data.blocks.values():
            for structure in block:
                atoms = sum(data.atom_energies[int(z)] for z in structure.atomic_numbers)
                assert -6.0 < (structure.energy - atoms) / len(structure) < -2.0
                np.testing.assert_allclose(structure.forces.sum(0), 0.0, atol=1e-5)

    def test_labels_are_what_the_oracle_gives(self) -> None:
        pytest.importorskip("pyscf")
        from huefield.make_data.oracles import PyscfOracle

        stored = min(load_bundled("validation", level_of_theory=self.LEVEL), key=len)
        again = PyscfOracle().label(stored)
        assert stored.energy == pytest.approx(again.energy, abs=1e-4)
        np.testing.assert_allclose(stored.forces, again.forces, atol=1e-3)
