"""The inputs of a run, as its folder records them: configuration, digests of the data, references and split."""

import hashlib
import json
from pathlib import Path
from typing import Any

from huefield.data.dataset import Part, Parts
from huefield.data.references import AtomicReferences
from huefield.data.runs import CONFIG, DIGESTS, REFERENCES, changed_parts, inputs_folder, relocated
from huefield.model.ensemble import Ensemble
from huefield.support.errors import HuefieldError
from huefield.support.files import read_text, write_bytes
from huefield.training.checkpoint import differences
from huefield.training.config import TrainConfig, parse_config, to_yaml

DECISIVE = ("train", "validation")
"""Parts of the data that the parameters depend on."""


def member_folder(out: Path, member: int) -> Path:
    """Folder of a member that is trained alone."""
    return out / f"member-{member}"


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
    references.save(folder / REFERENCES)
    indices = {name: part.indices.tolist() for name, part in parts.items()}
    write_bytes(folder / "split.json", json.dumps(indices).encode())
    write_bytes(folder / DIGESTS, (json.dumps(digests, indent=1) + "\n").encode())


def recorded_config(folder: Path) -> TrainConfig:
    """The configuration in the folder of a run, which may have been moved with the structures in it."""
    config = parse_config(read_text(folder / CONFIG), str(folder / CONFIG))
    return config.model_copy(update={"data": relocated(config.data, folder)})


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
