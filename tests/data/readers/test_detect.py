import io
from collections.abc import Callable
from pathlib import Path

import ase.io
import h5py
import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from huefield.core.structure import Structure
from huefield.data.readers.ani1x import Ani1xReader
from huefield.data.readers.ase_files import AseReader
from huefield.data.readers.base import BadFrameError, Fault, UnreadableFileError
from huefield.data.readers.detect import ReaderConfig, detect, read, read_blocks
from huefield.data.readers.md17 import Md17Reader
from huefield.data.readers.transition1x import Transition1xReader
from tests.paths import SHARED


def real_file(name: str) -> Path:
    """A file of the reference data, which are not part of the repository; skips the test where they are absent."""
    folder = SHARED
    if not (folder / name).exists():
        pytest.skip(f"the reference data have no {name} in {folder}; set HUEFIELD_DATA")
    return folder / name


def extxyz() -> bytes:
    """Three frames; the second one lacks forces."""
    text, frames = io.StringIO(), [molecule("H2O"), molecule("CO"), bulk("Si", cubic=True)]
    for number, atoms in enumerate(frames):
        forces = None if number == 1 else np.full((len(atoms), 3), 0.125)
        atoms.calc = SinglePointCalculator(atoms, energy=-1.0 - number, forces=forces)
    ase.io.write(text, frames, format="extxyz")
    return text.getvalue().encode()


def npz() -> bytes:
    file = io.BytesIO()
    positions = np.array([2 * np.eye(3)] * 4)
    np.savez(file, z=np.array([8, 1, 1]), R=positions, E=np.arange(4.0), F=np.ones((4, 3, 3)))
    return file.getvalue()


def hdf5(layout: str) -> bytes:
    file, official = io.BytesIO(), layout == "transition1x"
    prefix, places = ("wB97x_6-31G(d)", "positions") if official else ("wb97x_dz", "coordinates")
    names = ["data/CO/rxn1", "data/CO/rxn1/reactant", "data/CO/rxn1/product"] if official else ["C1O1"]
    with h5py.File(file, "w") as content:
        for name in names:
            group = content.create_group(name)
            group["atomic_numbers"], group[places] = np.array([6, 8]), np.array([np.eye(2, 3)] * 3)
            group[f"{prefix}.energy"], group[f"{prefix}.forces"] = np.arange(3.0), np.ones((3, 2, 3))
    return file.getvalue()


CONTENT: dict[str, Callable[[], bytes]] = {
    "a.xyz": extxyz,
    "a.npz": npz,
    "ani.h5": lambda: hdf5("ani1x"),
    "t1x.hdf5": lambda: hdf5("transition1x"),
}
KINDS = {
    "a.xyz": AseReader(ase_format="extxyz"),
    "a.npz": Md17Reader(),
    "ani.h5": Ani1xReader(),
    "t1x.hdf5": Transition1xReader(),
}


def write(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize("name", CONTENT)
def test_format_is_found_from_the_file(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, name, CONTENT[name]())
    assert detect(path) == KINDS[name]
    structures = list(read(path))
    assert len(structures) == {"a.xyz": 3, "a.npz": 4, "ani.h5": 3, "t1x.hdf5": 9}[name]
    assert len(structures) == sum(len(block) for block in read_blocks(path, KINDS[name]))


def test_hdf5_is_known_by_its_content_whatever_its_suffix(tmp_path: Path) -> None:
    assert detect(write(tmp_path, "set.data", hdf5("ani1x"))) == Ani1xReader()


def test_real_layouts_are_told_from_each_other() -> None:
    assert detect(real_file("ani1x/ani1x_96_official_layout.h5")) == Ani1xReader()
    assert detect(real_file("transition1x/t1x_mini.h5")) == Transition1xReader()


def test_hdf5_of_another_layout_is_refused_with_the_choices(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["energies"] = np.zeros(3)
    with pytest.raises(
        UnreadableFileError,
        match=r"other.h5 is an HDF5 file of an unknown layout; .* transition1x .* ani1x .* it has energies",
    ):
        detect(tmp_path / "other.h5")


@pytest.mark.parametrize("name", ["a.xyz", "a.npz", "a.h5", "a.db", "a.traj", "a"])
def test_empty_and_absent_files_are_named_at_once(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=name):
        read(tmp_path / name)
    with pytest.raises(UnreadableFileError, match=f"{name} is empty"):
        read(write(tmp_path, name, b""))


def test_text_without_frames_holds_no_structures(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match=r"a.xyz holds no structures for the reader {\"kind\": \"ase\""):
        list(read(write(tmp_path, "a.xyz", b"\n\n  \n")))


@pytest.mark.parametrize("name", ["a.npz", "ani.h5", "t1x.hdf5"])
def test_text_under_the_name_of_a_binary_format_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match=f"{name} cannot be read; it may be truncated or damaged"):
        list(read(write(tmp_path, name, extxyz())))


def test_first_fault_raises_unless_somebody_listens(tmp_path: Path) -> None:
    damaged = extxyz().replace(b"energy=-1.0", b"energy=nan").replace(b"energy=-3.0", b"energy=inf")
    path = write(tmp_path, "a.xyz", damaged)
    with pytest.raises(BadFrameError, match=r"a.xyz, frame 0: the energy is nan"):
        list(read(path))
    faults: list[Fault] = []
    assert [s.energy for s in read(path, on_fault=faults.append)] == [-2.0]
    assert faults == [Fault(str(path), 0, "the energy is nan"), Fault(str(path), 2, "the energy is inf")]


def test_readers_are_chosen_by_kind_in_a_configuration() -> None:
    adapter: TypeAdapter = TypeAdapter(ReaderConfig)
    for reader in KINDS.values():
        assert adapter.validate_python(reader.model_dump()) == reader
    assert adapter.validate_python({"kind": "transition1x", "split": "val"}) == Transition1xReader(split="val")
    with pytest.raises(ValidationError, match="'ase', 'md17', 'ani1x', 'transition1x'"):
        adapter.validate_python({"kind": "csv"})
    with pytest.raises(ValidationError, match="is not a known key; known are kind, split, only_final, end_points"):
        adapter.validate_python({"kind": "transition1x", "spilt": "val"})


def consume(path: Path) -> None:
    """Read all; only structures, faults, and errors that name the file may come."""
    faults: list[Fault] = []
    said = [str(path)]
    try:
        for structure in read(path, KINDS[path.name], on_fault=faults.append):
            assert isinstance(structure, Structure)
            assert len(structure) > 0
            assert np.isfinite(structure.positions).all()
            assert structure.energy is None or np.isfinite(structure.energy)
    except (ValueError, OSError) as error:
        said.append(str(error))
    said.extend(str(fault) for fault in faults)
    assert all(str(path) in text and "TypeCheckError" not in text for text in said)


def damaged(content: bytes, changes: list[tuple[float, int]], kept: float) -> bytes:
    """Some bytes replaced, at places given as fractions of the length, and the end cut off."""
    changed = bytearray(content)
    for where, value in changes:
        changed[int(where * (len(changed) - 1))] = value
    return bytes(changed[: max(1, int(kept * len(changed)))])


FRACTION = st.floats(0, 1)
CHANGES = st.lists(st.tuples(FRACTION, st.integers(0, 255) | st.sampled_from(b'0129 \n.-="e')), max_size=4)


@pytest.mark.parametrize("name", ["a.xyz", "a.npz"])
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(changes=CHANGES, kept=st.just(1.0) | FRACTION)
def test_damaged_files_never_surprise(
    name: str, changes: list[tuple[float, int]], kept: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    consume(write(folder, name, damaged(CONTENT[name](), changes, kept)))


@pytest.mark.parametrize("name", ["ani.h5", "t1x.hdf5"])
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(values=st.binary(min_size=8, max_size=8), offset=st.integers(0, 17), kept=st.just(1.0) | FRACTION)
def test_damaged_hdf5_data_never_surprise(
    name: str, values: bytes, offset: int, kept: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Only the numbers are changed: HDF5's own structure is for its library to check."""
    content = bytearray(CONTENT[name]())
    forces = np.ones((3, 2, 3)).tobytes()
    start = bytes(content).index(forces) + 8 * offset
    content[start : start + 8] = values
    consume(write(tmp_path_factory.getbasetemp(), name, damaged(bytes(content), [], kept)))


def test_a_folder_that_is_no_trajectory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="is a folder, and neither a store nor a trajectory: name the files"):
        detect(tmp_path)
