"""The record of a run: its history and, if wanted, curves for TensorBoard."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from huefield.training.checkpoint import RunPosition
from huefield.training.history import History
from huefield.training.mesh import first_process
from huefield.training.stages import AbstractStage
from huefield.training.tensorboard import TensorBoard


class RunRecord:
    """Writes events into the files of a run; there are none in processes other than the first."""

    def __init__(self, history: History | None, tensorboard: TensorBoard | None) -> None:
        self._history, self._tensorboard = history, tensorboard

    def write(self, event: str, position: RunPosition, stage: AbstractStage, **values: Any) -> None:
        """Append an event that happened at this position."""
        where = {"stage": position.stage, "kind": stage.kind, "step": position.step}
        when = {"total_steps": position.total_steps, "time": time.time()}
        for file in (self._history, self._tensorboard):
            if file is not None:
                file.write(event, **where, **when, **values)

    def flushed_bytes(self) -> int:
        """Put everything on the disk; returns the length of the history, which a checkpoint keeps."""
        if self._tensorboard is not None:
            self._tensorboard.flush()
        return 0 if self._history is None else self._history.num_bytes


@contextmanager
def recording(folder: Path, begun: RunPosition, *, tensorboard: bool) -> Iterator[RunRecord]:
    """Open the record of a run, without the events after the checkpoint from which it resumes.

    Args:
        folder: of the run.
        begun: where the run begins or resumes.
        tensorboard: whether curves for TensorBoard are wanted.
    """
    if not first_process():
        yield RunRecord(None, None)
        return
    with (
        History(folder / "history.jsonl", begun.history_bytes) as history,
        TensorBoard(folder / "tensorboard", begun.total_steps) if tensorboard else nullcontext() as curves,
    ):
        yield RunRecord(history, curves)
