from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms

from huefield.data import open_part
from huefield.data.opening import open_data
from huefield.data.readers.ase_files import AseReader
from huefield.data.readers.md17 import Md17Reader
from huefield.support.errors import HuefieldError
from tests.training.helpers import write_waters


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_waters(tmp_path_factory.mktemp("data") / "waters.xyz")


def test_atoms_have_the_labels_of_the_reader(file: Path) -> None:
    """Atoms in memory and the same atoms in a file are the same structures."""
    atoms = ase.io.read(file, ":")
    expected = open_part("all", [file]).block(np.arange(len(atoms)))
    for given in (atoms, str(file), file, [file]):
        part = open_data(given)
        found = part.block(np.arange(len(part)))
        for name in ("positions", "energy", "has_energy", "forces", "has_forces"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert len(open_data(atoms[0])) == 1


def test_a_reader_finds_labels_of_atoms() -> None:
    atoms = Atoms("H2", [[0, 0, 0], [0, 0, 0.7]], info={"dft": -31.0})
    part = open_data([atoms], reader=AseReader(energy_keys=("dft",)))
    assert part.block(np.array([0])).energy == [-31.0]


def test_data_without_labels_are_refused_with_the_names_that_may_be_labels(tmp_path: Path) -> None:
    atoms = Atoms("H2", [[0, 0, 0], [0, 0, 0.7]], info={"dft_energy": -31.0})
    ase.io.write(tmp_path / "a.xyz", atoms, format="extxyz")
    match = (
        r"no structure of .* has an energy or forces\. .* there is dft_energy; .*\"energy_keys\": \[\"dft_energy\"\]"
    )
    for data in (atoms, tmp_path / "a.xyz"):
        with pytest.raises(HuefieldError, match=match):
            open_data(data)


def test_a_part_stays_what_it_is(file: Path) -> None:
    part = open_part("mine", [file])
    assert open_data(part) is part


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {}, "the list is empty"),
        ([Atoms("H"), "a.xyz"], {}, "ase.Atoms or paths of files, but these are Atoms, str"),
        ([1.0], {}, "but these are float"),
        (Atoms("H"), {"part": "test"}, "part has no effect here"),
        (Atoms("H"), {"reader": Md17Reader()}, "has the kind 'ase', but this one is 'md17'"),
    ],
)
def test_other_things_are_refused(as_users_run: None, data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(HuefieldError, match=message):
        open_data(data, **options)


def test_options_without_effect_are_refused(file: Path) -> None:
    with pytest.raises(HuefieldError, match=r"part has no effect here: .* is not the folder of a run"):
        open_data(file, part="test")
    for options in ({"part": "test"}, {"reader": AseReader()}):
        with pytest.raises(HuefieldError, match="has no effect here"):
            open_data(open_part("mine", [file]), **options)  # type: ignore[arg-type]


def test_remarks_are_warnings_even_if_there_are_labels(tmp_path: Path) -> None:
    """A charge is not an input of models, and forces may be there under another name."""
    atoms = Atoms("H2", [[0, 0, 0], [0, 0, 0.7]], info={"energy": -31.0, "charge": 1})
    ase.io.write(tmp_path / "a.xyz", atoms, format="extxyz")
    for data in (atoms, tmp_path / "a.xyz"):
        with pytest.warns(UserWarning, match="a charge, which models do not take as input"):
            open_data(data)
