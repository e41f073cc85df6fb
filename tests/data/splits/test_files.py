import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from huefield.data.splits.files import split_from_file
from huefield.data.splits.splits import SplitError, SplitOrigin, random_split
from tests.data.splits.test_splits import as_lists, by_hand


def test_round_trip_through_json(tmp_path: Path) -> None:
    split = random_split(100, {"train": 0.3, "naïve": 0.2}, key=jax.random.key(7))
    split.save(tmp_path / "runs" / "split.json")
    again = split_from_file(tmp_path / "runs" / "split.json")
    assert as_lists(again) == as_lists(split)
    assert (again.num_structures, again.origin) == (100, split.origin)
    assert again.origin == SplitOrigin(method="random", key_data=(0, 7), fractions={"train": 0.3, "naïve": 0.2})


def write_lists(path: Path) -> None:
    path.write_text(json.dumps({"train": [0, 3, 1], "test": [4]}))


def write_npz(path: Path) -> None:
    np.savez(path, train=np.array([0, 3, 1], np.int32), test=np.array([4]))


def write_names(path: Path) -> None:
    path.write_text("train\ntrain\n\n train \ntest\n")


@pytest.mark.parametrize(("name", "write"), [("s.json", write_lists), ("s.npz", write_npz), ("s.txt", write_names)])
def test_files_of_all_kinds_say_the_same(name: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / name)
    split = split_from_file(tmp_path / name, 5)
    assert as_lists(split) == {"train": [0, 1, 3], "test": [4]}
    assert split.origin == SplitOrigin(method="file")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.json", b'{"train": [0, 1', r"s\.json: not JSON, or cut off"),
        ("s.json", b"\xff\xfe\x00", r"s\.json: not JSON, or cut off"),
        ("s.json", b"[1, 2]", r"s\.json: not a split:\ns\.json: parts: Input should be a valid dictionary"),
        ("s.json", b'{"train": [0, 1.5]}', r"s\.json: not a split:\ns\.json: parts\.train\.1: .*integer \(got 1\.5\)"),
        ("s.json", b'{"train": [0, true]}', r"parts\.train\.1: .*integer \(got True\)"),
        ("s.json", b'{"train": [18446744073709551616]}', r"parts\.train\.0: Input should be less than"),
        ("s.json", b'{"train": [9]}', r"s\.json: part 'train' has index 9, but there are 5 structures"),
        ("s.json", b'{"format": "other"}', r"s\.json: not a split:\ns\.json: format: Input should be 'huefield-split'"),
        ("s.npz", b"PK\x03\x04 and then nothing", r"s\.npz: not an npz file of index arrays, or cut off"),
        ("s.npz", b"", r"s\.npz: not an npz file of index arrays, or cut off"),
        ("s.txt", b"train\ntest\n", r"s\.txt: the split has 2 structures, but the data have 5"),
        ("s.txt", b"\n\n\n\n\n", r"s\.txt: a split needs at least one part"),
        ("s.txt", b"train\xff\n", r"s\.txt: not a text file"),
        ("s.csv", b"", r"s\.csv: a split file ends in one of \['\.json', '\.npz', '\.txt'\], not in '\.csv'"),
    ],
)
def test_wrong_files_are_errors_that_name_the_file(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SplitError, match=message):
        split_from_file(tmp_path / name, 5)


def test_npz_of_pickles_or_of_an_array_alone_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "pickled.npz", train=np.array([{}, None], object))
    with pytest.raises(SplitError, match=r"pickled\.npz: not an npz file of index arrays"):
        split_from_file(tmp_path / "pickled.npz", 5)
    with (tmp_path / "alone.npz").open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(SplitError, match=r"alone\.npz: not an npz file of index arrays"):
        split_from_file(tmp_path / "alone.npz", 5)


def test_the_number_of_structures_must_be_known_and_that_of_the_data(tmp_path: Path) -> None:
    by_hand(4, train=[0]).save(tmp_path / "s.json")
    with pytest.raises(SplitError, match="the split has 4 structures, but the data have 5"):
        split_from_file(tmp_path / "s.json", 5)
    write_lists(tmp_path / "s.json")
    with pytest.raises(SplitError, match="but not the number of structures: pass n"):
        split_from_file(tmp_path / "s.json")
