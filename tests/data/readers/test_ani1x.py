from pathlib import Path

import h5py
import numpy as np
import pytest

from huefield.data.readers.ani1x import Ani1xReader
from huefield.data.readers.base import BadFrameError, Fault, LeftOut, UnreadableFileError
from huefield.data.readers.detect import read
from tests.data.readers.test_detect import real_file

HARTREE = 27.211386245988  # CODATA 2018


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two formulas; the first two of three conformations of the first one lack a label."""
    path, rng = tmp_path / "ani.h5", np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for formula, n in (("C1O1H2", 3), ("O1H2C2", 4)):
            group = file.create_group(formula)
            group["atomic_numbers"] = np.array([6, 8, 1, 1], np.uint8)
            group["coordinates"] = (2 * np.eye(4, 3) + rng.uniform(-0.1, 0.1, (n, 4, 3))).astype(np.float32)
            group["wb97x_dz.energy"] = rng.normal(size=n)
            group["wb97x_dz.forces"] = rng.normal(size=(n, 4, 3)).astype(np.float32)
        file["C1O1H2/wb97x_dz.energy"][0] = np.nan
        file["C1O1H2/wb97x_dz.forces"][1, 3, 1] = np.nan
    return path


@pytest.mark.parametrize("level", ["wb97x_dz", "wb97x_tz"])
def test_real_file_is_read_as_by_hand(level: str) -> None:
    path = real_file("ani1x/ani1x_96_official_layout.h5")
    left_out: list[LeftOut] = []
    reader = Ani1xReader(energy_key=f"{level}.energy", forces_key=f"{level}.forces")
    found = read(path, reader, on_left_out=left_out.append)
    missing = 0
    with h5py.File(path) as file:
        for formula in file:
            table = file[formula]
            for row in range(len(table["coordinates"])):
                energy, forces = table[f"{level}.energy"][row], table[f"{level}.forces"][row]
                if np.isnan(energy) or np.isnan(forces).any():
                    missing += 1
                    continue
                structure = next(found)
                np.testing.assert_array_equal(structure.atomic_numbers, table["atomic_numbers"][:])
                np.testing.assert_array_equal(structure.positions, table["coordinates"][row])
                assert structure.energy == energy * HARTREE
                np.testing.assert_array_equal(structure.forces, forces.astype(float) * HARTREE)
                assert structure.group == formula
    assert next(found, None) is None
    assert sum(item.count for item in left_out) == missing
    assert missing == {"wb97x_dz": 0, "wb97x_tz": 23}[level]


def test_real_energies_without_forces() -> None:
    left_out: list[LeftOut] = []
    reader = Ani1xReader(energy_key="ccsd(t)_cbs.energy", forces_key=None)
    structures = list(read(real_file("ani1x/ani1x_96_official_layout.h5"), reader, on_left_out=left_out.append))
    assert all(s.forces is None and s.energy is not None for s in structures)
    assert (len(structures), sum(item.count for item in left_out)) == (3, 93)


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_rows_without_a_label_are_left_out_and_counted(path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huefield.data.readers.base.MAX_ROWS", rows)
    left_out: list[LeftOut] = []
    assert [s.group for s in read(path, on_left_out=left_out.append)] == ["C1O1H2"] + ["O1H2C2"] * 4
    assert sum(item.count for item in left_out) == 2
    assert {(item.source, item.reason) for item in left_out} == {
        (f"{path}:/C1O1H2", "a requested label is missing (NaN)")
    }


def test_error_of_who_listens_is_not_taken_for_one_of_the_file(path: Path) -> None:
    def full(left_out: LeftOut) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match=r"^no space left$"):
        list(read(path, on_left_out=full))


def test_only_requested_labels_must_be_there(path: Path) -> None:
    assert len(list(read(path, Ani1xReader(forces_key=None)))) == 6


def test_file_with_nothing_but_missing_labels_is_no_error_but_counted(path: Path) -> None:
    left_out: list[LeftOut] = []
    with h5py.File(path, "r+") as file:
        for formula in file:
            file[formula]["wb97x_dz.energy"][...] = np.nan
    assert list(read(path, on_left_out=left_out.append)) == []
    assert sum(item.count for item in left_out) == 7
    assert list(read(path)) == []


def test_faults_name_formula_and_row_also_behind_rows_left_out(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["C1O1H2/wb97x_dz.energy"][2] = np.inf
        file["O1H2C2/coordinates"][2, 0, 0] = np.nan
    faults: list[Fault] = []
    assert len(list(read(path, on_fault=faults.append))) == 3
    assert [str(fault) for fault in faults] == [
        f"{path}:/C1O1H2, frame 2: the energy is inf",
        f"{path}:/O1H2C2, frame 2: a position is NaN or infinite",
    ]
    with pytest.raises(BadFrameError, match=r"ani.h5:/C1O1H2, frame 2: the energy is inf"):
        list(read(path))


def test_forces_of_another_length_are_faults(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["O1H2C2/wb97x_dz.forces"]
        file["O1H2C2/wb97x_dz.forces"] = np.zeros((2, 4, 3))
    with pytest.raises(BadFrameError, match=r"/O1H2C2, frame 0: forces must have shape \(4, 4, 3\), but has shape"):
        list(read(path))


def test_key_that_is_not_there_is_named_with_those_that_are(path: Path) -> None:
    with pytest.raises(
        UnreadableFileError,
        match=r"/C1O1H2 has no data set 'hf.energy'; it has atomic_numbers, coordinates, wb97x_dz.e",
    ):
        list(read(path, Ani1xReader(energy_key="hf.energy")))


def test_other_layout_is_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["C1H4"] = np.zeros(3)
    with pytest.raises(UnreadableFileError, match=r"ani.h5:/C1H4 is not a group with the data set 'atomic_numbers'"):
        list(read(path, Ani1xReader()))


def test_file_without_formulas_holds_no_structures(path: Path) -> None:
    with h5py.File(path, "w"):
        pass
    with pytest.raises(UnreadableFileError, match=r"ani.h5 holds no structures for the reader {\"kind\": \"ani1x\""):
        list(read(path, Ani1xReader()))
