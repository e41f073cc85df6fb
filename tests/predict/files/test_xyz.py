import io
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.io.extxyz import read_extxyz

from huefield.data.readers.ase_files import xyz_images
from huefield.predict import PredictionKeys
from huefield.predict.files.frames import _entries
from huefield.predict.files.xyz import PlainFrame, is_plain_text, parse_plain
from tests.data.readers.test_detect import real_file
from tests.predict.files.test_reading import frames, written

WANTED = PredictionKeys().all_names()
HEAD = "2\nProperties=species:S:1:pos:R:3:forces:R:3:charge:R:1"
ROWS = "\nH 0 0 0 1 2 3 0.5\nh 0 0 1e0 4 5 nan -0.5\n"
REAL = ["ani1x/ani1x_800.xyz", "acac/test_dihedral.xyz", "mlearn/Si_test.xyz", "ethanol_pbe_svp/test_dimers.xyz"]


def parsed(text: str) -> PlainFrame | None:
    return parse_plain(text.splitlines(keepends=True), WANTED)


def assert_as_ase(found: PlainFrame, atoms: Atoms) -> None:
    np.testing.assert_array_equal(found.atoms.atomic_numbers, atoms.numbers)
    np.testing.assert_array_equal(found.atoms.positions, atoms.positions)
    np.testing.assert_array_equal(found.atoms.cell, atoms.cell[:])
    np.testing.assert_array_equal(found.atoms.pbc, atoms.pbc)
    expected = _entries(atoms)
    assert found.values.keys() == WANTED & expected.keys()
    for key, value in found.values.items():
        np.testing.assert_array_equal(value, expected[key], key)
        assert str(value) == str(np.asarray(expected[key])) or value.dtype.kind == "f"


@pytest.mark.parametrize(
    "comment",
    [
        "",
        " energy=-1.5 REF_energy=2 group=slab model=a-b.c_1",
        ' Lattice="1 0 0 0.5 2 0 0 0 3" energy=1e3',
        ' pbc="T F T" Lattice="1 0 0 0.5 2 0 0 0 3" energy="1.0"',
        ' pbc="F F F" group=12 config_type=7 energy=nan note="of no use, T"',
        ' REF_stress="1 2 3 4 5 6" energy="1.0, 2.0"',
        " mtt::aux::energy_uncertainty=0.25",
    ],
)
def test_plain_frames_are_read_as_ase_reads_them(comment: str) -> None:
    text = HEAD + comment + ROWS
    found = parsed(text)
    assert found is not None
    assert_as_ase(found, next(iter(read_extxyz(io.StringIO(text), index=0))))
    assert {"forces", "charge"} <= found.names
    assert not {"Lattice", "Properties", "pbc", "species", "pos"} & found.names


def test_frames_that_ase_writes_are_plain(tmp_path: Path) -> None:
    path = written(tmp_path, frames(4))
    for image, atoms in zip(xyz_images(path), ase.io.read(path, index=":"), strict=True):
        found = parse_plain(image.content, WANTED)
        assert found is not None
        assert_as_ase(found, atoms)


@pytest.mark.parametrize("name", REAL)
def test_real_frames_are_read_as_ase_reads_them(name: str) -> None:
    path = real_file(name)
    expected = ase.io.read(path, index=":40")
    found = [parse_plain(image.content, WANTED) for image, _ in zip(xyz_images(path), expected, strict=False)]
    plain = [(frame, atoms) for frame, atoms in zip(found, expected, strict=True) if frame is not None]
    assert len(plain) == len(expected) > 0
    for frame, atoms in plain:
        assert_as_ase(frame, atoms)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + " group=T" + ROWS,
        HEAD + ' group="a b"' + ROWS,
        HEAD + " group=[1,2]" + ROWS,
        HEAD + ' group="_JSON \\"x\\""' + ROWS,
        HEAD + " energy='1'" + ROWS,
        HEAD + " energy=1 energy=2" + ROWS,
        HEAD + " energy=high-" + ROWS.replace("H", "Xy"),
        HEAD + " flag" + ROWS,
        HEAD + " forces=1" + ROWS,
        HEAD + ' pbc="1 1 1"' + ROWS,
        HEAD + ' Lattice="1 2 3"' + ROWS,
        HEAD + ROWS + "VEC1 1 0 0\n",
        HEAD + ROWS.replace("0.5", "0.5 7"),
        HEAD + ROWS.replace("1 2 3", "1 2 x"),
        HEAD + ROWS.replace("H 0", "X 0"),
        HEAD.replace("pos", "positions") + ROWS,
        HEAD.replace("species:S", "Z:I") + ROWS,
        "2\na comment" + ROWS,
    ],
)
def test_other_frames_are_left_to_ase(text: str) -> None:
    assert parsed(text) is None


def test_stresses_are_left_to_ase() -> None:
    text = HEAD + ' stress="1 0 0 0 1 0 0 0 1"' + ROWS
    assert parse_plain(text.splitlines(keepends=True), frozenset({"stress"})) is None


@pytest.mark.parametrize(
    ("text", "plain"), [("slab", True), ("a-b_1.x", True), ("T", False), ("nan", False), ("1e5", False), ("a b", False)]
)
def test_plain_text(text: str, plain: bool) -> None:
    assert is_plain_text(text) is plain
