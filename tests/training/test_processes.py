"""Jobs of several processes: the results of one, and what happens when a process dies."""

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.helpers import POTENTIAL, write_waters
from tests.training.jobs import (
    Process,
    losses,
    num_lines,
    start_job,
    train_alone,
    train_together,
    until,
    write_config,
)
from tests.training.test_train import largest_difference, model_of

NOISY = {
    "model": {"potential": POTENTIAL, "noise": {"kind": "colored"}},
    "stages": [{"kind": "beta_nll", "steps": 100, "learning_rate": 3e-3, "initialise_noise": True}],
    "report_every": 1,
    "validate_every": 20,
    "checkpoint_every": 25,
}
SOON_SECONDS = 60.0
"""In which a job must have ended after one of its processes; the rest of the machine may be busy."""


def require_same_losses(run: Path, alone: Path, steps: int) -> None:
    assert losses(alone).shape[0] == steps
    np.testing.assert_allclose(losses(run), losses(alone), rtol=1e-5, atol=0)


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one(tmp_path: Path) -> None:
    data = write_waters(tmp_path / "waters.xyz")
    config = write_config(tmp_path / "config.yaml", data, 10, report_every=1, checkpoint_every=5)
    alone, run = train_alone(config, tmp_path / "alone"), train_together(config, tmp_path / "run", 2)
    require_same_losses(run, alone, 10)
    assert largest_difference(model_of(run), model_of(alone)) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(("count", "mesh"), [(2, (2, 1)), (2, (1, 2)), (4, (4, 1)), (4, (2, 2)), (4, (1, 4))])
def test_a_hundred_steps_in_every_layout(tmp_path: Path, count: int, mesh: tuple[int, int]) -> None:
    data = write_waters(tmp_path / "waters.xyz", 40)
    changes: dict[str, Any] = {**NOISY, "members": 4, "batch_size": 10}
    single = write_config(tmp_path / "one.yaml", data, 100, **changes)
    spread = write_config(tmp_path / "many.yaml", data, 100, **changes, mesh={"member": mesh[0], "data": mesh[1]})
    alone, run = train_alone(single, tmp_path / "alone"), train_together(spread, tmp_path / "run", count)
    require_same_losses(run, alone, 100)


def job_with_progress(config: Path, run: Path, count: int, lines: int) -> list[Process]:
    """A job that has told so many events."""
    processes = start_job(config, run, count)
    until(lambda: num_lines(run) >= lines or any(p.child.poll() is not None for p in processes), 300.0)
    return processes


def codes_after(processes: list[Process]) -> list[int]:
    """Exit codes of a job that should end by itself."""
    try:
        return [process.wait(SOON_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("count", "victim"), [(2, 0), (2, 1), (4, 2)])
def test_a_killed_process_ends_the_job_which_then_goes_on(tmp_path: Path, count: int, victim: int) -> None:
    data = write_waters(tmp_path / "waters.xyz")
    changes: dict[str, Any] = {"report_every": 1, "checkpoint_every": 4, "validate_every": 4, "members": 4}
    config = write_config(tmp_path / "config.yaml", data, 60, **changes)
    never_killed = train_together(config, tmp_path / "never-killed", count)
    run = tmp_path / "run"
    processes = job_with_progress(config, run, count, 25)
    processes[victim].kill()
    began = time.monotonic()
    codes = codes_after(processes)
    print(f"the job ended after {time.monotonic() - began:.1f} s with {codes}")
    for number, process in enumerate(processes):
        if number != victim:
            assert codes[number] != 0
            ends = "The job ends: " if victim else ""  # without process 0, JAX may be the first to end the others
            assert f"{ends}start the job again with the same command" in process.said
    train_together(config, run, count)
    assert "resuming" in run.with_name("run-0.log").read_text()
    np.testing.assert_array_equal(losses(run), losses(never_killed))
    assert largest_difference(model_of(run), model_of(never_killed)) == 0.0


@pytest.mark.slow
def test_a_stop_of_one_process_stops_all(tmp_path: Path) -> None:
    data = write_waters(tmp_path / "waters.xyz")
    config = write_config(tmp_path / "config.yaml", data, 60, report_every=2, checkpoint_every=50)
    processes = job_with_progress(config, tmp_path / "run", 2, 8)
    processes[1].child.send_signal(signal.SIGTERM)
    assert codes_after(processes) == [130, 130], "\n".join(process.said for process in processes)
    train_together(config, tmp_path / "run", 2)
    assert "resuming" in (tmp_path / "run-0.log").read_text()
