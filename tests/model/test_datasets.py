"""Total energies as in one of several data sets."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from ase import Atoms

from huefield import Calculator, Ensemble, ForceField, load, save
from huefield.core.structure import Structure, pack
from huefield.model.datasets import Datasets
from huefield.model.modelfile import ModelFileError, open_model
from huefield.noise import LocalNoise
from huefield.potentials import PaiNN
from huefield.predict.batches import predict_blocks
from huefield.predict.elements import KnownElements
from huefield.support.errors import HuefieldError
from tests.model.test_modelfile import forge, header_of

WATER = Structure(np.array([8, 1, 1], np.uint8), np.array([[0, 0, 0], [0.96, 0, 0], [-0.2, 0.93, 0]]))
HYDROGEN = Structure(np.array([1, 1], np.uint8), np.array([[0, 0, 0], [0, 0, 0.75]]))
REFERENCES = {"pbe": {1: -13.5, 8: -2040.0}, "wb97x": {1: -13.7, 8: -2045.0}, "atoms": {1: -13.6}}


@pytest.fixture(scope="module")
def plain() -> Ensemble:
    potential = PaiNN.Config(elements=("H", "O"), features=4, layers=1, radial_functions=3, cutoff_angstrom=3.0)
    config = ForceField.Config(potential=potential, noise=LocalNoise.Config())
    return Ensemble.build(config, 2, key=jax.random.key(0))


@pytest.fixture(scope="module")
def pooled(plain: Ensemble) -> Ensemble:
    return plain.with_datasets(REFERENCES)


def isolated(tag: str, structure: Structure = WATER) -> float:
    return sum(REFERENCES[tag][int(number)] for number in structure.atomic_numbers)


def energy_of(ensemble: Ensemble, structure: Structure = WATER) -> float:
    block = pack([structure], np.zeros(1, int), "test")
    (found,) = predict_blocks(ensemble, [block])
    assert found.energy is not None
    return float(found.energy.mean[0])


def test_the_first_data_set_is_chosen_and_others_can_be(plain: Ensemble, pooled: Ensemble) -> None:
    bare = energy_of(plain)
    assert energy_of(pooled) == pytest.approx(bare + isolated("pbe"), abs=1e-9)
    assert energy_of(pooled.with_dataset("wb97x")) == pytest.approx(bare + isolated("wb97x"), abs=1e-9)
    assert pooled.with_dataset("wb97x").with_dataset("pbe") == pooled


def test_each_structure_has_the_references_of_its_own_data_set(plain: Ensemble, pooled: Ensemble) -> None:
    """Whatever is chosen, which counts only for structures that name none."""
    structures = [replace(WATER, tag="wb97x"), WATER, replace(HYDROGEN, tag="atoms"), replace(WATER, tag="pbe")]
    block = pack(structures, np.arange(4), "test")
    for chosen in ("pbe", "wb97x"):
        expected = [isolated("wb97x"), isolated(chosen), isolated("atoms", HYDROGEN), isolated("pbe")]
        np.testing.assert_allclose(pooled.with_dataset(chosen).isolated_energies_of(block), expected, rtol=1e-15)
    assert energy_of(pooled, structures[0]) == pytest.approx(energy_of(plain) + isolated("wb97x"), abs=1e-9)


def test_differences_of_energies_use_the_data_set_of_each_structure(pooled: Ensemble) -> None:
    moved = replace(WATER, positions=WATER.positions * 1.05)
    same = pooled.energy_difference(replace(WATER, tag="wb97x"), replace(moved, tag="wb97x")).value
    assert same == pytest.approx(pooled.energy_difference(WATER, moved).value, abs=1e-9)
    shift = isolated("wb97x") - isolated("pbe")
    assert pooled.energy_difference(WATER, replace(moved, tag="wb97x")).value == pytest.approx(same + shift, abs=1e-9)


def test_a_model_of_one_data_set_takes_any_structure(plain: Ensemble) -> None:
    alone = plain.with_datasets({"pbe": REFERENCES["pbe"]})
    assert alone == plain.with_atom_energies(REFERENCES["pbe"])
    assert energy_of(alone, replace(WATER, tag="other")) == energy_of(alone)
    with pytest.raises(HuefieldError, match="trained on one data set, and 'pbe' cannot be chosen"):
        alone.with_dataset("pbe")


def test_an_unknown_data_set_is_refused_with_the_known_ones(pooled: Ensemble) -> None:
    message = "does not know the data set 'b3lyp': it was trained on pbe, wb97x, atoms"
    with pytest.raises(HuefieldError, match=message):
        pooled.with_dataset("b3lyp")
    with pytest.raises(HuefieldError, match=message):
        energy_of(pooled, replace(WATER, tag="b3lyp"))
    with pytest.raises(HuefieldError, match=message):
        open_model(pooled, dataset="b3lyp")
    with pytest.raises(HuefieldError, match=message):
        Calculator(pooled, dataset="b3lyp")


def test_an_element_without_a_reference_in_the_data_set_is_named(pooled: Ensemble) -> None:
    chosen = pooled.with_dataset("atoms")
    with pytest.raises(HuefieldError, match=r"atomic number 8 in data set 'atoms', only of \[1\]"):
        chosen.isolated_energies(WATER.atomic_numbers)
    with pytest.raises(HuefieldError, match="contains O, for which the model has no reference energies in this data"):
        energy_of(chosen)
    elements = KnownElements(pooled)
    block = pack([WATER, replace(WATER, tag="atoms"), replace(HYDROGEN, tag="atoms")], np.arange(3), "test")
    np.testing.assert_array_equal(elements.unknown_in(block), [False] * 3 + [True, False, False] + [False] * 2)


def test_calibration_and_quantiles_keep_the_data_sets(pooled: Ensemble) -> None:
    assert pooled.with_calibration(None).with_typical(None) == pooled
    assert pooled.with_atom_energies(REFERENCES["pbe"]).datasets is None


def test_references_must_be_finite(plain: Ensemble) -> None:
    with pytest.raises(ValueError, match="energies of isolated atoms of 'b'"):
        plain.with_datasets({"a": {1: 0.0}, "b": {1: float("nan")}})


class TestFile:
    def test_several_data_sets_are_format_version_5(self, pooled: Ensemble, tmp_path: Path) -> None:
        path = tmp_path / "model.safetensors"
        save(pooled.with_dataset("wb97x"), path)
        metadata = header_of(path.read_bytes())["__metadata__"]
        assert metadata["format_version"] == "5"
        assert json.loads(metadata["atom_energies"]) == [[1, -13.7], [8, -2045.0]]
        loaded = load(path)
        assert loaded.datasets == pooled.with_dataset("wb97x").datasets
        assert loaded.atom_energies == ((1, -13.7), (8, -2045.0))
        assert energy_of(loaded.with_dataset("pbe")) == energy_of(pooled)

    def test_one_data_set_is_written_as_before(self, plain: Ensemble, tmp_path: Path) -> None:
        save(plain.with_atom_energies(REFERENCES["pbe"]), tmp_path / "before")
        save(plain.with_datasets({"pbe": REFERENCES["pbe"]}), tmp_path / "now")
        assert (tmp_path / "before").read_bytes() == (tmp_path / "now").read_bytes()
        assert header_of((tmp_path / "now").read_bytes())["__metadata__"]["format_version"] == "3"

    @pytest.mark.parametrize(
        ("entry", "fault"),
        [
            ({"chosen": "b3lyp"}, "does not know the data set 'b3lyp'"),
            ({"references": [{"tag": "pbe", "atom_energies": [[1, -13.6]]}]}, "at least 2 items"),
            ({"references": [{"tag": "pbe", "atom_energies": [[1, -13.6]]}] * 2}, "must have different names"),
            ({"references": [{"tag": t, "atom_energies": [[0, 0.0]]} for t in ("pbe", "b")]}, "greater than or equal"),
        ],
    )
    def test_damaged_data_sets_are_refused(
        self, pooled: Ensemble, tmp_path: Path, entry: dict[str, object], fault: str
    ) -> None:
        path = tmp_path / "model.safetensors"
        save(pooled, path)
        assert pooled.datasets is not None
        content = {**pooled.datasets.model_dump(mode="json"), **entry}
        forge(path, metadata={"datasets": json.dumps(content)})
        with pytest.raises(ModelFileError, match=f"its 'datasets' cannot be used: .*{fault}"):
            load(path)


def test_names_of_data_sets_are_in_the_order_of_training() -> None:
    datasets = Datasets.model_validate(
        {"chosen": "b", "references": [{"tag": tag, "atom_energies": [[1, -1.0]]} for tag in ("b", "a")]}
    )
    assert datasets.tags == ("b", "a")


def test_the_calculator_says_whose_energies_it_predicts(plain: Ensemble, pooled: Ensemble) -> None:
    atoms = Atoms(WATER.atomic_numbers, WATER.positions)
    energies = {}
    for tag in ("pbe", "wb97x"):
        atoms.calc = Calculator(pooled, dataset=tag, warn_above=None)
        energies[tag] = atoms.get_potential_energy()
        assert f"energies of data set {tag}" in repr(atoms.calc)
    assert energies["wb97x"] - energies["pbe"] == pytest.approx(isolated("wb97x") - isolated("pbe"), abs=1e-9)
    assert "data set" not in repr(Calculator(plain, warn_above=None))
