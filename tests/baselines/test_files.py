"""Files with results of a baseline."""

from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms

from huefield.baselines import AseBaseline
from huefield.baselines.files import write_baseline
from huefield.core.structure import BaselineResult, Structure
from huefield.data.dataset import open_part
from huefield.support.errors import HuefieldError
from tests.baselines.molecules import atoms_of, copper, emt, shaken
from tests.baselines.test_computing import Counting


@pytest.fixture
def source(tmp_path: Path) -> Path:
    frames: list[Atoms] = []
    for index, structure in enumerate([shaken("CH4"), copper(), shaken("CO"), shaken("H2O")]):
        atoms = atoms_of(structure)
        atoms.info |= {"REF_energy": -1.5 * index, "group": f"a group {index}"}
        atoms.arrays["REF_forces"] = structure.positions * 0.1
        frames.append(atoms)
    ase.io.write(tmp_path / "in.xyz", frames, format="extxyz")
    return tmp_path / "in.xyz"


@pytest.mark.parametrize("name", ["out.extxyz", "out.hues"])
def test_labels_and_results_come_back(source: Path, name: str) -> None:
    out = source.with_name(name)
    done = write_baseline(source, out, emt())
    assert (done.structures, done.faults) == (4, ())
    before, after = (open_part("all", [path]).block(np.arange(4)) for path in (source, out))
    for field in ("sizes", "positions", "cells", "pbc", "energy", "has_energy", "forces", "has_forces"):
        np.testing.assert_allclose(getattr(after, field), getattr(before, field), rtol=1e-15, err_msg=field)
    assert after.groups == before.groups
    for structure, found in zip(before, after, strict=True):
        expected = emt().compute(structure)
        assert found.baseline is not None
        assert found.baseline.energy == pytest.approx(expected.energy, rel=1e-14)
        np.testing.assert_allclose(found.baseline.forces, expected.forces, rtol=1e-13, atol=1e-15)
        assert (found.baseline.stress is None) == (expected.stress is None)
        if expected.stress is not None and found.baseline.stress is not None:
            np.testing.assert_allclose(found.baseline.stress, expected.stress, rtol=1e-12, atol=1e-15)
    assert not list(source.parent.glob("*.results"))


def test_failures_stop_at_the_end_and_nothing_is_computed_twice(source: Path) -> None:
    out, first, again = source.with_name("out.xyz"), Counting(), Counting()
    with pytest.raises(HuefieldError, match=r"no result for 1 structures:\n.*in.xyz, frame 2: .*NaN.*\n.*--skip-bad"):
        write_baseline(source, out, first)
    assert first.computed == 4
    assert not out.exists()
    done = write_baseline(source, out, again, skip_bad=True)
    assert again.computed == 2  # the failure is tried again, and the first result is compared
    assert done.structures == 3
    assert [fault.frame for fault in done.faults] == [2]
    assert len(ase.io.read(out, ":")) == 3


def test_wrong_places_are_refused(source: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file or store"):
        write_baseline(source.with_name("none.xyz"), source.with_name("out.xyz"), emt())
    with pytest.raises(HuefieldError, match=r"call the file NAME\.extxyz"):
        write_baseline(source, source.with_name("out.traj"), emt())
    with pytest.raises(HuefieldError, match="would be overwritten"):
        write_baseline(source, source, emt())
    source.with_name("old.xyz").write_text("mine")
    with pytest.raises(FileExistsError, match="replace it with --overwrite"):
        write_baseline(source, source.with_name("old.xyz"), emt())
    write_baseline(source, source.with_name("old.xyz"), emt(), overwrite=True)


@pytest.mark.parametrize(
    "content", ["", "3\nProperties=species:S:1:pos:R:3\nO 0 0 0\nH 0 0\n"], ids=["empty", "broken"]
)
def test_an_empty_or_broken_file_leaves_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "in.xyz").write_text(content)
    with pytest.raises(HuefieldError, match=r"in\.xyz"):
        write_baseline(tmp_path / "in.xyz", tmp_path / "out.extxyz", emt())
    assert [path.name for path in tmp_path.iterdir()] == ["in.xyz"]


def test_a_baseline_that_always_fails_is_named(source: Path) -> None:
    class Failing(AseBaseline):
        def _computed(self, structure: Structure) -> BaselineResult:
            return BaselineResult(np.inf, structure.positions)

    with pytest.raises(HuefieldError, match=r"no result for 4 structures(.|\n)*is it the right baseline"):
        write_baseline(source, source.with_name("out.xyz"), Failing(emt()._calculator, "bad"), skip_bad=True)


def test_half_a_baseline_in_a_file_is_an_error(source: Path) -> None:
    frames = ase.io.read(source, ":")
    frames[1].info["baseline_energy"] = 1.0
    ase.io.write(source, frames, format="extxyz")
    with pytest.raises(HuefieldError, match="frame 1: the frame has baseline_energy, but no baseline_forces"):
        open_part("all", [source])
    frames[1].arrays["baseline_forces"] = np.full((4, 3), np.nan)
    ase.io.write(source, frames, format="extxyz")
    with pytest.raises(HuefieldError, match="frame 1: a result of the baseline is NaN or infinite"):
        open_part("all", [source])
