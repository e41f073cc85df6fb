"""Inputs of the training loop: its settings, data, devices and callbacks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from huefield.model.ensemble import Strategy
from huefield.model.forcefield import ForceField
from huefield.training.feed import AbstractFeed
from huefield.training.mesh import Layout
from huefield.training.reports import OnTrainingEvent
from huefield.training.stages import AbstractStage
from huefield.training.step import OptimiserConfig
from huefield.training.validation import Validator


@dataclass(frozen=True)
class LoopSettings:
    """The settings that the loop reads; :class:`~huefield.training.config.TrainConfig` describes them."""

    stages: tuple[AbstractStage, ...]
    optimiser: OptimiserConfig
    precision: Literal["float32", "float64"]
    validate_every: int
    checkpoint_every: int
    report_every: int
    patience: int | None = None
    tensorboard: bool = False


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything that a run works with."""

    loop: LoopSettings
    layout: Layout
    validator: Validator
    feed_for: Callable[[int], AbstractFeed]
    """Gives the batches of a stage."""
    folder: Path
    fingerprint: dict[str, Any] = field(default_factory=dict)
    """Inputs that must be the same when the run is resumed."""
    report: OnTrainingEvent = lambda event: None
    should_stop: Callable[[], bool] = lambda: False
    on_saved: Callable[[], None] = lambda: None
    """Called after each checkpoint."""
    diagnose: Callable[[ForceField, list[Int[np.ndarray, " _"]], AbstractStage], str] = lambda *_: ""
    """Explains why the last batches of a member failed."""
    strategy: Strategy = "auto"
    atoms: float = 1.0
    """Mean number of atoms of a structure, for the initial noise of models whose noise is a sum over atoms."""
