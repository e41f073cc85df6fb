import zipfile
from pathlib import Path

import ase.units
import numpy as np
import pytest

from huefield.core.units import KCAL_PER_MOL_EV as KCAL
from huefield.data.readers.base import BadFrameError, UnknownUnitsError, UnreadableFileError
from huefield.data.readers.detect import detect, read, read_blocks
from huefield.data.readers.md17 import Md17Reader, NpzKeys

BOHR = ase.units.create_units("2018")["Bohr"]
NUMBERS = np.array([8, 1, 1])
KEYS = NpzKeys(atomic_numbers="z", positions="R", energy="E", forces="F")


def arrays(frames: int = 7, *, dtype: type = float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    positions = (2 * np.eye(3) + rng.uniform(-0.1, 0.1, (frames, 3, 3))).astype(dtype)
    return {"z": NUMBERS, "R": positions, "E": rng.normal(size=frames) - 1e5, "F": rng.normal(size=(frames, 3, 3))}


def renamed(md17: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = {"z": "nuclear_charges", "R": "coords", "E": "energies", "F": "forces"}
    return {names[key]: value for key, value in md17.items()} | {"old_indices": np.arange(3)}


@pytest.mark.parametrize("name", ["md17", "rmd17"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("rows", [2, 7, 100])
def test_both_sets_are_read_in_ev(name: str, save, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huefield.data.readers.base.MAX_ROWS", rows)
    content, path = arrays(), tmp_path / "molecule.npz"
    save(path, **(content if name == "md17" else renamed(content)))
    structures = list(read(path))
    assert len(structures) == 7
    assert max(len(block) for block in read_blocks(path)) == min(rows, 7)
    for row, structure in enumerate(structures):
        np.testing.assert_array_equal(structure.atomic_numbers, NUMBERS)
        np.testing.assert_array_equal(structure.positions, content["R"][row])
        assert structure.energy == content["E"][row] * KCAL
        np.testing.assert_array_equal(structure.forces, content["F"][row] * KCAL)


def test_energies_are_turned_from_kcal_per_mol_as_ase_does(tmp_path: Path) -> None:
    content, path = arrays(), tmp_path / "molecule.npz"
    np.savez(path, **content)
    factor = ase.units.create_units("2018")["kcal"] / ase.units.create_units("2018")["mol"]
    np.testing.assert_allclose([s.energy for s in read(path)], content["E"] * factor, rtol=1e-9)


def test_arrays_in_single_precision_columns_and_other_byte_orders(tmp_path: Path) -> None:
    content, path = arrays(dtype=np.float32), tmp_path / "molecule.npz"
    big = content["F"].astype(">f8")
    np.savez(path, **{**content, "E": content["E"][:, None], "F": big})
    (block,) = read_blocks(path)
    np.testing.assert_array_equal(block.positions, content["R"].reshape(-1, 3))
    np.testing.assert_allclose(block.energy, content["E"] * KCAL, rtol=1e-12)
    np.testing.assert_allclose(block.forces, content["F"].reshape(-1, 3) * KCAL, rtol=1e-12)


def test_energies_alone_are_enough(tmp_path: Path) -> None:
    content, path = arrays(), tmp_path / "molecule.npz"
    del content["F"]
    np.savez(path, **content)
    assert [s.forces for s in read(path)] == [None] * 7


@pytest.mark.parametrize(
    ("reader", "stated", "energy", "length"),
    [
        (Md17Reader(), {"e_unit": "eV", "r_unit": "Ang"}, 1.0, 1.0),
        (Md17Reader(), {"e_unit": np.bytes_("kcal/mol"), "r_unit": "bohr"}, KCAL, BOHR),
        (Md17Reader(energy_unit="meV"), {"e_unit": "eV"}, 1e-3, 1.0),
        (Md17Reader(length_unit="nm"), {}, KCAL, 10.0),
    ],
)
def test_units_are_those_stated_then_those_of_the_file(
    reader: Md17Reader, stated: dict, energy: float, length: float, tmp_path: Path
) -> None:
    content, path = arrays(), tmp_path / "molecule.npz"
    np.savez(path, **content, **stated)
    (block,) = read_blocks(path, reader)
    np.testing.assert_allclose(block.energy, content["E"] * energy, rtol=1e-9)
    np.testing.assert_allclose(block.positions, content["R"].reshape(-1, 3) * length, rtol=1e-9)
    np.testing.assert_allclose(block.forces, content["F"].reshape(-1, 3) * energy / length, rtol=1e-9)


def test_unit_that_is_not_known_is_asked_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", **arrays(), e_unit="Rydberg")
    with pytest.raises(
        UnknownUnitsError, match=r"m.npz states the unit e_unit = 'Rydberg', known are kcal/mol.*--reader"
    ):
        list(read(tmp_path / "m.npz"))


def test_arrays_of_other_names_have_no_units_until_they_are_stated(tmp_path: Path) -> None:
    content, path = arrays(), tmp_path / "m.npz"
    np.savez(path, Z=content["z"], X=content["R"], U=content["E"])
    with pytest.raises(UnknownUnitsError, match=r"m.npz has neither .* it has U, X, Z. State them: --reader '.*md17"):
        detect(path)
    with pytest.raises(UnknownUnitsError, match=r"m.npz has neither"):
        list(read(path, Md17Reader()))
    keys = NpzKeys(atomic_numbers="Z", positions="X", energy="U", forces=None)
    with pytest.raises(UnknownUnitsError, match=r"m.npz does not state its units. State them: --reader '{"):
        list(read(path, Md17Reader(keys=keys, length_unit="angstrom")))
    stated = Md17Reader(keys=keys, energy_unit="hartree", length_unit="bohr", group="run 1")
    (block,) = read_blocks(path, stated)
    np.testing.assert_allclose(block.positions, content["R"].reshape(-1, 3) * BOHR, rtol=1e-9)
    assert set(block.groups) == {"run 1"}


def test_stated_names_that_are_not_there_are_listed(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", z=NUMBERS, R=np.zeros((1, 3, 3)))
    with pytest.raises(UnreadableFileError, match=r"m.npz has no arrays E, F; it has R, z"):
        list(read(tmp_path / "m.npz", Md17Reader(keys=KEYS, energy_unit="eV", length_unit="angstrom")))


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (Path(self.path),))


@pytest.mark.parametrize("key", ["z", "R", "E"])
def test_nothing_is_ever_unpickled(tmp_path: Path, key: str) -> None:
    trap = np.empty(7, object)
    trap[:] = [Trap(str(tmp_path / "sprung"))] * 7
    np.savez(tmp_path / "m.npz", **{**arrays(), key: trap})
    with pytest.raises(
        UnreadableFileError, match=r"m.npz.*(allow_pickle=False|must be an array of numbers, but is obj)"
    ):
        list(read(tmp_path / "m.npz"))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"E": np.zeros(6)}, r"m.npz has arrays of different lengths \(R: 7, E: 6, F: 7\)"),
        (
            {"R": np.asfortranarray(arrays()["R"])},
            "m.npz: array R is in Fortran order; save it with numpy.ascontiguous",
        ),
        ({"E": np.array(1.0)}, r"m.npz: array E must be an array of numbers, but is float64 of shape \(\)"),
        ({"R": np.zeros((0, 3, 3)), "E": np.zeros(0), "F": np.zeros((0, 3, 3))}, "m.npz holds no structures"),
    ],
)
def test_arrays_of_the_wrong_kind_are_refused(tmp_path: Path, change: dict, message: str) -> None:
    np.savez(tmp_path / "m.npz", **{**arrays(), **change})
    with pytest.raises(UnreadableFileError, match=message):
        list(read(tmp_path / "m.npz"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"F": np.full((7, 3, 3), np.nan)}, "m.npz, frame 0: a force is NaN or infinite"),
        ({"F": np.zeros((7, 2, 3))}, r"m.npz, frame 0: forces must have shape \(7, 3, 3\), but has shape \(7, 2, 3\)"),
        ({"z": np.array([8, 1, 1000])}, r"m.npz, frame 0: unknown element: atomic numbers \[1000\]"),
        ({"R": np.zeros((7, 3, 3))}, "m.npz, frame 0: two atoms are closer"),
    ],
)
def test_bad_frames_are_faults(tmp_path: Path, change: dict, message: str) -> None:
    np.savez(tmp_path / "m.npz", **{**arrays(), **change})
    with pytest.raises(BadFrameError, match=message):
        list(read(tmp_path / "m.npz"))


def test_truncated_archive_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", **arrays())
    content = (tmp_path / "m.npz").read_bytes()
    (tmp_path / "m.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(UnreadableFileError, match=r"m.npz cannot be read; it may be truncated or damaged \(BadZipFile"):
        list(read(tmp_path / "m.npz"))


@pytest.mark.parametrize(
    ("cut", "message"), [(-8, "array E ends early; the file is truncated"), (8, "array E is longer")]
)
def test_array_shorter_or_longer_than_it_says_is_an_error(tmp_path: Path, cut: int, message: str) -> None:
    np.savez(tmp_path / "whole.npz", **arrays())
    with zipfile.ZipFile(tmp_path / "whole.npz") as whole, zipfile.ZipFile(tmp_path / "m.npz", "w") as other:
        for name in whole.namelist():
            content = whole.read(name)
            changed = content[:cut] if cut < 0 else content + bytes(cut)
            other.writestr(name, changed if name == "E.npy" else content)
    with pytest.raises(UnreadableFileError, match=f"m.npz: {message}"):
        list(read(tmp_path / "m.npz"))


def test_flipped_bit_in_an_array_is_noticed(tmp_path: Path) -> None:
    content = arrays()
    np.savez(tmp_path / "m.npz", **content)
    whole = bytearray((tmp_path / "m.npz").read_bytes())
    whole[bytes(whole).index(content["F"].tobytes()) + 20] ^= 1
    (tmp_path / "m.npz").write_bytes(whole)
    with pytest.raises(UnreadableFileError, match=r"m.npz cannot be read.*Bad CRC-32 for file 'F.npy'"):
        list(read(tmp_path / "m.npz"))
