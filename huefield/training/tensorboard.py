"""Curves of a run for TensorBoard, written by ``tensorboardX``, an optional dependency."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from huefield.support.errors import HuefieldError

PLACES = ("stage", "kind", "step", "total_steps", "time", "improved")
"""Values of an event that are no curves."""


def require_tensorboard() -> None:
    """Raise unless event files can be written."""
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise HuefieldError(
            "tensorboard: true needs the package tensorboardX: pip install tensorboardX, or set tensorboard: false"
        ) from error


class TensorBoard:
    """Writes the events of a run as scalars, one curve for each member."""

    def __init__(self, folder: Path, total_steps: int = 0) -> None:
        """Open a file in ``folder``; TensorBoard hides events of earlier files after ``total_steps``."""
        from tensorboardX import SummaryWriter

        suffix = f".{os.getpid()}.{time.monotonic_ns()}"  # the rest of the name repeats within a second
        self._writer = SummaryWriter(str(folder), purge_step=total_steps + 1, filename_suffix=suffix)

    def write(self, event: str, **values: Any) -> None:
        """Append the scalars of an event of the history: a number, or one for each member."""
        if event not in ("steps", "validation"):
            return
        curves = {name: value for name, value in values.items() if name not in PLACES}
        for tag, value in scalars_of(event, curves).items():
            self._writer.add_scalar(tag, value, values["total_steps"], values["time"])

    def flush(self) -> None:
        """Put everything on the disk, so that a resumed run misses nothing."""
        self._writer.flush()

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()


def scalars_of(event: str, values: Mapping[str, Any]) -> dict[str, np.float32]:
    """Scalars by tag, such as ``validation/force_rmse/member-0``, without NaN, in single precision."""
    with np.errstate(over="ignore"):
        found = {
            f"{event}/{name}/member-{member}": np.float32(value)
            for name, members in values.items()
            for member, value in enumerate(np.atleast_1d(members))
        }
    return {tag: value for tag, value in found.items() if not np.isnan(value)}
