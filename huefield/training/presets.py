"""Presets: complete configurations to start from."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel

from huefield.data.dataset import BundledData, FileData
from huefield.data.splits.config import RandomSplit
from huefield.model.forcefield import ForceField
from huefield.noise import ColoredNoise, LocalNoise, LocalWhiteNoise, NoiseConfig, VanillaNoise, WhiteNoise
from huefield.potentials import PaiNN
from huefield.support.errors import HuefieldError
from huefield.training.config import TrainConfig
from huefield.training.stages import BetaNLLStage, Fall, NLLStage, SquaredErrorStage, Stage
from huefield.training.step import OptimiserConfig

PresetName = Literal["paper", "small", "tiny"]
NoiseName = Literal["vanilla", "white", "colored", "local", "local_white"]
WIDTH = 118
"""Longest line of a printed configuration."""

ABOUT: dict[str, str] = {
    "paper": "The procedure of the paper (arXiv:2312.04174, appendix on training): for data sets of millions of "
    "structures, days on a GPU for each member.",
    "small": "For hundreds to thousands of structures: minutes to hours on a few cores.",
    "tiny": "For demonstrations and tests: seconds to minutes, with large errors.",
}


def preset(name: PresetName, data: FileData | BundledData, noise: NoiseConfig | None = None) -> TrainConfig:
    """The configuration of a preset.

    Args:
        name: name of the preset.
        data: training data.
        noise: noise model; None for that of the preset.
    """
    if name not in get_args(PresetName):
        raise HuefieldError(f"there is no preset {name!r}; there are {', '.join(get_args(PresetName))}")
    config = {"paper": _paper, "small": _small, "tiny": _tiny}[name](data)
    if noise is None:
        return config
    if name != "paper" and not noise.build().is_size_consistent:
        raise HuefieldError(
            f"the noise model {noise.kind} is not for the preset {name}: its error bars vanish as structures grow. Use "
            "local or local_white, or the preset paper, which has the models of the paper"
        )
    return with_noise(config, noise)


def with_noise(config: TrainConfig, noise: NoiseConfig) -> TrainConfig:
    """The configuration with another noise model; without noise, all steps minimise the squared error."""
    stages: tuple[Stage, ...] = config.stages
    if isinstance(noise, VanillaNoise.Config):
        first = next(stage for stage in stages if isinstance(stage, SquaredErrorStage))
        decay = stages[-1].learning_rate * stages[-1].decay / first.learning_rate
        stages = (first.model_copy(update={"steps": sum(s.steps for s in stages), "decay": decay}),)
    model = config.model.model_copy(update={"noise": noise})
    return TrainConfig.model_validate({**dict(config), "model": model, "stages": stages})


def noise_of_kind(kind: NoiseName, name: PresetName = "small") -> NoiseConfig:
    """The noise model of a kind. White and colored noise are those of the paper in its preset, local ones in others."""
    paper = name == "paper"
    kinds: dict[NoiseName, NoiseConfig] = {
        "vanilla": VanillaNoise.Config(),
        "white": WhiteNoise.Config() if paper else LocalWhiteNoise.Config(),
        "colored": ColoredNoise.Config() if paper else LocalNoise.Config(),
        "local": LocalNoise.Config(),
        "local_white": LocalWhiteNoise.Config(),
    }
    return kinds[kind]


def _paper(data: FileData | BundledData) -> TrainConfig:
    rate, million = 1e-4, 1_000_000

    def rates(begin: int, end: int) -> dict[str, Any]:
        """[J23]: the rate is 1e-4 · 0.96^(s/1e5) at step s of all stages together."""
        return {
            "steps": end - begin,
            "learning_rate": rate * 0.96 ** (begin / 1e5),
            "decay": 0.96 ** ((end - begin) / 1e5),
        }

    return TrainConfig(
        data=data,
        model=ForceField.Config(potential=PaiNN.Config(), noise=ColoredNoise.Config()),
        stages=(
            SquaredErrorStage(**rates(0, 2 * million)),
            BetaNLLStage(**rates(2 * million, 3 * million)),
            NLLStage(**rates(3 * million, 7 * million)),
        ),
        members=5,
        batch_size=64,
        optimiser=OptimiserConfig(clip_norm=None),
        validate_every=5000,
        patience=100,
        selection="member",
        checkpoint_every=5000,
        report_every=100,
    )


def _small(data: FileData | BundledData) -> TrainConfig:
    return with_care(
        data,
        PaiNN.Config(features=64, radial_functions=10),
        three_stages((12_000, 2_000, 4_000), 1e-2, 5e-4, fall="cosine"),
        members=5,
        batch_size=4,
        validate_every=500,
        checkpoint_every=500,
    )


def _tiny(data: FileData | BundledData) -> TrainConfig:
    return with_care(
        data,
        PaiNN.Config(features=16, layers=2, radial_functions=12, cutoff_angstrom=4.0),
        three_stages((500, 100, 150), 1e-2, 1e-3, fall="cosine"),
        members=3,
        batch_size=8,
        validate_every=150,
        checkpoint_every=300,
    )


def with_care(
    data: FileData | BundledData,
    potential: PaiNN.Config,
    stages: tuple[Stage, ...],
    *,
    noise: NoiseConfig | None = None,
    **sizes: int,
) -> TrainConfig:
    """A configuration with the precautions that keep means and variances from harming each other with few data.

    Args:
        data: training data.
        potential: the network.
        stages: stages of training.
        noise: noise model; None for local colored noise.
        sizes: members, batch_size and other numbers of the configuration.
    """
    return TrainConfig(
        data=data,
        model=ForceField.Config(potential=potential, noise=noise or noise_of_kind("colored")),
        stages=stages,
        optimiser=OptimiserConfig(average_decay=0.99, noise_rate=3.0, offset_rate=10.0),
        report_every=50,
        **sizes,
    )


LOWEST_RATE = 3e-5


def three_stages(
    steps: tuple[int, int, int], rate: float, noise_rate: float, *, fall: Fall = "exponential"
) -> tuple[Stage, ...]:
    """Squared error with a rate that falls to the lowest, then β-NLL and NLL with a rate that falls again."""
    first, second, third = steps
    return (
        SquaredErrorStage(steps=first, learning_rate=rate, decay=LOWEST_RATE / rate, fall=fall),
        BetaNLLStage(steps=second, learning_rate=noise_rate, initialise_noise=True),
        NLLStage(steps=third, learning_rate=noise_rate, decay=LOWEST_RATE / noise_rate),
    )


def example_data(path: Path | None) -> FileData | BundledData:
    """Data for a printed configuration: a file to split, or the bundled data."""
    if path is None:
        return BundledData()
    return FileData(train=(path,), split=RandomSplit(fractions={"train": 0.9, "validation": 0.1}))


def commented_yaml(config: TrainConfig, title: str) -> str:
    """A configuration as YAML, with the meaning of each key above it."""
    return "\n".join([*_comment(title, ""), *_lines(config, "")]) + "\n"


def _lines(model: BaseModel, indent: str, said: frozenset[str] = frozenset()) -> Iterator[str]:
    """Keys and values, with a comment on each key that is new."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if field.description and name not in said:
            yield from _comment(field.description, indent)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, tuple) and value and hasattr(value[0], "kind"):
            yield f"{indent}{name}:"
            seen: frozenset[str] = frozenset()
            for entry in value:
                yield from _item(entry, indent, seen)
                seen |= frozenset(type(entry).model_fields)
        else:
            yield f"{indent}{name}: {_scalar(model, name)}"


def _item(entry: BaseModel, indent: str, said: frozenset[str]) -> Iterator[str]:
    """An entry of a list, its kind first."""
    lines = list(_lines(entry, indent + "    ", said))
    kind = next(line for line in lines if line.lstrip().startswith("kind:"))
    yield f"{indent}  - {kind.strip()}"
    yield from (line for line in lines if line is not kind)


def _scalar(model: BaseModel, name: str) -> str:
    content = model.model_dump(mode="json")
    return json.dumps(content.get(name, getattr(model, name)), ensure_ascii=False)


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in textwrap.wrap(text, WIDTH - len(indent)):
        yield f"{indent}# {line}"
