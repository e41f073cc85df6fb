"""Checkpoints: the state of a run in one file.

A checkpoint has everything that the rest of the run depends on: parameters, their averages, the state of the optimiser,
the best parameters so far, the stage, the position in the data. It is written atomically and has a checksum; the
checkpoint before it is kept and used if the last one is damaged.
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
"""The folder of checkpoints within the folder of a run."""
KEPT = 2
"""Number of checkpoints that are kept."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk or quota that is full."""


class CheckpointError(HuefieldError):
    """The run cannot be resumed from the checkpoints in its folder; the message says why."""


@dataclass(frozen=True)
class RunPosition:
    """Progress of a run."""

    stage: int = 0
    step: int = 0
    """Finished steps of the stage."""
    total_steps: int = 0
    """Finished steps of all stages."""
    place: Place = field(default_factory=Place)
    rollbacks: int = 0
    history_bytes: int = 0
    finished: bool = False


class RunState(eqx.Module):
    """The arrays of a run that a checkpoint saves."""

    states: MemberState
    best: ForceField
    """Averaged parameters of each member at its best validation in this stage."""
    last: ForceField
    """Averaged parameters of each member at its last validation in this stage."""
    best_score: np.ndarray
    waited: np.ndarray
    """Validations since the best one."""
    stopped: np.ndarray
    """Whether a member has ended the stage."""
    failures: np.ndarray
    """How often each member made training return to a checkpoint in this stage."""


def save_checkpoint(folder: Path, state: RunState, position: RunPosition, fingerprint: dict[str, Any]) -> Path:
    """Write a checkpoint and remove old ones.

    Args:
        folder: folder of the checkpoints.
        state: arrays in the memory of the host.
        position: how far the run is.
        fingerprint: inputs that must be the same when the run is resumed.
    """
    tensors = {name: np.asarray(array) for name, array in named_arrays(state).items()}
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
    for other in (*found[:newest], *found[newest + KEPT :]):  # newer ones are damaged, or were given up by a rollback
        other.unlink(missing_ok=True)
    for left in folder.glob(".step-*"):  # left by a process that was killed while it wrote
        left.unlink(missing_ok=True)
    return path


def checkpoints_in(folder: Path) -> list[Path]:
    """All checkpoints of a folder, the newest first."""
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


@contextmanager
def saying_what_is_safe(folder: Path) -> Iterator[None]:
    """Turn an error of a full disk into one that names the file, the last checkpoint, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        reason, cure = refusal(error, folder / CHECKPOINTS)
        found = checkpoints_in(folder / CHECKPOINTS)
        left, again = (f"The run is saved up to {found[0]}", " to resume") if found else ("Nothing is saved", "")
        file = error.filename or f"a file in {folder}"
        raise OSError(f"cannot write {file}: {reason}. {left}: {cure} and run the same command again{again}") from error


def load_newest(
    folder: Path, skeleton: RunState, fingerprint: dict[str, Any], warn: Callable[[str], None]
) -> tuple[RunState, RunPosition] | None:
    """The newest undamaged checkpoint; None if there are no checkpoints.

    Args:
        folder: folder of the checkpoints.
        skeleton: a state with the right shapes and any values.
        fingerprint: must be equal to the one of the checkpoint.
        warn: receives a message about each damaged checkpoint that is skipped.
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
                f"{path} has format version {metadata.get('format_version')}, but this huefield reads {VERSION}: "
                f"resume with huefield {metadata.get('huefield')}, or start again with another --out"
            )
        _require_same(path, json.loads(metadata["fingerprint"]), fingerprint)
        return _filled(path, skeleton, tensors), _position(metadata["position"])
    if found:
        raise CheckpointError(f"all {len(found)} checkpoints in {folder} are damaged: start again with another --out")
    return None


def _position(text: str) -> RunPosition:
    values = json.loads(text)
    return RunPosition(**{**values, "place": Place(*values["place"])})


def _require_same(path: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    data = saved.get("config", {}).get("data", {})
    if "level" in data:  # the name of this setting in older checkpoints
        data["level_of_theory"] = data.pop("level")
    if isinstance(data.get("reader"), dict):
        data["reader"].pop("group_key", None)  # part of older checkpoints
    stages = (each.get("config", {}).get("stages", []) for each in (saved, now))
    for before, after in zip(*stages, strict=False):
        if "stress_weight" in after:
            before.setdefault("stress_weight", after["stress_weight"])  # older versions had no such weight
        if "fall" in after:
            before.setdefault("fall", "exponential")  # the only way of older versions
    changed = differences(saved, now)
    if changed:
        raise CheckpointError(
            f"{path} belongs to a run with other settings or data:\n"
            + "\n".join(f"  {line}" for line in changed)
            + "\nRestore them to resume, or train into another folder with --out"
        )


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    """The differences between two trees of JSON, one line each."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [*before, *(name for name in after if name not in before)]
        pairs = [(f"{place}.{name}" if place else name, before.get(name), after.get(name)) for name in names]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(f"{place}.{i}", b, a) for i, (b, a) in enumerate(zip(before, after, strict=True))]
    else:
        return [] if before == after else [f"{place}: was {before!r}, is {after!r}"]
    return [line for name, b, a in pairs for line in differences(b, a, name)]


def _filled(path: Path, skeleton: RunState, tensors: dict[str, np.ndarray]) -> RunState:
    wanted = named_arrays(skeleton)
    # Checkpoints of older versions have arrays without elements, for outputs that no longer exist.
    tensors = {name: array for name, array in tensors.items() if array.size or name in wanted}
    wrong = [
        name
        for name in {*wanted, *tensors}
        if name not in wanted
        or name not in tensors
        or (wanted[name].shape, jnp.dtype(wanted[name].dtype)) != (tensors[name].shape, tensors[name].dtype)
    ]
    if wrong:
        raise CheckpointError(
            f"{path} was written by a version of huefield with other arrays ({len(wrong)} differ, such as "
            f"{min(wrong)}): start again with another --out"
        )
    return with_arrays(skeleton, tensors)
