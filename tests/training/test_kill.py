"""Runs that are killed at any moment, or asked to stop, end where a run ends that was left alone."""

import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.training.helpers import write_waters
from tests.training.jobs import Process, losses, model_bytes, num_lines, train_alone, write_config

SMALL = {"steps": 60, "checkpoint_every": 2, "validate_every": 5, "report_every": 1}
LONG = {"steps": 400, "checkpoint_every": 5, "validate_every": 10, "report_every": 1}


def prepared(folder: Path, settings: dict[str, int]) -> tuple[Path, Path]:
    """A configuration, and a run with it that was left alone."""
    config = write_config(folder / "config.yaml", write_waters(folder / "waters.xyz"), **settings)
    return config, train_alone(config, folder / "alone")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return prepared(tmp_path_factory.mktemp("small"), SMALL)


def kill_at_random(config: Path, run: Path, kills: int, rng: np.random.Generator) -> list[int]:
    """Kill a run again and again, and let it end at last; how many events it had told each time."""
    lengths = [0]
    while len(lengths) <= kills:
        process = Process(config, run, log=run.with_suffix(".log"))
        if rng.random() < 0.2:
            time.sleep(rng.uniform(0.0, 8.0))  # while it starts
        else:
            process.wait_for_lines(lengths[-1] + int(rng.integers(1, 15)))
            time.sleep(rng.uniform(0.0, 0.05))  # in a step, a validation, or a checkpoint
        process.kill()
        lengths.append(num_lines(run))
    assert not (run / "model.safetensors").exists(), "all kills should fall before the end"
    train_alone(config, run)
    return lengths[1:]


def require_same_result(run: Path, alone: Path) -> None:
    assert model_bytes(run) == model_bytes(alone)
    np.testing.assert_array_equal(losses(run), losses(alone))
    assert len(list((run / "checkpoints").iterdir())) == 2


def test_a_kill_changes_nothing(small: tuple[Path, Path], tmp_path: Path) -> None:
    """The short form of the next."""
    config, alone = small
    kill_at_random(config, tmp_path / "run", 1, np.random.default_rng(1))
    require_same_result(tmp_path / "run", alone)


@pytest.mark.slow
def test_many_kills_change_nothing(tmp_path: Path) -> None:
    config, alone = prepared(tmp_path, LONG)
    lengths = kill_at_random(config, tmp_path / "run", 24, np.random.default_rng(2))
    assert len(set(lengths)) > 8, f"kills should fall on different moments, but fell on {lengths}"
    require_same_result(tmp_path / "run", alone)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_stop_saves_and_goes_on(small: tuple[Path, Path], tmp_path: Path, number: signal.Signals) -> None:
    config, alone = small
    process = Process(config, tmp_path / "run", log=tmp_path / "log")
    process.wait_for_lines(8)
    process.child.send_signal(number)
    assert process.wait(60) == 130, process.said
    assert "Stopping after this step" in process.said
    assert "run the same command again to resume" in process.said
    train_alone(config, tmp_path / "run")
    require_same_result(tmp_path / "run", alone)
