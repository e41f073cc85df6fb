"""How a row was trained, as its result says it, and whether that is how it would be trained now."""

import hashlib
import json
from pathlib import Path
from typing import Any

from huefield.reproduce.plan import RUN, AbstractSize, Job
from huefield.training.config import TrainConfig
from huefield.training.job import DIGESTS, inputs_folder

PLACES = {"data", "start_from"}
"""Settings that say where files are, not what is in them."""


def settings_of(job: Job, size: AbstractSize, out: Path) -> list[dict[str, Any]]:
    """Of all that is trained for a row, but for where files are."""
    return [_settings(config) for config in size.configs(job, out)]


def _settings(config: TrainConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude=PLACES)


def made_so(kept: Any, job: Job, size: AbstractSize, out: Path) -> bool:
    """Whether the settings that a result has kept are those of a row.

    A setting that came to be later is taken for its default, which is how it was before there was a choice.
    """
    configs = size.configs(job, out)
    if not isinstance(kept, list) or len(kept) != len(configs):
        return False
    try:
        made = [
            type(c).model_validate({**c.model_dump(include=PLACES), **k}) for k, c in zip(kept, configs, strict=True)
        ]
    except (ValueError, TypeError):  # there is no such setting any more
        return False
    return [_settings(config) for config in made] == [_settings(config) for config in configs]


def origins(job: Job, size: AbstractSize, out: Path) -> dict[str, Any]:
    """Digests of what a trained row was made from: its data, and the model that it started from, if any."""
    found = {"data_digests": json.loads((inputs_folder(job.folder(out) / RUN) / DIGESTS).read_text())}
    start = size.config(job, out).start_from
    return found if start is None else {**found, "mean_digest": hashlib.sha256(start.read_bytes()).hexdigest()}
