"""Events of a run, one line each."""

from pathlib import Path

import numpy as np
import pytest

from huefield.support.errors import HuefieldError
from huefield.training.history import History, read_history


def test_events_come_back_in_order(tmp_path: Path) -> None:
    with History(tmp_path / "run" / "history.jsonl") as history:
        history.write("steps", loss=np.array([1.5, np.nan]), step=3)
        history.write("validation", improved=np.array([True, False]), noise={"gamma": np.array([2.0])})
    first, second = read_history(tmp_path / "run" / "history.jsonl")
    assert (first["event"], first["step"], first["loss"][0]) == ("steps", 3, 1.5)
    assert first["loss"][1] is None
    assert second == {"event": "validation", "improved": [True, False], "noise": {"gamma": [2.0]}}


def test_what_a_resumed_run_does_again_takes_the_place_of_what_was_done(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        history.write("steps", step=1)
        kept = history.num_bytes
        history.write("steps", step=2)
    with History(path, kept) as history:
        assert history.num_bytes == kept
        history.write("steps", step=20)
    assert [event["step"] for event in read_history(path)] == [1, 20]


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        history.write("steps", step=1)
        history.write("steps", step=2)
    path.write_bytes(path.read_bytes()[:-4])
    assert [event["step"] for event in read_history(path)] == [1]


def test_more_bytes_than_there_are_are_not_made_up(tmp_path: Path) -> None:
    with History(tmp_path / "history.jsonl", 1000) as history:
        assert history.num_bytes == 0


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is this the folder of a run"):
        read_history(tmp_path / "history.jsonl")


@pytest.mark.parametrize("line", [b"{", b"5", b"{}", b"\xff"])
def test_a_damaged_line_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"event": "steps"}\n' + line + b'\n{"event": "steps"}\n')
    with pytest.raises(HuefieldError, match=r"line 2 of .*history\.jsonl is damaged|history\.jsonl is not a text file"):
        read_history(path)
