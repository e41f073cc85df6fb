"""Event files, read back through the messages of tensorboardX."""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from huefield.training import train
from huefield.training.run import TrainingStoppedError
from huefield.training.tensorboard import TensorBoard
from tests.training.helpers import config_for


def events(path: Path) -> Iterator[Any]:
    content, place = path.read_bytes(), 0
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        yield Event.FromString(content[place + 12 : place + 12 + length])
        place += 16 + length


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """What TensorBoard shows of a folder: tags, steps and values, without those that a later file hides."""
    shown: list[tuple[str, int, float]] = []
    for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        for event in events(path):
            if event.session_log.status == SessionLog.START:
                shown = [entry for entry in shown if entry[1] < event.step]
            shown += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return shown


def test_scalars_of_each_member_are_read_back(tmp_path: Path) -> None:
    at = {"stage": 0, "kind": "nll", "time": 1.5e9}
    with TensorBoard(tmp_path) as board:
        board.write("steps", **at, step=100, total_steps=300, loss=np.array([1.5, -2.0]), gamma=np.array([3.0, 4.0]))
        board.write("rollback", **at, step=100, total_steps=300, to_step=0, members=np.array([1]))
        board.write(
            "validation", **at, step=7, total_steps=10**7, improved=np.array([True]), nll=np.array([np.nan, 1e99])
        )
    (path,) = tmp_path.iterdir()
    assert {event.wall_time for event in events(path) if event.summary.value} == {1.5e9}
    assert scalars(tmp_path) == [
        ("steps/loss/member-0", 300, 1.5),
        ("steps/loss/member-1", 300, -2.0),
        ("steps/gamma/member-0", 300, 3.0),
        ("steps/gamma/member-1", 300, 4.0),
        ("validation/nll/member-1", 10**7, np.inf),
    ]


def test_a_resumed_run_neither_repeats_nor_loses_events(data: Path, tmp_path: Path) -> None:
    config = config_for(data, tensorboard=True, members=1, checkpoint_every=4)
    train(config, tmp_path / "whole")
    asked = iter(range(100))
    with pytest.raises(TrainingStoppedError):
        train(config, tmp_path / "stopped", should_stop=lambda: next(asked) == 7)
    newest = sorted((tmp_path / "stopped" / "checkpoints").iterdir())[-1]
    newest.unlink()  # as if it had been killed: events after the checkpoint before are written again
    train(config, tmp_path / "stopped")
    whole, resumed = (scalars(tmp_path / name / "tensorboard") for name in ("whole", "stopped"))
    assert len(list((tmp_path / "stopped" / "tensorboard").iterdir())) == 2
    assert sorted(resumed) == sorted(whole)


def test_without_the_package_the_message_names_the_command(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"needs the package tensorboardX: pip install tensorboardX"):
        train(config_for(data, tensorboard=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()
