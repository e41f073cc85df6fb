"""The inputs of a run, as its folder records them: configuration, digests of the data, references and split."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from huefield.data.dataset import Part, Parts
from huefield.data.references import AtomicReferences
from huefield.model.ensemble import Ensemble
from huefield.support.errors import HuefieldError
from huefield.support.files import write_bytes
from huefield.training.checkpoint import differences
from huefield.training.config import TrainConfig, parse_config, to_yaml

CONFIG, DIGESTS = "config.yaml", "digests.json"
DECISIVE = ("train", "validation")
"""Parts of the data that the parameters depend on."""
HASHED = ("sizes", "atomic_numbers", "positions", "cells", "pbc", "energy", "has_energy", "forces", "has_forces")


def member_folder(out: Path, member: int) -> Path:
    """Folder of a member that is trained alone."""
    return out / f"member-{member}"


def digest(part: Part) -> str:
    """A hash of all structures and labels."""
    hasher = hashlib.sha256()
    for block in part.blocks():
        for name in HASHED:
            hasher.update(np.ascontiguousarray(getattr(block, name)).tobytes())
    return hasher.hexdigest()


def fingerprint(config: TrainConfig, members: range, digests: dict[str, str]) -> dict[str, Any]:
    """Inputs that must be the same when a run is resumed: settings, members, data, and the model it started from."""
    begun = None if config.start_from is None else hashlib.sha256(config.start_from.read_bytes()).hexdigest()
    settings = config.result_digest_input
    return {"config": settings, "members": list(members), "data": digests, "content of start_from": begun}


def write_inputs(
    config: TrainConfig, parts: Parts, references: AtomicReferences, digests: dict[str, str], folder: Path
) -> None:
    """Record the inputs in the folder of a run."""
    write_bytes(folder / CONFIG, to_yaml(config).encode())
    references.save(folder / "references.json")
    indices = {name: part.indices.tolist() for name, part in parts.items()}
    write_bytes(folder / "split.json", json.dumps(indices).encode())
    write_bytes(folder / DIGESTS, (json.dumps(digests, indent=1) + "\n").encode())


def inputs_folder(run: Path) -> Path:
    """The folder with the inputs of a run: its own, or that of the first member that was trained alone."""
    found = next((each for each in (run, *sorted(run.glob("member-*"))) if (each / CONFIG).is_file()), None)
    if found is None:
        raise FileNotFoundError(f"{run} has no {CONFIG}: it is not the folder of a run")
    return found


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a run, of all members or of members that were trained one by one."""
    try:
        inputs_folder(path)
    except FileNotFoundError:
        return False
    return True


def recorded_config(folder: Path) -> TrainConfig:
    """The configuration in the folder of a run."""
    return parse_config((folder / CONFIG).read_text(), str(folder / CONFIG))


def changed_parts(parts: Parts, folder: Path) -> list[str]:
    """Names of decisive parts that differ from those that the run in a folder was trained with."""
    expected = json.loads((folder / DIGESTS).read_text())
    return [name for name in expected if name not in parts or digest(parts[name]) != expected[name]]


def part_of_run(path: Path, name: str) -> Part:
    """A part of the data of a run, such as ``validation``, after a check that the data have not changed.

    Args:
        path: folder of the run.
        name: name of the part.
    """
    folder = inputs_folder(path)
    parts = recorded_config(folder).data.load()
    if name not in parts:
        raise HuefieldError(f"the data of {path} have no part {name!r}, but {', '.join(parts)}: choose one with --part")
    for changed in changed_parts(parts, folder):
        raise HuefieldError(
            f"the {changed} data of {path} have changed since the run, so that training and test data may be mixed: "
            "name a file instead"
        )
    return parts[name]


def with_elements(config: TrainConfig, part: Part, saved: Ensemble | None) -> TrainConfig:
    """The configuration with the elements of the saved model or of the training data, where it names none."""
    potential = config.model.potential
    if saved is not None:
        potential = potential.for_elements(getattr(saved.members.potential.config, "elements", ()))
    model = config.model.model_copy(update={"potential": potential.for_elements(part.elements())})
    return config.model_copy(update={"model": model})


def require_made_with(config: TrainConfig, run: Path) -> None:
    """Raise if a finished run was trained with other settings or data; files of data may have been moved."""
    folder, parts = inputs_folder(run), config.data.load()
    before, now = (
        {name: value for name, value in each.result_digest_input.items() if name not in ("data", "start_from")}
        for each in (recorded_config(folder), with_elements(config, parts["train"], None))
    )
    other = differences(before, now)
    other += [f"other data for {name}" for name in changed_parts(parts, folder)]
    if other:
        raise HuefieldError(
            f"{run} has a model of other settings or data ({'; '.join(other)}): choose another folder with --out, or "
            "remove it"
        )
