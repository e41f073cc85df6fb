"""Files that nobody should have: each is refused in one line with file, frame and cure."""

import time
from pathlib import Path

import numpy as np
import pytest

from huefield.data.readers.base import BadFrameError, UnreadableFileError
from huefield.data.readers.detect import read
from tests.data.readers.test_ase_files import GOOD

FORCES = "forces:R:3"
FRAMES = {
    "truncated": (GOOD[:-30], "frame 1: the file is truncated: it announces 2 atoms and ends after 1"),
    "count only": ("2", "frame 1: the file is truncated: it announces 2 atoms and ends after 0"),
    "nan position": (GOOD.replace("1.1", "nan"), "frame 1: a position is NaN or infinite"),
    "column too few": (GOOD.replace(" 0.3\nO", "\nO"), "the line of atom 0 has 6 columns, but Properties names 7"),
    "column too many": (GOOD.replace("0.3\nO", "0.3 7\nO"), "the line of atom 0 has 8 columns, but Properties names 7"),
    "column twice": (GOOD.replace(FORCES, f"{FORCES}:{FORCES}"), "Properties names the column 'forces' twice: rename"),
    "no positions": (
        GOOD.replace("pos:", "velo:"),
        r"Properties has no positions \(pos:R:3\), but species, velo",
    ),
    "no number": (
        GOOD.replace(FORCES, "forces:R:x"),
        "Properties must be NAME:TYPE:COLUMNS, repeated, but is",
    ),
    "huge column": (GOOD.replace(FORCES, "forces:R:999999999"), "has 7 columns, but Properties names 1000000003"),
    "energy twice": (GOOD.replace("pbc", "energy=9 pbc"), "the comment has energy twice, as 1.5 and 9: remove one"),
}


@pytest.mark.parametrize("case", FRAMES)
def test_a_bad_frame_is_named_with_its_reason(case: str, tmp_path: Path) -> None:
    text, reason = FRAMES[case]
    (tmp_path / "a.xyz").write_text(GOOD + text)
    with pytest.raises(BadFrameError, match=rf"^\S*a\.xyz, frame 1: .*{reason.removeprefix('frame 1: ')}"):
        list(read(tmp_path / "a.xyz"))


FILES = {
    "empty": (b"", r"a\.xyz is empty: write it again, or name another file"),
    "blank": (b"\n\n", r"a\.xyz holds no structures for the reader .* state it with --reader"),
    "binary": (
        np.random.default_rng(0).bytes(2_000_000).replace(b"\n", b"x"),
        "frame 0: expected .* is it an xyz",
    ),
    "utf-16": (GOOD.encode("utf-16"), "frame 0: expected a line with the number of atoms, but found .* is it an xyz"),
    "billion": (
        b"1000000000\n" + GOOD.encode() * 1000,
        "frame 0: the first line announces 1000000000 atoms, but",
    ),
    "digits": (b"9" * 5000 + b"\n", "frame 0: the first line announces 9{30} atoms, but at most"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_is_refused_at_once(case: str, tmp_path: Path) -> None:
    content, reason = FILES[case]
    (tmp_path / "a.xyz").write_bytes(content)
    start = time.process_time()
    with pytest.raises(UnreadableFileError, match=reason) as caught:
        list(read(tmp_path / "a.xyz", on_fault=lambda fault: None))
    assert time.process_time() - start < 2
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "reason"), [("a.db", "not a db file"), ("a.traj", "not a traj file")])
def test_a_file_with_the_wrong_suffix_is_named(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(GOOD)
    with pytest.raises(UnreadableFileError, match=rf"{name}, frame 0: .*; the file is damaged or {reason}"):
        list(read(tmp_path / name))


def test_folders_and_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="is a folder, and neither a store nor a trajectory: name"):
        list(read(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"there is no file .*a\.xyz"):
        list(read(tmp_path / "a.xyz"))


@pytest.mark.parametrize("text", [GOOD.replace("\n", "\r\n"), "\ufeff" + GOOD, GOOD.replace("pbc", "energy=1.5 pbc")])
def test_harmless_oddities_are_read(text: str, tmp_path: Path) -> None:
    """Line ends of Windows, a byte order mark, an entry that is repeated."""
    (tmp_path / "a.xyz").write_bytes(text.encode())
    (structure,) = read(tmp_path / "a.xyz")
    assert structure.energy == 1.5
    np.testing.assert_array_equal(structure.forces, [[0.1, 0.2, 0.3]] * 2)
