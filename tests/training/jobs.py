"""Training runs as processes of their own, as users start them."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from huefield.training.config import to_yaml
from tests.training.helpers import POTENTIAL, config_for

ROOT = Path(__file__).parents[2]
QUICK = {
    "model": {"potential": POTENTIAL, "noise": {"kind": "vanilla"}},
    "optimiser": {"average_decay": 0.9},
    "precision": "float64",
}
"""Without noise, there is least to compile."""


def write_config(path: Path, data: Path, steps: int, **changes: Any) -> Path:
    """One stage of so many steps."""
    stages = [{"kind": "squared_error", "steps": steps, "learning_rate": 1e-2, "decay": 0.5}]
    path.write_text(to_yaml(config_for(data, **{**QUICK, "stages": stages, **changes})))
    return path


class Process:
    """``huefield train``, running; what it says is in a file."""

    def __init__(self, config: Path, run: Path, *options: str, log: Path, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "huefield", "train", str(config), "--out", str(run), *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        self.log, self.run = log, run
        with log.open("wb") as file:
            self.child = subprocess.Popen(command, stdout=file, stderr=file, env=environment)

    def wait(self, seconds: float = 300.0) -> int:
        """Its exit code. A process that does not end in time is killed, and fails the test."""
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {seconds} s:\n{self.said}") from None

    def kill(self) -> None:
        """End it with SIGKILL, if it still runs."""
        self.child.kill()
        self.child.wait()

    def wait_for_lines(self, count: int, seconds: float = 300.0) -> None:
        """Until the history of the run has so many lines, or the process has ended."""
        until(lambda: num_lines(self.run) >= count or self.child.poll() is not None, seconds)

    @property
    def said(self) -> str:
        """What it has printed."""
        return self.log.read_text(errors="replace")


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for something to happen."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"nothing has happened for {seconds} s")
        time.sleep(0.01)


def train_alone(config: Path, run: Path, env: dict[str, str] | None = None) -> Path:
    """Train in one process, to the end."""
    process = Process(config, run, log=run.with_suffix(".log"), env=env)
    assert process.wait() == 0, process.said
    return run


def start_job(config: Path, run: Path, count: int) -> list[Process]:
    """Start the processes of a job on this machine."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    address = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": str(count)}
    return [
        Process(
            config,
            run,
            "--distributed",
            log=run.with_name(f"{run.name}-{number}.log"),
            env={**address, "JAX_PROCESS_ID": str(number)},
        )
        for number in range(count)
    ]


def train_together(config: Path, run: Path, count: int) -> Path:
    """Train in several processes, to the end."""
    processes = start_job(config, run, count)
    try:
        codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * count, "\n".join(process.said for process in processes)
    return run


def num_lines(run: Path) -> int:
    """Events in the history of a run."""
    path = run / "history.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def losses(run: Path) -> np.ndarray:
    """Of all steps that were reported, for each member."""
    events = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    return np.array([event["loss"] for event in events if event["event"] == "steps"])


def model_bytes(run: Path) -> bytes:
    """What came out of a run."""
    return (run / "model.safetensors").read_bytes()
