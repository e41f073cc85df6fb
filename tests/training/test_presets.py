"""Presets: what the paper did, and text that says the same."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from huefield.data.dataset import BundledData
from huefield.noise import ColoredNoise, NoiseConfig, WhiteNoise
from huefield.training import BetaNLLStage, NLLStage, SquaredErrorStage, parse_config
from huefield.training.presets import (
    ABOUT,
    NoiseName,
    PresetName,
    commented_yaml,
    example_data,
    noise_of_kind,
    preset,
)

NAMES = get_args(PresetName)


def test_the_paper_is_the_paper() -> None:
    config = preset("paper", BundledData())
    squared, beta, nll = config.stages
    assert isinstance(squared, SquaredErrorStage)
    assert isinstance(beta, BetaNLLStage)
    assert isinstance(nll, NLLStage)
    assert [stage.steps for stage in config.stages] == [2_000_000, 1_000_000, 4_000_000]
    assert (beta.beta_start, beta.beta_end, nll.joint) == (1.0, 0.0, False)
    assert all(stage.weight_decay == 0 and stage.reduction == "structure" for stage in config.stages)
    assert all((stage.energy_weight, stage.force_weight) == (1.0, 1.0) for stage in config.stages)
    potential = config.model.potential
    assert (potential.kind, potential.layers, potential.features, potential.cutoff_angstrom) == ("painn", 3, 256, 5.0)
    assert (config.members, config.batch_size, config.precision) == (5, 64, "float32")
    optimiser = config.optimiser
    assert (optimiser.clip_norm, optimiser.average_decay, optimiser.freeze_mean) == (None, 0.0, False)
    assert (optimiser.noise_rate, optimiser.offset_rate) == (1.0, 1.0)


def test_the_rate_of_the_paper_falls_without_a_jump() -> None:
    """1e-4 · 0.96^(s/1e5) at step s of all stages together."""
    begin = 0
    for stage in preset("paper", BundledData()).stages:
        for step in np.linspace(0, stage.steps, 5):
            rate = stage.learning_rate * stage.decay ** (step / stage.steps)
            assert rate == pytest.approx(1e-4 * 0.96 ** ((begin + step) / 1e5), rel=1e-12)
        begin += stage.steps


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("noise", [None, "vanilla", "white", "colored", "local", "local_white"])
@pytest.mark.parametrize("file", [None, Path("my data: all.xyz")])
def test_printed_text_is_read_back_as_the_same(name: PresetName, noise: str | None, file: Path | None) -> None:
    config = preset(name, example_data(file), None if noise is None else noise_of_kind(noise, name))
    text = commented_yaml(config, ABOUT[name])
    assert parse_config(text, "x") == config
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("name", ["small", "tiny"])
@pytest.mark.parametrize("noise", [ColoredNoise.Config(), WhiteNoise.Config()], ids=["colored", "white"])
def test_noise_that_vanishes_as_structures_grow_is_for_the_paper_only(name: PresetName, noise: NoiseConfig) -> None:
    with pytest.raises(
        ValueError,
        match=rf"the noise model {noise.kind} is not for the preset {name}: .* vanish .* Use local or local_white, or",
    ):
        preset(name, BundledData(), noise)
    assert preset("paper", BundledData(), noise).model.noise == noise


def test_presets_have_noise_of_their_kind() -> None:
    assert [preset(name, BundledData()).model.noise.kind for name in NAMES] == ["colored", "local", "local"]
    kinds: tuple[NoiseName, ...] = ("vanilla", "white", "colored")
    assert [noise_of_kind(kind).kind for kind in kinds] == ["vanilla", "local_white", "local"]
    assert [noise_of_kind(kind, "paper").kind for kind in kinds] == list(kinds)
    for name in NAMES:
        assert [noise_of_kind(kind, name).kind for kind in ("local", "local_white")] == ["local", "local_white"]


@pytest.mark.parametrize("name", NAMES)
def test_without_noise_all_steps_are_squared_error(name: PresetName) -> None:
    full = preset(name, BundledData())
    (only,) = preset(name, BundledData(), noise_of_kind("vanilla")).stages
    assert only.kind == "squared_error"
    assert only.steps == sum(stage.steps for stage in full.stages)
    last = full.stages[-1]
    assert only.learning_rate * only.decay == pytest.approx(last.learning_rate * last.decay)


@pytest.mark.usefixtures("as_users_run")
def test_an_unknown_preset_lists_the_known() -> None:
    with pytest.raises(ValueError, match="no preset 'huge'; there are paper, small, tiny"):
        preset("huge", BundledData())
