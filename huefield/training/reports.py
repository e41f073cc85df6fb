"""Events that training reports while it runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from huefield.training.validation import MemberMetrics


@dataclass(frozen=True, eq=False)
class StepReport:
    """Progress of a stage."""

    stage: int
    stage_name: str
    step: int
    stage_steps: int
    steps_per_second: float
    loss: Float[np.ndarray, " M"]
    gradient_norm: Float[np.ndarray, " M"]
    skipped: Int[np.ndarray, " M"]
    noise: dict[str, Float[np.ndarray, " M"]]
    """Parameters of the noise model worth watching, such as γ."""

    @property
    def seconds_left(self) -> float:
        """Estimated time to the end of the stage, if it does not end early."""
        return (self.stage_steps - self.step) / self.steps_per_second if self.steps_per_second else float("nan")


@dataclass(frozen=True, eq=False)
class ValidationReport:
    """Validation metrics of all members, and whether they are the best of the stage so far."""

    stage: int
    stage_name: str
    step: int
    metrics: MemberMetrics
    improved: np.ndarray


TrainingEvent: TypeAlias = StepReport | ValidationReport | str
"""Strings are messages for people."""
OnTrainingEvent: TypeAlias = Callable[[TrainingEvent], None]
"""Receives the events of training."""


class Clock:
    """Measures steps per second, without the first ones, in which programs are compiled."""

    def __init__(self) -> None:
        self._begin: tuple[int, float] | None = None

    def rate(self, step: int) -> float:
        """Steps per second since the first call, which returns 0."""
        now = time.perf_counter()
        if self._begin is None or step <= self._begin[0]:
            self._begin = (step, now)
            return 0.0
        return (step - self._begin[0]) / (now - self._begin[1])
