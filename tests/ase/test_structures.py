"""Structures to begin with, and files that are no good for it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from huefield.ase.structures import read_structure, read_structures


@pytest.fixture
def three(tmp_path: Path) -> Path:
    frames = [Atoms("H2", [[0, 0, 0], [0, 0, 0.7 + 0.1 * number]]) for number in range(3)]
    for frame in frames:
        frame.calc = SinglePointCalculator(frame, energy=-1.0)
    write(tmp_path / "three.xyz", frames, format="extxyz")
    return tmp_path / "three.xyz"


def test_the_last_frame_is_the_default(three: Path) -> None:
    assert read_structure(three).get_distance(0, 1) == pytest.approx(0.9)
    assert read_structure(three, 1).get_distance(0, 1) == pytest.approx(0.8)
    assert read_structure(three).calc is None
    with pytest.raises(ValueError, match=r"three\.xyz has no frame 3; they are counted from 0"):
        read_structure(three, 3)
    with pytest.raises(ValueError, match="frame is -1"):
        read_structure(three, -1)


def test_all_frames(three: Path, tmp_path: Path) -> None:
    found = read_structures(three)
    np.testing.assert_allclose([atoms.get_distance(0, 1) for atoms in found], [0.7, 0.8, 0.9])
    write(tmp_path / "three.traj", found)
    assert len(read_structures(tmp_path / "three.traj")) == 3


@pytest.mark.parametrize("read", [read_structure, read_structures])
def test_errors_name_the_bad_file(read: Callable[[Path], object], three: Path, tmp_path: Path) -> None:
    whole = three.read_text()
    cases = {
        "cut.xyz": (whole[:-20], r"cut\.xyz, frame 2: the file is truncated.*correct the file, or remove this frame"),
        "letters.xyz": (whole.replace("0.000", "zero"), r"letters\.xyz, frame [02]: .*correct the file"),
        "element.xyz": (whole.replace("H ", "Qq "), r"element\.xyz, frame [02]: .*Qq"),
        "empty.xyz": ("", r"empty\.xyz has no structure"),
        "empty.cif": ("", r"empty\.cif.*Empty file"),
        "strange.abc": ("what?\n", r"strange\.abc: ASE does not know this kind of file .* such as \.xyz or \.cif"),
        "no.traj": ("what?\n" * 9, r"no\.traj"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            read(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read(tmp_path / "none.xyz")
    with pytest.raises(ValueError, match="is a folder"):
        read(tmp_path)
