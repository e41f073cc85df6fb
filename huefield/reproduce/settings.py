"""Settings that a result was made with, and their comparison with the current ones."""

import hashlib
from pathlib import Path
from typing import Any

from huefield.data.runs import DIGESTS, inputs_folder
from huefield.reproduce.plan import RUN, AbstractSize, Job
from huefield.support.files import read_json
from huefield.training.config import TrainConfig

PLACES = {"data", "start_from"}
"""Settings that name files; results do not depend on them."""
BEFORE = {"novelty": False}
"""How training behaved before a setting existed, where its default is something else."""


def settings_of(job: Job, size: AbstractSize, out: Path) -> list[dict[str, Any]]:
    """Settings of every training of a row, without paths."""
    return [_settings(config) for config in size.configs(job, out)]


def _settings(config: TrainConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude=PLACES)


def same_settings(kept: Any, job: Job, size: AbstractSize, out: Path) -> bool:
    """Whether a result was made with the settings that the row has now.

    A setting that did not exist then counts as how training behaved before: its default, unless ``BEFORE`` says else.
    """
    configs = size.configs(job, out)
    if not isinstance(kept, list) or len(kept) != len(configs):
        return False
    try:
        made = [
            type(c).model_validate({**c.model_dump(include=PLACES), **BEFORE, **k})
            for k, c in zip(kept, configs, strict=True)
        ]
    except (ValueError, TypeError):  # a setting no longer exists
        return False
    return [_settings(config) for config in made] == [_settings(config) for config in configs]


def origins(job: Job, size: AbstractSize, out: Path) -> dict[str, Any]:
    """Digests of the data of a trained row, and of the model that it started from if there is one."""
    found = {"data_digests": read_json(inputs_folder(job.folder(out) / RUN) / DIGESTS)}
    start = size.config(job, out).start_from
    return found if start is None else {**found, "mean_digest": hashlib.sha256(start.read_bytes()).hexdigest()}
