"""Results of baselines for many structures."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from huefield.baselines import AseBaseline, BaselineComputer, ColumnsBaseline, ResultLog, TbliteBaseline
from huefield.baselines import computing as module
from huefield.core.structure import BaselineResult, Block, Structure, pack
from huefield.support.errors import HuefieldError
from tests.baselines.molecules import emt, shaken

NAMES = ("H2O", "CH4", "CO", "NH3")


def block_of(count: int) -> Block:
    structures = [shaken(NAMES[index % 4], seed=index) for index in range(count)]
    return pack(structures, 10 + np.arange(count), "some.xyz")


class Counting(AseBaseline):
    """EMT that counts, and fails for carbon monoxide."""

    def __init__(self) -> None:
        super().__init__(emt()._calculator, "EMT")
        self.computed = 0

    def _computed(self, structure: Structure) -> BaselineResult:
        self.computed += 1
        if structure.atomic_numbers.tolist() == [8, 6]:
            return BaselineResult(np.nan, np.zeros((2, 3)))
        return super()._computed(structure)


def test_results_are_those_of_the_baseline_in_order() -> None:
    block, baseline = block_of(6), emt()
    with BaselineComputer(baseline) as computer:
        found, faults = computer.attached(block)
    assert not faults
    for structure, with_result in zip(block, found, strict=True):
        expected = baseline.compute(structure)
        assert with_result.baseline is not None
        assert with_result.baseline.energy == expected.energy
        np.testing.assert_array_equal(with_result.baseline.forces, expected.forces)


def test_a_geometry_that_comes_twice_does_not_shift_the_results_of_others(tmp_path: Path) -> None:
    """Its first result is in the log when the second one is due."""
    block = block_of(6)
    twice = block.block(np.array([0, 1, 0, 2, 3, 1, 4, 5]))
    baseline = emt()
    with BaselineComputer(baseline, log=ResultLog(tmp_path / "log", "EMT")) as computer:
        found, faults = computer.attached(twice)
    assert not faults
    for structure in found:
        assert structure.baseline is not None
        expected = baseline.compute(replace(structure, baseline=None))
        assert structure.baseline.energy == expected.energy
        np.testing.assert_array_equal(structure.baseline.forces, expected.forces)


def test_failures_are_listed_and_left_out() -> None:
    with BaselineComputer(Counting()) as computer:
        found, faults = computer.attached(block_of(8))
    assert [str(fault) for fault in faults] == [
        f"some.xyz, frame {frame}: EMT gives an energy, force or stress that is NaN or infinite" for frame in (12, 16)
    ]
    assert len(found) == 6
    np.testing.assert_array_equal(found.frames, [10, 11, 13, 14, 15, 17])
    assert found.baseline is not None
    assert found.baseline.known.all()


def test_an_interrupted_computation_is_resumed(tmp_path: Path) -> None:
    first, again = Counting(), Counting()
    log = ResultLog(tmp_path / "results", "EMT")
    with pytest.raises(KeyboardInterrupt), BaselineComputer(first, log=log) as computer:
        computer.attached(block_of(8), _interrupted_after(4))
    with (tmp_path / "results").open("a") as file:
        file.write('abc {"energy": 1.0, "for')  # a line that was cut off
    with BaselineComputer(again, log=ResultLog(tmp_path / "results", "EMT")) as computer:
        found, faults = computer.attached(block_of(8))
    assert first.computed == 4
    assert again.computed == 8 - 3 + 1  # the failure is tried again, and the first result is compared
    assert (len(found), len(faults)) == (6, 2)
    whole = ResultLog(tmp_path / "results", "EMT")
    assert len(whole) == 6
    found_again = whole.find(block_of(8)[5])
    assert found_again is not None
    assert found_again.energy == emt().compute(block_of(8)[5]).energy


def _interrupted_after(count: int) -> Callable[[int], None]:
    def report(done: int) -> None:
        if done == count:
            raise KeyboardInterrupt

    return report


def test_results_of_another_calculator_of_the_same_name_are_noticed(tmp_path: Path) -> None:
    structure = block_of(1)[0]
    log = ResultLog(tmp_path / "results", "EMT")
    with log.writing():
        log.add(structure, BaselineResult(1.0, np.zeros((3, 3))))
    with (
        pytest.raises(HuefieldError, match=r"results has results of another baseline than EMT: .*Remove the file"),
        BaselineComputer(emt(), log=ResultLog(tmp_path / "results", "EMT")) as computer,
    ):
        computer.attached(block_of(1))


def test_a_log_of_another_baseline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("GFN2-xTB\n")
    with pytest.raises(HuefieldError, match=r"results of another baseline \(GFN2-xTB\): remove it"):
        ResultLog(tmp_path / "results", "EMT")


@pytest.fixture
def always_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORTH_WORKERS", 1)


@pytest.mark.usefixtures("always_in_parallel")
def test_processes_compute_the_same_as_one() -> None:
    block, baseline = block_of(12), TbliteBaseline(TbliteBaseline.Config())
    bad = pack([*block, Structure(np.array([100], np.uint8), np.zeros((1, 3)))], np.arange(13), "some.xyz")
    with BaselineComputer(baseline, workers=2) as computer:
        found, faults = computer.attached(bad)
        assert computer._pool is not None
    assert [fault.frame for fault in faults] == [12]
    assert found.baseline is not None
    expected = [baseline.compute(structure).energy for structure in block]
    np.testing.assert_allclose(found.baseline.energy, expected, atol=1e-9)


def test_results_in_a_file_are_kept_if_they_are_those_of_the_baseline() -> None:
    block, baseline = block_of(4), Counting()
    results = [None, *(emt().compute(structure) for structure in list(block)[1:2]), None, None]
    partly = block.with_baseline(results)
    with BaselineComputer(baseline) as computer:
        computer.attached(partly)
    assert baseline.computed == 3 + 1  # three missing ones, and one for comparison
    last_wrong = block.with_baseline(
        [*(emt().compute(s) for s in list(block)[:3]), BaselineResult(0.0, np.ones((4, 3)))]
    )
    with (
        pytest.raises(HuefieldError, match="in frame 13, its energy"),
        BaselineComputer(emt()) as computer,
    ):
        computer.attached(last_wrong)
    wrong = [None, BaselineResult(-1.0, np.zeros((5, 3))), None, None]
    with (
        pytest.raises(
            HuefieldError, match=r"some.xyz has results of another baseline than EMT: in frame 11, its energy"
        ),
        BaselineComputer(emt()) as computer,
    ):
        computer.attached(block.with_baseline(wrong))


def test_columns_are_all_there_is() -> None:
    block = block_of(2)
    known = block.with_baseline([emt().compute(block[0]), None])
    with BaselineComputer(ColumnsBaseline("MACE")) as computer:
        found, faults = computer.attached(known)
    assert len(found) == 1
    assert [fault.frame for fault in faults] == [11]
    assert faults[0].reason.startswith("it has no baseline_energy and baseline_forces (write them with")
