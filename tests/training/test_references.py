"""Energies of isolated atoms for training: of each data set, and those of a saved model."""

from pathlib import Path
from typing import Any

import jax
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from pydantic import TypeAdapter

from huefield import Ensemble, ForceField
from huefield.core.structure import TAG
from huefield.data.dataset import FileData, Part
from huefield.data.references import AtomicReferences, MissingReferenceError, ReferenceConfig
from huefield.support.errors import HuefieldError
from huefield.training.references import references_of
from tests.training.helpers import POTENTIAL

LOW, HIGH = {1: -13.0, 8: -2000.0}, {1: -14.0, 8: -2010.0}
FITTED: dict[str, Any] = {"kind": "least_squares"}


def molecules(
    energies: dict[int, float], *, formulas: tuple[str, ...] = ("H2", "OH2", "OH"), labelled: bool = True
) -> list[Atoms]:
    """Molecules whose energy is that of their atoms."""
    found = []
    for number, formula in enumerate(formulas):
        atoms = Atoms(formula)
        atoms.positions[:, 0] = [0.9 * i + 0.01 * number for i in range(len(atoms))]
        energy = {"energy": sum(energies[z] for z in atoms.numbers)} if labelled else {}
        atoms.calc = SinglePointCalculator(atoms, **energy, forces=0.0 * atoms.positions)
        found.append(atoms)
    return found


def part_of(folder: Path, frames: dict[str, list[Atoms]]) -> Part:
    entries = []
    for tag, atoms in frames.items():
        write(folder / f"{tag}.xyz", atoms, format="extxyz")
        entries.append({"path": folder / f"{tag}.xyz", **({} if tag == TAG else {"tag": tag})})
    whole = FileData.model_validate({"train": entries, "split": {"kind": "random", "fractions": {"train": 1.0}}})
    return whole.load()["train"]


def made(part: Part, given: dict[str, Any], main: str = "low", saved: Ensemble | None = None) -> AtomicReferences:
    return references_of(TypeAdapter(ReferenceConfig).validate_python(given), main, part, saved)


def model() -> Ensemble:
    potential = {**POTENTIAL, "elements": ["H", "O"]}
    config = ForceField.Config.model_validate({"potential": potential, "noise": {"kind": "local"}})
    return Ensemble.build(config, 1, key=jax.random.key(0))


@pytest.fixture
def both(tmp_path: Path) -> Part:
    return part_of(tmp_path, {"low": molecules(LOW), "high": molecules(HIGH)})


def approximately(found: AtomicReferences) -> dict[str, Any]:
    return {tag: pytest.approx(dict(row), abs=1e-5) for tag, row in found.energies_ev.items()}


def test_each_data_set_has_references_of_its_own_and_the_main_one_comes_first(both: Part) -> None:
    found = made(both, FITTED)
    assert approximately(found) == {"low": LOW, "high": HIGH}
    assert list(made(both, FITTED, main="high").energies_ev) == ["high", "low"]
    assert list(found.energies_ev) == ["low", "high"]


def test_given_references_name_each_data_set(both: Part) -> None:
    given = {"kind": "given", "energies_ev": {"high": {"H": -14.0, "O": -2010.0}, "low": {"H": -13.0, "O": -2000.0}}}
    assert made(both, given).energies_ev == {"low": LOW, "high": HIGH}
    with pytest.raises(HuefieldError, match="references lack the data set 'high', which has energies"):
        made(both, {"kind": "given", "energies_ev": {"low": {"H": -13.0, "O": -2000.0}}})
    with pytest.raises(HuefieldError, match="references have the data set 'other', but the data have low, high only"):
        made(both, {"kind": "given", "energies_ev": {**given["energies_ev"], "other": {"H": 0.0}}})


def test_one_data_set_takes_given_references_of_any_name(tmp_path: Path) -> None:
    part = part_of(tmp_path, {TAG: molecules(LOW)})
    assert made(part, {"kind": "given", "energies_ev": {"dft": {"H": -1.0}}}, TAG).energies_ev == {TAG: {1: -1.0}}
    with pytest.raises(HuefieldError, match=r"references must have one data set, but have \['a', 'b'\]"):
        made(part, {"kind": "given", "energies_ev": {"a": {}, "b": {}}}, TAG)


def test_an_element_that_lacks_a_reference_is_named_with_its_data_set(both: Part) -> None:
    given = {"kind": "given", "energies_ev": {"low": {"H": -13.0, "O": -2000.0}, "high": {"H": -14.0}}}
    references = made(both, given)
    (block,) = both.blocks()
    with pytest.raises(MissingReferenceError, match="element O has no reference energy in data set 'high'"):
        references.of_block(block)


def test_a_data_set_without_energies_takes_those_of_the_main_one(tmp_path: Path) -> None:
    part = part_of(tmp_path, {"low": molecules(LOW), "md": molecules(HIGH, labelled=False)})
    assert approximately(made(part, FITTED)) == {"low": LOW, "md": LOW}
    with pytest.raises(HuefieldError, match="no structure of the main data set 'md' has an energy"):
        made(part, FITTED, main="md")


def test_its_elements_must_be_known_to_the_main_one(tmp_path: Path) -> None:
    forces = molecules({6: -1000.0, 1: -13.0}, formulas=("CH4",), labelled=False)
    part = part_of(tmp_path, {"low": molecules(LOW), "md": forces})
    message = "'md' has no energies and takes the reference energies of 'low', which has none for C"
    with pytest.raises(HuefieldError, match=message):
        made(part, FITTED)


def test_a_saved_model_keeps_its_references_and_others_their_difference(both: Part) -> None:
    other = {1: -1.0, 8: -2.0}
    one = model().with_atom_energies(other)
    beyond = {z: other[z] + HIGH[z] - LOW[z] for z in other}
    assert approximately(made(both, FITTED, saved=one)) == {"low": other, "high": beyond}
    several = model().with_datasets({"high": other, "old": {1: 0.0}})
    below = {z: other[z] + LOW[z] - HIGH[z] for z in other}
    assert approximately(made(both, FITTED, saved=several)) == {"low": below, "high": other}
    known = model().with_datasets({"high": other, "low": {1: 0.0, 8: 0.0}})
    assert made(both, FITTED, saved=known).energies_ev == {"low": {1: 0.0, 8: 0.0}, "high": other}


def test_data_without_a_tag_have_the_references_that_a_saved_model_has_chosen(tmp_path: Path) -> None:
    part = part_of(tmp_path, {TAG: molecules(LOW)})
    saved = model().with_datasets({"a": {1: -1.0, 8: -2.0}, "b": {1: -3.0, 8: -4.0}}).with_dataset("b")
    assert made(part, FITTED, TAG, saved).energies_ev == {TAG: {1: -3.0, 8: -4.0}}
