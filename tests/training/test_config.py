"""Bounds of the settings."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from huefield.training.config import TrainConfig, parse_config, to_yaml
from tests.training.helpers import config_for

BAD_SETTINGS = [
    ("model.potential.cutoff_angstrom=0.01", "greater than or equal to 0.5"),
    ("model.potential.cutoff_angstrom=.nan", "finite number"),
    ("model.potential.features=1000000000", "less than or equal to 8192"),
    ("model.noise.floor_ev=.inf", "finite number"),
    ("model.noise.channels=1000000", "less than or equal to 64"),
    ("stages.0.learning_rate=.inf", "finite number"),
    ("stages.0.learning_rate=1000", "less than or equal to 10"),
    ("stages.0.energy_weight=.inf", "finite number"),
    ("stages.0.steps=1000000000000", "less than or equal to 1000000000"),
    ("optimiser.clip_norm=.inf", "finite number"),
    ("optimiser.noise_rate=1e9", "less than or equal to 10000"),
    ("members=1000000000", "less than or equal to 1000"),
    ("batch_size=1000000000", "less than or equal to 1000000"),
    ("buckets=1000000000", "less than or equal to 64"),
    ("mesh.member=1000000000", "less than or equal to 1000000"),
    ("references={kind: given, energies_ev: {all: {H: .nan}}}", "finite number"),
]


@pytest.mark.parametrize(("setting", "message"), BAD_SETTINGS)
def test_settings_without_sense_are_refused(data: Path, setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_config(to_yaml(config_for(data)), "c.yaml", [setting])


def test_every_number_of_a_configuration_has_an_upper_bound() -> None:
    assert list(unbounded(TrainConfig, "")) == []


def unbounded(model: type[BaseModel], place: str) -> Iterator[str]:
    """Settings that take any large number. Floats must be finite anyway; counts need a bound of their own."""
    for name, field in model.model_fields.items():
        found = re.findall(r"\b(?:int|float)\b", str(field.annotation)) if field.annotation else []
        metadata = f"{field.metadata} {field.annotation}"
        if found and "Le(" not in metadata and "Lt(" not in metadata and name not in FREE:
            yield place + name
        for inner in models_in(field.annotation):
            yield from unbounded(inner, f"{place}{name}.")


FREE = {"limits", "train_limit", "fractions", "energies_ev", "stress_scale"}
"""A larger limit than there are structures changes nothing; fractions are checked as a whole; others are physics."""


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)
