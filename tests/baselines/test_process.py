"""Baselines in other processes."""

import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from huefield.baselines import BaselineError, ProcessBaseline, TbliteBaseline
from huefield.support.errors import HuefieldError
from tests.baselines.molecules import copper, emt, shaken

SPRINGS = """
import json, sys, time
for line in sys.stdin:
    request = json.loads(line)
    rows = request["positions"]
    if request["numbers"] == [2]:
        sys.exit(3)
    if request["numbers"] == [10]:
        print("hello", flush=True)
        continue
    if request["numbers"] == [18]:
        print(json.dumps({"error": "no argon today"}), flush=True)
        continue
    if request["numbers"] == [36]:
        time.sleep(0.5)
    energy = sum(x * x for row in rows for x in row)
    stress = request["cell"] if any(request["pbc"]) else None
    forces = [[-2 * x for x in row] for row in rows]
    print(json.dumps({"energy": energy, "forces": forces, "stress": stress}), flush=True)
"""


@pytest.fixture
def springs(tmp_path: Path) -> ProcessBaseline:
    (tmp_path / "springs.py").write_text(SPRINGS)
    return ProcessBaseline([sys.executable, str(tmp_path / "springs.py")], "springs")


def test_results_come_back_exactly(springs: ProcessBaseline) -> None:
    for structure in (shaken("CH4"), copper(), shaken("H2O", seed=3)):
        found = springs.compute(structure)
        assert found.energy == pytest.approx((structure.positions**2).sum(), rel=1e-14)
        np.testing.assert_array_equal(found.forces, -2 * structure.positions)
        assert (found.stress is not None) == bool(structure.pbc.any())
        if found.stress is not None:
            np.testing.assert_array_equal(found.stress, structure.cell)


def test_a_process_that_ends_is_an_error_and_is_started_again(springs: ProcessBaseline) -> None:
    with pytest.raises(BaselineError, match=r"of springs ended \(exit code 3\): try the command by hand: .*springs.py"):
        springs.compute(shaken("He"))
    assert springs.compute(shaken("H2")).energy > 0


def test_a_program_that_never_answers_ends_the_work() -> None:
    """It would be started again for each of many structures."""
    broken = ProcessBaseline([sys.executable, "-c", "raise SystemExit(4)"], "broken")
    for _ in range(2):
        with pytest.raises(BaselineError, match=r"ended \(exit code 4\)"):
            broken.compute(shaken("H2O"))
    with pytest.raises(HuefieldError, match=r"of broken ended 3 times without any answer \(exit code 4\)") as found:
        broken.compute(shaken("H2O"))
    assert not isinstance(found.value, BaselineError)


def test_a_program_that_has_answered_may_fail_for_many_structures(springs: ProcessBaseline) -> None:
    assert springs.compute(shaken("H2")).energy > 0
    for _ in range(4):
        with pytest.raises(BaselineError, match="of springs ended"):
            springs.compute(shaken("He"))


def test_a_slow_answer_is_said_to_be_waited_for(
    springs: ProcessBaseline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    springs.compute(shaken("Kr"))
    assert not caplog.messages
    monkeypatch.setattr("huefield.baselines.process.PATIENCE_SECONDS", 0.1)
    springs.compute(shaken("Kr"))
    assert 1 <= len(caplog.messages) <= 3
    assert caplog.messages[0] == "springs has not answered for 0.1 s (structure with 1 atoms)"


def test_failures_of_the_program_are_passed_on(springs: ProcessBaseline) -> None:
    with pytest.raises(BaselineError, match="no argon today"):
        springs.compute(shaken("Ar"))


def test_an_answer_that_is_no_result_is_shown(springs: ProcessBaseline) -> None:
    with pytest.raises(HuefieldError, match="answered 'hello' instead of a result for 1 atoms"):
        springs.compute(shaken("Ne"))
    assert springs.compute(shaken("H2")).energy > 0  # and not the answer to the request before


def test_answers_belong_to_their_requests_after_an_interruption(
    springs: ProcessBaseline, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = shaken("H2", seed=1), shaken("H2", seed=2)
    expected = springs.compute(second).energy

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr("huefield.baselines.process.result_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            springs.compute(first)
    assert springs.compute(second).energy == expected


def test_a_command_is_named_without_its_interpreter() -> None:
    assert ProcessBaseline("/envs/mace/bin/python serve.py mace:my.model").title == "serve.py mace:my.model"
    assert ProcessBaseline("server").title == "server"


def test_a_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(HuefieldError, match="cannot start no-such-program: No such file"):
        ProcessBaseline("no-such-program --flag").compute(shaken("H2"))
    with pytest.raises(HuefieldError, match="the command of the baseline is empty"):
        ProcessBaseline(" ")


def test_closing_ends_the_process(springs: ProcessBaseline) -> None:
    springs.compute(shaken("H2"))
    process = springs._process
    assert process is not None
    springs.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_the_worker_of_a_baseline_computes_the_same() -> None:
    baseline, structure = TbliteBaseline(TbliteBaseline.Config()), shaken("NH3")
    worker = ProcessBaseline(baseline.worker_command, one_thread=True)
    here, there = baseline.compute(structure), worker.compute(structure)
    assert there.energy == pytest.approx(here.energy, abs=1e-9)
    np.testing.assert_allclose(there.forces, here.forces, atol=1e-9)
    worker.close()


def test_a_result_that_is_not_finite_is_a_failure() -> None:
    together = shaken("H2")
    same = type(together)(together.atomic_numbers, np.zeros((2, 3)))
    with pytest.raises(BaselineError, match="EMT"):
        emt().compute(same)


def test_it_goes_to_another_process(springs: ProcessBaseline) -> None:
    springs.compute(shaken("H2"))
    again = pickle.loads(pickle.dumps(springs))  # noqa: S301 - our own
    assert again.title == "springs"
    assert again.compute(shaken("H2")).energy == springs.compute(shaken("H2")).energy
