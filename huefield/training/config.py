"""The configuration of a training run."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from huefield.baselines import BaselineConfig
from huefield.data.dataset import DataConfig
from huefield.data.references import FittedReferences, GivenReferences, ReferenceConfig
from huefield.model.forcefield import ForceField
from huefield.noise import LocalNoise, VanillaNoise
from huefield.potentials.atomic import AbstractElementsConfig
from huefield.support.config import FrozenConfig, explain
from huefield.support.errors import HuefieldError
from huefield.support.yamlfile import parse_yaml
from huefield.training.mesh import MeshConfig
from huefield.training.stages import Stage
from huefield.training.step import OptimiserConfig

POTENTIAL_KIND = "model.potential.kind"
CHANGEABLE: Any = {
    "novelty": True,
    "report_every": True,
    "checkpoint_every": True,
    "tensorboard": True,
    "mesh": True,
    "skip_bad": True,
    "data": {"allow_shared": True, "allow_labels": True, "reader": {"group_key"}},
}
"""Settings that may change when a run is resumed: the parameters do not depend on them, or only through the data, which
are compared themselves (``group_key`` may change the split)."""


class TrainConfig(FrozenConfig):
    """Data, model, stages and all other settings of a training run."""

    data: DataConfig
    model: ForceField.Config
    stages: tuple[Stage, ...] = Field(
        min_length=1,
        max_length=100,
        description="in order; each starts from the best parameters of the stage before, or from the last ones if that "
        "stage trained the noise",
    )
    members: int = Field(
        5, ge=1, le=1000, description="networks in the ensemble; they differ in initial weights and order of batches"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of initial weights and order of batches")
    batch_size: int = Field(64, ge=1, le=10**6, description="structures per step and member")
    precision: Literal["float32", "float64"] = Field("float32", description="floating-point precision on the device")
    optimiser: OptimiserConfig = OptimiserConfig()
    references: ReferenceConfig = Field(
        FittedReferences(), description="energies of isolated atoms, subtracted from the labels before training"
    )
    validate_every: int = Field(1000, ge=1, le=10**9, description="steps between two validations")
    patience: int | None = Field(
        None,
        ge=1,
        le=10**9,
        description="end a stage for a member after this many validations without improvement; null for never",
    )
    selection: Literal["member", "ensemble"] = Field(
        "ensemble",
        description="parameters to keep: with member, the best of each member by its own validation score; with "
        "ensemble, the last of each member instead, if the whole ensemble scores better with them",
    )
    checkpoint_every: int = Field(1000, ge=1, le=10**9, description="steps between two checkpoints")
    report_every: int = Field(50, ge=1, le=10**9, description="steps between two lines of progress and history")
    buckets: int = Field(
        1,
        ge=1,
        le=64,
        description="groups of structures with similar neighbour counts: more mean less padding and more programs to "
        "compile",
    )
    baseline: BaselineConfig | None = Field(
        None,
        description="calculator whose errors the networks learn, such as {kind: tblite, method: GFN2-xTB}; {kind: "
        "columns} for results in the files; null for none",
    )
    skip_bad: bool = Field(False, description="leave out structures for which the baseline fails")
    novelty: bool = Field(
        True, description="let the noise of atoms grow with their distance to the training data, if it is local noise"
    )
    start_from: Path | None = Field(None, description="model file to start from; null for random weights")
    mesh: MeshConfig = MeshConfig()
    tensorboard: bool = Field(False, description="also write event files for TensorBoard")

    @model_validator(mode="before")
    @classmethod
    def _without_correction(cls, given: Any) -> Any:
        """Take ``correction: none`` as that of the model, and drop stages that would train nothing then."""
        if not isinstance(given, dict):
            return given
        given = dict(given)
        model = given.get("model")
        model = model.model_dump() if isinstance(model, ForceField.Config) else model
        if "correction" in given and isinstance(model, dict):
            model = {**model, "correction": given.pop("correction") or "learned"}
            given["model"] = model
        stages = given.get("stages")
        if isinstance(model, dict) and model.get("correction") == "none" and isinstance(stages, list | tuple):
            given["stages"] = [stage for stage in stages if _kind(stage) != "squared_error"]
        return given

    @model_validator(mode="after")
    def _correction_has_a_baseline(self) -> "TrainConfig":
        if self.model.correction == "none" and self.baseline is None:
            raise HuefieldError(
                "correction: none keeps the mean of a baseline, but there is none: name one, as in baseline: {kind: "
                "tblite}, or remove correction"
            )
        if self.baseline is not None and isinstance(self.references, GivenReferences):
            raise HuefieldError(
                "references: {kind: given} are total energies of isolated atoms, but with a baseline its errors are "
                "learnt: use references: {kind: least_squares}, or isolated_atoms with the atoms in the training data"
            )
        if self.model.correction == "none" and isinstance(self.model.noise, VanillaNoise.Config):
            raise HuefieldError("correction: none with vanilla noise would train nothing: use noise: {kind: local}")
        return self

    @model_validator(mode="after")
    def _stages_fit_the_noise(self) -> "TrainConfig":
        kinds = [stage.kind for stage in self.stages]
        noisy = [stage.kind for stage in self.stages if stage.trains_noise]
        if isinstance(self.model.noise, VanillaNoise.Config) and noisy:
            raise HuefieldError(
                f"stages {kinds} train the noise, but model.noise is vanilla, which has none: use squared_error stages "
                "only, or noise: {kind: local}"
            )
        if isinstance(self.model.noise, VanillaNoise.Config) and any(stage.initialise_noise for stage in self.stages):
            raise HuefieldError("a stage has initialise_noise, but model.noise is vanilla, which has no levels to set")
        other = [getattr(stage, "level_learns", "likelihood") for stage in self.stages]
        if isinstance(self.model.noise, LocalNoise.Config) and set(other) != {"likelihood"}:
            raise HuefieldError(
                "level_learns is for colored noise: the levels of local noise are those of atoms, which learn from all "
                "terms of the likelihood"
            )
        if self.optimiser.freeze_mean and len(noisy) < len(kinds):
            raise HuefieldError(
                f"with optimiser.freeze_mean, a squared_error stage would train nothing; the stages are {kinds}"
            )
        if self.optimiser.freeze_mean and self.start_from is None:
            raise HuefieldError("optimiser.freeze_mean needs a trained mean: name a model with start_from")
        return self

    @property
    def result_digest_input(self) -> dict[str, Any]:
        """The settings that the parameters depend on; the others may change when a run is resumed."""
        return self.model_dump(mode="json", exclude=CHANGEABLE)


def _kind(stage: Any) -> Any:
    return stage.get("kind") if isinstance(stage, dict) else getattr(stage, "kind", None)


def parse_config(text: str, source: str, overrides: Sequence[str] | Mapping[str, Any] = ()) -> TrainConfig:
    """Read a configuration from YAML, and override some of its keys.

    Args:
        text: the YAML.
        source: file or command that it came from, for messages.
        overrides: such as ``model.potential.features=64`` or ``stages.0.steps=100``, with values in YAML; or a mapping
            of keys to values.
    """
    content = content_of(text, source)
    return validated(content, source, with_overrides(content, overrides))


def content_of(text: str, source: str) -> dict[str, Any]:
    """The keys and values of a configuration in YAML."""
    content = parse_yaml(text, source)
    if not isinstance(content, dict):
        found = "empty" if content is None else f"a {type(content).__name__}"
        raise HuefieldError(
            f"{source} must be a mapping with keys such as data and model, but is {found}: `huefield config --preset "
            "small --data YOUR.xyz` prints one to start from"
        )
    return content


def validated(content: Mapping[str, Any], source: str, overridden: Collection[str] = ()) -> TrainConfig:
    """The configuration with this content; an error names each wrong key.

    Args:
        content: keys and values.
        source: file or command that they came from, for messages.
        overridden: keys that were set by hand (``--set``).
    """
    try:
        return TrainConfig.model_validate(dict(content))
    except ValidationError as error:
        raise HuefieldError(explain(error, source, content=content, by_hand=overridden)) from None


def with_overrides(content: dict[str, Any], overrides: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Set keys of a configuration, see :func:`parse_config`, and return them."""
    pairs = dict(overrides if isinstance(overrides, Mapping) else map(_parsed, overrides))
    if POTENTIAL_KIND in pairs:
        _forget_sizes_of_other(pairs[POTENTIAL_KIND], content)
    for path, value in pairs.items():
        _override(content, path, value)
    return list(pairs)


def _forget_sizes_of_other(kind: Any, content: dict[str, Any]) -> None:
    """Leave only the elements and the cutoff of a potential that is to be replaced by one of another kind."""
    model = content.get("model")
    old = model.get("potential") if isinstance(model, dict) else None
    if isinstance(model, dict) and isinstance(old, dict) and old.get("kind") != kind:
        model["potential"] = {key: value for key, value in old.items() if key in AbstractElementsConfig.model_fields}


def _parsed(override: str) -> tuple[str, Any]:
    path, separator, value = override.partition("=")
    if not separator or not path:
        raise HuefieldError(f"--set needs KEY=VALUE, such as model.potential.features=64, but got {override!r}")
    return path, parse_yaml(value, f"the value of --set {override}")


def _override(content: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    place: Any = content
    for name in parents:
        if isinstance(place, dict) and place.get(name) is None:
            place[name] = {}
        place = _entry(place, name, path)
    if isinstance(place, list):
        _entry(place, last, path)
        place[int(last)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise HuefieldError(f"cannot set {path}: {'.'.join(parents)} is {place!r}, which has no keys")


def _entry(place: Any, name: str, path: str) -> Any:
    if isinstance(place, list):
        if not name.isdigit() or int(name) >= len(place):
            raise HuefieldError(f"cannot set {path}: {name!r} is no index of a list of {len(place)}, counted from 0")
        return place[int(name)]
    if not isinstance(place, dict):
        raise HuefieldError(f"cannot set {path}: {place!r} has no keys")
    return place[name]


def to_yaml(config: TrainConfig) -> str:
    """A complete configuration as YAML, which :func:`parse_config` reads."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
