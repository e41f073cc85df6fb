"""The state of a run in one file, and the newest good one of a folder.

A checkpoint has everything that the rest of the run depends on: parameters, their averages, the optimiser's memory, the
best so far, the stage, the place in the data. It is written whole or not at all and has a checksum; the one before it
is kept, and used if the last one is damaged.
"""

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from huefield import __version__
from huefield.data.batches.batching import Place
from huefield.model.forcefield import ForceField
from huefield.support.errors import HuefieldError
from huefield.support.files import refusal, write_bytes
from huefield.support.tensorfile import TensorFileError, checked_metadata, format_file, tensors_in
from huefield.support.trees import named_arrays, with_arrays
from huefield.training.step import MemberState

FORMAT = "huefield-checkpoint"
VERSION = 1
CHECKPOINTS = "checkpoints"
"""The folder of them within that of a run."""
KEPT = 2
"""Checkpoints that are kept."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CheckpointError(HuefieldError):
    """There are checkpoints, but the run cannot go on from them; the message says why."""


@dataclass(frozen=True)
class Position:
    """Where a run stands, in whole numbers."""

    stage: int = 0
    step: int = 0
    """Steps of the stage that are done."""
    total_steps: int = 0
    """Steps of all stages that are done."""
    place: Place = field(default_factory=Place)
    rollbacks: int = 0
    history_bytes: int = 0
    finished: bool = False


class Contents(eqx.Module):
    """The arrays of a checkpoint."""

    states: MemberState
    best: ForceField
    """The best averaged parameters of each member in this stage."""
    last: ForceField
    """Those of the last validation before a member ended the stage."""
    best_score: np.ndarray
    waited: np.ndarray
    """Validations since then."""
    stopped: np.ndarray
    """Whether a member has ended the stage."""
    failures: np.ndarray
    """How often each member has made training go back in this stage."""


def save_checkpoint(folder: Path, contents: Contents, position: Position, fingerprint: dict[str, Any]) -> Path:
    """Write a checkpoint, and remove all but the last ones.

    Args:
        folder: where checkpoints are.
        contents: arrays in the memory of the host.
        position: where the run stands.
        fingerprint: what the run may only be resumed with.
    """
    tensors = {name: np.asarray(array) for name, array in named_arrays(contents).items()}
    place = {**vars(position), "place": list(position.place)}
    metadata = {
        "format_version": str(VERSION),
        "huefield": __version__,
        "position": json.dumps(place),
        "fingerprint": json.dumps(fingerprint, sort_keys=True),
    }
    path = folder / f"step-{position.total_steps:09d}-{position.stage}.safetensors"
    write_bytes(path, format_file(tensors, metadata, FORMAT))
    found = checkpoints_in(folder)
    newest = found.index(path)
    for other in (*found[:newest], *found[newest + KEPT :]):  # newer ones are damaged, or a future that was given up
        other.unlink(missing_ok=True)
    for left in folder.glob(".step-*"):  # by a process that was killed while it wrote
        left.unlink(missing_ok=True)
    return path


def checkpoints_in(folder: Path) -> list[Path]:
    """All checkpoints of a folder, the newest first."""
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


@contextmanager
def saying_what_is_safe(folder: Path) -> Iterator[None]:
    """If the system has no room for a file of the run in ``folder``, say which, what is left, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        reason, cure = refusal(error, folder / CHECKPOINTS)
        found = checkpoints_in(folder / CHECKPOINTS)
        left, again = (f"The run is safe up to {found[0]}", " to resume") if found else ("Nothing was kept", "")
        file = error.filename or f"a file in {folder}"
        raise OSError(f"cannot write {file}: {reason}. {left}: {cure} and run the same command again{again}") from error


def load_newest(
    folder: Path, skeleton: Contents, fingerprint: dict[str, Any], warn: Callable[[str], None]
) -> tuple[Contents, Position] | None:
    """The newest checkpoint that is whole; None if there is none at all.

    Args:
        folder: where checkpoints are.
        skeleton: contents with the right shapes; their values are not looked at.
        fingerprint: must be equal to the one of the checkpoint.
        warn: is told of each damaged checkpoint that is passed over.
    """
    found = checkpoints_in(folder)
    for path in found:
        try:
            content = path.read_bytes()
            metadata = checked_metadata(path, content, FORMAT, "checkpoint")
            tensors = tensors_in(path, content)
        except TensorFileError as error:
            warn(f"{error}; the checkpoint before it is used")
            continue
        if metadata.get("format_version") != str(VERSION):
            raise CheckpointError(
                f"{path} has version {metadata.get('format_version')} of the format, this huefield has {VERSION}: "
                f"go on with huefield {metadata.get('huefield')}, or start anew with another --out"
            )
        _require_same(path, json.loads(metadata["fingerprint"]), fingerprint)
        return _filled(path, skeleton, tensors), _position(metadata["position"])
    if found:
        raise CheckpointError(
            f"none of the {len(found)} checkpoints in {folder} is whole: start anew with another --out"
        )
    return None


def _position(text: str) -> Position:
    values = json.loads(text)
    return Position(**{**values, "place": Place(*values["place"])})


def _require_same(path: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    data = saved.get("config", {}).get("data", {})
    if "level" in data:  # the name of this setting in older checkpoints
        data["level_of_theory"] = data.pop("level")
    changed = differences(saved, now)
    if changed:
        raise CheckpointError(
            f"{path} belongs to a run with other settings; what changed:\n"
            + "\n".join(f"  {line}" for line in changed)
            + "\nSet it back to resume, or train into another folder with --out"
        )


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    """What differs between two trees of JSON, one line for each difference."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [*before, *(name for name in after if name not in before)]
        pairs = [(f"{place}.{name}" if place else name, before.get(name), after.get(name)) for name in names]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(f"{place}.{i}", b, a) for i, (b, a) in enumerate(zip(before, after, strict=True))]
    else:
        return [] if before == after else [f"{place}: was {before!r}, is {after!r}"]
    return [line for name, b, a in pairs for line in differences(b, a, name)]


def _filled(path: Path, skeleton: Contents, tensors: dict[str, np.ndarray]) -> Contents:
    wanted = named_arrays(skeleton)
    wrong = [
        name
        for name in {*wanted, *tensors}
        if name not in wanted
        or name not in tensors
        or (wanted[name].shape, jnp.dtype(wanted[name].dtype)) != (tensors[name].shape, tensors[name].dtype)
    ]
    if wrong:
        raise CheckpointError(
            f"{path} was written by a program with other arrays ({len(wrong)} differ, such as {min(wrong)}): "
            "start anew with another --out"
        )
    return with_arrays(skeleton, tensors)
