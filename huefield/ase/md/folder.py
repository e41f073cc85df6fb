"""The files of a run, which survive the end of the process at any moment.

Frames and rows are appended as they come. A checkpoint holds a state of the dynamics and the lengths of these files. A
resumed run truncates the files to these lengths and writes the same content again.
"""

import hashlib
import io
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from ase import Atoms

from huefield import __version__
from huefield.ase.md.config import MAY_CHANGE, MDConfig
from huefield.ase.md.dynamics import State
from huefield.model.ensemble import Ensemble
from huefield.support.errors import HuefieldError
from huefield.support.files import append_bytes, refusal, write_bytes
from huefield.support.tensorfile import TensorFileError, checked_metadata, format_file, tensors_in
from huefield.support.trees import named_arrays

FORMAT = "huefield-md"
TRAJECTORY, LOG, UNCERTAIN = APPENDED = ("trajectory.xyz", "log.csv", "uncertain.xyz")
GROWS = "noise_grows"
"""Whether error bars grow with the distance to the training data; older checkpoints do not say so."""
CHECKPOINT, CONFIG, FIGURE = "checkpoint.safetensors", "config.yaml", "md.png"


@dataclass(frozen=True)
class Written:
    """Records that a run has written so far."""

    this_step: bool = False
    """Whether the records of the current step are among them."""
    frames: int = 0
    """Frames of the trajectory."""
    saved: int = 0
    """Uncertain structures."""
    last_saved: int | None = None
    """Step of the last uncertain structure."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """State from which a run is resumed."""

    state: State
    written: Written
    lengths: dict[str, int]
    """Lengths of the appended files in bytes."""


class Folder:
    """The folder of a run."""

    def __init__(self, path: Path, config: MDConfig, ensemble: Ensemble, start: Atoms) -> None:
        self.path, self._steps, self._grows = path, config.steps, ensemble.noise_grows
        self._identity = {
            "settings": {**config.model_dump(mode="json", exclude=set(MAY_CHANGE)), GROWS: ensemble.noise_grows},
            "model": digest_of_model(ensemble),
            "start": digest_of_start(start),
        }
        self._files: dict[str, io.FileIO] = {}

    def checkpoint(self) -> Checkpoint | None:
        """Read the checkpoint; None in a folder without a run."""
        path = self.path / CHECKPOINT
        if not path.exists():
            self._require_no_files()
            return None
        content = path.read_bytes()
        try:
            metadata = checked_metadata(path, content, FORMAT, "state of dynamics")
        except TensorFileError as error:
            raise TensorFileError(f"{error}, or start again with --overwrite") from None
        if "written" not in metadata:
            raise HuefieldError(
                f"{path} was written by an older huefield, whose runs this version cannot resume: finish the run with "
                "that version, or start again with --overwrite"
            )
        self._require_same(json.loads(metadata["identity"]))
        state = State(int(metadata["step"]), tensors_in(path, content))
        if state.step > self._steps:
            raise HuefieldError(
                f"the run in {self.path} has already taken {state.step} steps, more than {self._steps}: increase "
                "--steps, or start again with --overwrite"
            )
        return Checkpoint(state, Written(**json.loads(metadata["written"])), json.loads(metadata["bytes"]))

    def resume(self, checkpoint: Checkpoint) -> None:
        """Truncate the files to their lengths at the checkpoint, and open them for writing."""
        for name in APPENDED:
            path, length = self.path / name, checkpoint.lengths.get(name, 0)
            if (path.stat().st_size if path.exists() else 0) < length:
                raise HuefieldError(
                    f"{path} is shorter than at the last checkpoint ({length} bytes): restore the file, or start again "
                    "with --overwrite"
                )
        for name in APPENDED:
            length = checkpoint.lengths.get(name, 0)
            (self.path / name).touch()
            file = self._files[name] = (self.path / name).open("r+b", buffering=0)
            file.truncate(length)
            file.seek(length)

    def begin(self, state: State) -> Checkpoint:
        """Remove the files of an earlier run, and write the first checkpoint."""
        for name in (CHECKPOINT, *APPENDED, FIGURE):
            (self.path / name).unlink(missing_ok=True)
        self.save(state, Written())
        return Checkpoint(state, Written(), {})

    def save(self, state: State, written: Written) -> None:
        """Write a checkpoint once the files that it refers to are on the disk."""
        for file in self._files.values():
            os.fsync(file.fileno())
        metadata = {
            "huefield": __version__,
            "identity": json.dumps(self._identity),
            "bytes": json.dumps({name: file.tell() for name, file in self._files.items()}),
            "written": json.dumps(asdict(written)),
            "step": str(state.step),
        }
        write_bytes(self.path / CHECKPOINT, format_file(state.tensors, metadata, FORMAT))

    def append(self, name: str, text: str) -> None:
        """Append to a file, unbuffered."""
        file = self._files[name]
        try:
            append_bytes(file, text.encode())
        except OSError as error:
            reason, cure = refusal(error, self.path / name)
            raise OSError(
                f"cannot write {self.path / name}: {reason}. The run is safe up to its last checkpoint: {cure} and "
                "repeat the command to resume"
            ) from error

    def write_config(self, config: MDConfig, **more: Any) -> None:
        """Write all settings, and further facts about the run."""
        known = {"huefield": __version__, **more, GROWS: self._grows}
        known |= {name: self._identity[name] for name in ("model", "start")}
        content = {**config.model_dump(mode="json"), "run": known}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        write_bytes(self.path / CONFIG, text.encode())

    def close(self) -> None:
        """Close all files, and remove empty ones."""
        for name, file in self._files.items():
            if not file.tell():
                (self.path / name).unlink(missing_ok=True)
            file.close()
        self._files.clear()

    def _require_no_files(self) -> None:
        there = [name for name in APPENDED if (self.path / name).exists()]
        if there:
            raise HuefieldError(
                f"{self.path} has {', '.join(there)} but no {CHECKPOINT} to resume from: choose another folder, or "
                "replace the files with --overwrite"
            )

    def _require_same(self, before: dict[str, Any]) -> None:
        new = self._identity["settings"]
        assert isinstance(new, dict)  # noqa: S101 - for mypy
        old = {GROWS: new[GROWS], **before["settings"]}
        changed = [
            f"{name} was {old.get(name)} and is {new.get(name)}"
            for name in sorted({*old, *new})
            if old.get(name) != new.get(name)
        ]
        changed += [f"the {name} is different" for name in ("model", "start") if before[name] != self._identity[name]]
        if changed:
            raise HuefieldError(
                f"{self.path} has a run with other settings: {'; '.join(changed)}. Resume it with the same settings, "
                "choose another folder, or start again with --overwrite"
            )


def digest_of_model(ensemble: Ensemble) -> str:
    """Digest of everything that predictions depend on."""
    digest = hashlib.sha256(json.dumps(ensemble.atom_energies).encode())
    digest.update(b"" if ensemble.calibration is None else ensemble.calibration.model_dump_json().encode())
    for name, array in sorted(named_arrays(ensemble.members).items()):
        digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def digest_of_start(start: Atoms) -> str:
    """Digest of everything that the trajectory depends on."""
    digest = hashlib.sha256(str([constraint.todict() for constraint in start.constraints]).encode())
    for array in (
        start.numbers,
        start.positions,
        np.array(start.cell),
        start.pbc,
        start.get_masses(),
        start.get_momenta(),
    ):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
