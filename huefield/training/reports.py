"""What training tells while it runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from huefield.training.validation import Scores


@dataclass(frozen=True, eq=False)
class StepReport:
    """How far a stage is."""

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
        """Of the stage, if it is not ended early."""
        return (self.stage_steps - self.step) / self.steps_per_second if self.steps_per_second else float("nan")


@dataclass(frozen=True, eq=False)
class ValidationReport:
    """Scores of all members, and whether they are the best of the stage."""

    stage: int
    stage_name: str
    step: int
    scores: Scores
    improved: np.ndarray


Report = Callable[[StepReport | ValidationReport | str], None]
"""Is told of progress; strings are messages for people."""


class Clock:
    """Steps per second, the first ones left out, in which programs are compiled."""

    def __init__(self) -> None:
        self._begin: tuple[int, float] | None = None

    def rate(self, step: int) -> float:
        """Since the first time that it was asked, which gives 0."""
        now = time.perf_counter()
        if self._begin is None or step <= self._begin[0]:
            self._begin = (step, now)
            return 0.0
        return (step - self._begin[0]) / (now - self._begin[1])
