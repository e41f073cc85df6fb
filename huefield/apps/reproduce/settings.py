"""How a row was trained, as its result says it, and whether that is how it would be trained now."""

import hashlib
import json
from pathlib import Path
from typing import Any

from huefield.apps.reproduce.plan import RUN, AbstractSize, Job
from huefield.training.job import DIGESTS, inputs_folder

PLACES = {"data", "start_from"}
"""Settings that say where files are, not what is in them."""


def settings_of(job: Job, size: AbstractSize, out: Path) -> list[dict[str, Any]]:
    """Of all that is trained for a row, but for where files are."""
    return [config.model_dump(mode="json", exclude=PLACES) for config in size.configs(job, out)]


def made_so(kept: Any, job: Job, size: AbstractSize, out: Path) -> bool:
    """Whether the settings that a result has kept are those of a row.

    A setting that came to be later must have its default value now, which is how it was before there was a choice.
    """
    configs = size.configs(job, out)
    chosen = [config.model_dump(mode="json", exclude=PLACES, exclude_defaults=True) for config in configs]
    return _same(kept, settings_of(job, size, out), chosen)


def _same(then: Any, now: Any, chosen: Any) -> bool:
    if isinstance(now, dict) and isinstance(then, dict):
        named = chosen if isinstance(chosen, dict) else {}
        return then.keys() <= now.keys() and all(
            _same(then[key], value, named.get(key)) if key in then else key not in named for key, value in now.items()
        )
    if isinstance(now, list) and isinstance(then, list):
        named_each = chosen if isinstance(chosen, list) else [None] * len(now)
        return len(then) == len(now) and all(map(_same, then, now, named_each))
    return bool(then == now)


def origins(job: Job, size: AbstractSize, out: Path) -> dict[str, Any]:
    """Digests of what a trained row was made from: its data, and the model that it started from, if any."""
    found = {"data_digests": json.loads((inputs_folder(job.folder(out) / RUN) / DIGESTS).read_text())}
    start = size.config(job, out).start_from
    return found if start is None else {**found, "mean_digest": hashlib.sha256(start.read_bytes()).hexdigest()}
