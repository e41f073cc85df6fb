import json
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from huefield.data.readers.ase_files import AseReader
from huefield.data.readers.base import MixedLabelsError, Remark, UnreadableFileError, reader_of_training, reader_option
from huefield.data.readers.detect import read, read_atoms


def water(**entries: object) -> Atoms:
    """A water molecule with numbers in info and arrays."""
    atoms = molecule("H2O")
    for name, value in entries.items():
        (atoms.arrays if np.ndim(value) == 2 else atoms.info)[name] = value
    return atoms


def remarks_on(path: Path, reader: AseReader | None = None) -> list[Remark]:
    remarks: list[Remark] = []
    list(read(path, reader, on_remark=remarks.append))
    return remarks


@pytest.mark.parametrize("names", [("REF_energy", "energy"), ("energy", "REF_energy")])
def test_a_file_with_energies_under_two_names_is_refused(names: tuple[str, str], tmp_path: Path) -> None:
    first, second = names
    ase.io.write(
        tmp_path / "a.extxyz", [water(**{first: -1.0}), water(), water(**{first: -3.0}), water(**{second: 2.0})]
    )
    match = rf"a\.extxyz: the energy label is '{first}' in frame 0, but '{second}' in frame 3. Choose one name: .*"
    with pytest.raises(MixedLabelsError, match=match + rf"energy_keys\": \[\"{first}\"\].* without this label"):
        list(read(tmp_path / "a.extxyz", on_fault=lambda fault: None))
    chosen = read(tmp_path / "a.extxyz", AseReader(energy_keys=(first,)))
    assert [s.energy for s in chosen] == [-1.0, None, -3.0, None]


def test_a_preferred_name_that_appears_later_is_refused() -> None:
    """The first frame says what `energy` is; a later one has two energies, of which the other would win."""
    frames = [water(energy=-1.0), water(energy=-2.0, REF_energy=-3.0)]
    with pytest.raises(
        UnreadableFileError, match=r"atoms: the energy label is 'energy' in frame 0, but 'REF_energy' in"
    ):
        list(read_atoms(frames))


def test_forces_under_two_names_are_refused() -> None:
    frames = [water(energy=-1.0, REF_forces=np.zeros((3, 3))), water(energy=-1.0, forces=np.ones((3, 3)))]
    with pytest.raises(UnreadableFileError, match=r"forces label is 'REF_forces' in frame 0, but 'forces' in frame 1"):
        list(read_atoms(frames))


def test_advice_on_mixed_names_covers_all_quantities_and_keeps_other_settings(tmp_path: Path) -> None:
    """The advised reader reads the file: it does not lead to the next error."""
    kcal = {"energy": -1.0, "forces": np.ones((3, 3))}
    ase.io.write(tmp_path / "a.extxyz", [water(**kcal), water(REF_energy=-2.0, REF_forces=np.zeros((3, 3)))])
    with pytest.raises(MixedLabelsError, match=r"the energy label is .*; the forces label is") as caught:
        list(read(tmp_path / "a.extxyz", AseReader(ase_format="extxyz", energy_unit="kcal/mol")))
    text = str(caught.value).partition("--reader '")[2].partition("'")[0]
    advised = {"kind": "ase", "energy_unit": "kcal/mol", "energy_keys": ["energy"], "forces_keys": ["forces"]}
    assert json.loads(text) == advised
    first, second = read(tmp_path / "a.extxyz", AseReader.model_validate(advised))
    assert first.energy is not None
    assert first.forces is not None
    assert second.energy is second.forces is None
    assert "--set 'data.reader={" in str(caught.value.advised(reader_of_training))
    assert "--reader" not in str(caught.value.advised(reader_of_training))


def test_each_quantity_has_a_name_of_its_own() -> None:
    (block,) = read_atoms([water(REF_energy=-1.0, forces=np.ones((3, 3))) for _ in range(2)])
    assert block.energy.tolist() == [-1.0, -1.0]
    assert block.has_forces.all()


def test_labels_under_other_names_are_listed_with_the_settings_that_select_them(tmp_path: Path) -> None:
    frames = [water(step=i, dft_energy=-1.0 - i, mp2_energy=-2.0, dft_forces=np.full((3, 3), 0.5)) for i in range(3)]
    ase.io.write(tmp_path / "a.extxyz", frames)
    (remark,) = remarks_on(tmp_path / "a.extxyz")
    assert remark.kind == "labels"
    assert "no energy under REF_energy or energy, but there is dft_energy, mp2_energy; " in remark.text
    assert "no forces under REF_forces or forces, but there is dft_forces" in remark.text
    option = remark.advised(reader_option).partition("--reader '")[2].partition("'")[0]
    chosen = AseReader.model_validate(json.loads(option))
    assert [s.energy for s in read(tmp_path / "a.extxyz", chosen)] == [-1.0, -2.0, -3.0]
    assert all(s.forces is not None for s in read(tmp_path / "a.extxyz", chosen))
    assert f"--set 'data.reader={option}'" in remark.advised(reader_of_training)
    assert "--reader" not in str(remark) + remark.advised(reader_of_training)
    assert remarks_on(tmp_path / "a.extxyz", chosen) == []


def test_names_that_say_nothing_are_listed_if_there_are_no_others() -> None:
    remarks: list[Remark] = []
    list(read_atoms([water(U0=-1.0, homo=0.5)], on_remark=remarks.append))
    assert [remark.text.partition(";")[0] for remark in remarks] == [
        "no energy under REF_energy or energy, but there is U0, homo"
    ]


@pytest.mark.parametrize("entries", [{}, {"note": "relaxed"}, {"energy": 1.0, "dft_energy": 2.0}])
def test_no_remark_without_other_labels(entries: dict[str, object]) -> None:
    remarks: list[Remark] = []
    list(read_atoms([water(**entries)], on_remark=remarks.append))
    assert remarks == []


def test_the_first_charged_frame_is_named_once() -> None:
    frames = [water(), water(), water(charge=1, multiplicity=2), water(charge=-1)]
    remarks: list[Remark] = []
    list(read_atoms(frames, source="ions", on_remark=remarks.append))
    assert [remark.kind for remark in remarks] == ["electrons"]
    assert str(remarks[0]).startswith("ions, frame 2: the atoms have a charge and unpaired electrons, which models do")


@pytest.mark.parametrize("key", ["group", "config_type"])
def test_entries_named_group_or_config_type_are_groups(key: str, tmp_path: Path) -> None:
    frames = [water(energy=0.0, **{key: "liquid"}), water(energy=0.0, **{key: 7}), water(energy=0.0)]
    ase.io.write(tmp_path / "a.extxyz", frames)
    assert [s.group for s in read(tmp_path / "a.extxyz")] == ["liquid", "7", ""]
    assert [s.group for s in read(tmp_path / "a.extxyz", AseReader(group_key=None))] == ["", "", ""]
