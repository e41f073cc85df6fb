import json
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from huefield.core.structure import Structure
from huefield.data.readers.base import BadFrameError, Fault, UnreadableFileError
from huefield.data.readers.detect import read, read_blocks
from huefield.data.readers.transition1x import Transition1xReader
from tests.data.readers.test_detect import real_file

ENERGY, FORCES = "wB97x_6-31G(d).energy", "wB97x_6-31G(d).forces"


def put(group: h5py.Group, frames: int, *, rng: np.random.Generator) -> None:
    group["atomic_numbers"] = np.array([6, 8, 1, 1])
    group["positions"] = 2 * np.eye(4, 3) + rng.uniform(-0.1, 0.1, (frames, 4, 3))
    group[ENERGY], group[FORCES] = rng.normal(size=frames), rng.normal(size=(frames, 4, 3))


def make(path: Path) -> Path:
    """A small file of the official layout: two formulas of two reactions, one formula in each of two splits."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for split, formula in (("train", "CH2O"), ("val", "C2H2O")):
            for reaction in ("rxn0001", "rxn0002"):
                table = file.create_group(f"data/{formula}/{reaction}")
                put(table, 5, rng=rng)
                for place in ("reactant", "transition_state", "product"):
                    put(table.create_group(place), 1, rng=rng)
            file.require_group(split)[formula] = h5py.SoftLink(f"/data/{formula}")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make(tmp_path / "t1x.h5")


def by_hand(path: Path, top: str, places: list[str]) -> Iterator[tuple[np.ndarray, np.ndarray, float, np.ndarray, str]]:
    with h5py.File(path) as file:
        for formula in file[top]:
            for reaction in file[top][formula]:
                for place in places:
                    table = file[f"{top}/{formula}/{reaction}/{place}"]
                    for row in range(table["positions"].shape[0]):
                        yield (
                            table["atomic_numbers"][:], table["positions"][row], table[ENERGY][row], table[FORCES][row],
                            f"{formula}/{reaction}",
                        )  # fmt: skip


def assert_same(structures: list[Structure], expected: list[tuple]) -> None:
    assert len(structures) == len(expected) > 0
    for structure, (numbers, positions, energy, forces, group) in zip(structures, expected, strict=True):
        np.testing.assert_array_equal(structure.atomic_numbers, numbers)
        np.testing.assert_array_equal(structure.positions, positions)
        assert structure.energy == energy
        np.testing.assert_array_equal(structure.forces, forces)
        assert structure.group == group
        assert not structure.pbc.any()


CHOICES = [
    ({}, ["reactant", "product", "."]),
    ({"end_points": "drop"}, ["."]),
    ({"only_final": True}, ["reactant", "transition_state", "product"]),
]


@pytest.mark.parametrize(("choice", "places"), CHOICES)
@pytest.mark.parametrize(("split", "top"), [("all", "data"), ("train", "train"), ("val", "val"), ("test", "test")])
def test_real_file_is_read_as_by_hand(choice: dict, places: list[str], split: str, top: str) -> None:
    path = real_file("transition1x/t1x_mini.h5")
    structures = list(read(path, Transition1xReader(split=split, **choice)))
    assert_same(structures, list(by_hand(path, top, places)))


def test_real_splits_are_the_official_ones_and_share_no_formula() -> None:
    path = real_file("transition1x/t1x_mini.h5")
    official = json.loads(real_file("transition1x/official_split_formulas.json").read_text())
    found = {}
    for split in ("train", "val", "test"):
        found[split] = {s.group.split("/")[0] for s in read(path, Transition1xReader(split=split))}
        assert found[split] <= set(official[split])
    assert not found["train"] & found["val"]
    assert not found["train"] & found["test"]
    assert not found["val"] & found["test"]


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_slices_do_not_change_what_is_read(path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huefield.data.readers.base.MAX_ROWS", rows)
    assert_same(list(read(path)), list(by_hand(path, "data", ["reactant", "product", "."])))
    assert max(len(block) for block in read_blocks(path)) == min(rows, 5)


def test_fault_names_file_reaction_and_row(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file[f"data/CH2O/rxn0002/{ENERGY}"][3] = np.nan
    with pytest.raises(BadFrameError, match=r"t1x.h5:/data/CH2O/rxn0002, frame 3: the energy is nan"):
        list(read(path))
    faults: list[Fault] = []
    assert len(list(read(path, on_fault=faults.append))) == 4 * 7 - 1
    assert [fault.frame for fault in faults] == [3]


def replace(path: Path, name: str, value: np.ndarray) -> None:
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = value


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (f"data/CH2O/rxn0001/{FORCES}", np.zeros((5, 3, 3)), r"forces must have shape \(5, 4, 3\)"),
        (f"data/CH2O/rxn0001/{ENERGY}", np.zeros(4), r"energy must have shape \(5\)"),
        ("data/CH2O/rxn0001/atomic_numbers", np.array([6, 8, 1, 300]), r"unknown element: atomic numbers \[300\]"),
        ("data/CH2O/rxn0001/atomic_numbers", np.array([[6, 8, 1, 1]]), "atomic numbers must have shape"),
        ("data/CH2O/rxn0001/positions", np.ones((5, 4, 3)), "two atoms are closer than"),
    ],
)
def test_arrays_that_do_not_fit_are_faults_of_their_reaction_only(
    path: Path, name: str, value: np.ndarray, reason: str
) -> None:
    replace(path, name, value)
    faults: list[Fault] = []
    assert len(list(read(path, on_fault=faults.append))) == 4 * 7 - 5
    assert [fault.frame for fault in faults] == [0, 1, 2, 3, 4]
    with pytest.raises(BadFrameError, match=rf"t1x.h5:/data/CH2O/rxn0001, frame 0: {reason}"):
        list(read(path))


def test_split_that_is_not_there_is_named_with_those_that_are(path: Path) -> None:
    with pytest.raises(
        UnreadableFileError, match=r"t1x.h5 has no /test, which split='test' needs; it has data, train, val"
    ):
        list(read(path, Transition1xReader(split="test")))


def test_split_that_links_to_nothing_is_named(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["data/CH2O"]
    with pytest.raises(UnreadableFileError, match=r":/train/CH2O is a link to /data/CH2O, which is not in the file"):
        list(read(path, Transition1xReader(split="train")))


def test_split_without_reactions_is_not_silently_empty(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.create_group("test")
    with pytest.raises(UnreadableFileError, match=r"t1x.h5 holds no structures for the reader {.*\"split\": \"test\""):
        list(read(path, Transition1xReader(split="test")))


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (f"data/CH2O/rxn0001/{FORCES}", r"/data/CH2O/rxn0001 has no data set 'wB97x_6-31G\(d\).forces'; it has atomic"),
        ("data/CH2O/rxn0001/product", r"/data/CH2O/rxn0001/product is not in the file; beside it are atomic_numbers"),
    ],
)
def test_missing_parts_are_named_with_what_is_there(path: Path, missing: str, message: str) -> None:
    with h5py.File(path, "r+") as file:
        del file[missing]
    with pytest.raises(UnreadableFileError, match=message):
        list(read(path))


@pytest.mark.parametrize("place", ["data", "data/CH2O", "data/CH2O/rxn0001", "data/CH2O/rxn0001/reactant"])
def test_array_in_place_of_a_group_is_another_layout(path: Path, place: str) -> None:
    replace(path, place, np.zeros(3))
    with pytest.raises(UnreadableFileError, match=f":/{place} is not a group"):
        list(read(path, Transition1xReader()))


def test_text_in_place_of_numbers_is_refused(path: Path) -> None:
    replace(path, f"data/CH2O/rxn0001/{ENERGY}", np.array([b"one", b"two"]))
    with pytest.raises(UnreadableFileError, match=r"rxn0001/wB97x.*energy must be an array of numbers, but is 1-dim"):
        list(read(path))


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_truncated_file_is_an_error_that_names_it(path: Path, kept: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(UnreadableFileError, match=r"t1x.h5 (is empty|cannot be read; it may be truncated or damaged)"):
        list(read(path))
