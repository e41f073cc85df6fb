"""A training run: stages, steps, validations, checkpoints, and what to do when something goes wrong."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Int

from huefield.data.batches.batching import Batch, Place, prefetch
from huefield.model.forcefield import ForceField
from huefield.support.errors import HuefieldError
from huefield.training.checkpoint import CHECKPOINTS, CheckpointError, Contents, Position, load_newest, save_checkpoint
from huefield.training.config import TrainConfig
from huefield.training.feed import Feed
from huefield.training.history import History
from huefield.training.loop import TrainingDivergedError, with_noise_levels
from huefield.training.mesh import Layout, first_process
from huefield.training.program import StageProgram, chosen
from huefield.training.reports import Clock, Report, StepReport, ValidationReport
from huefield.training.stages import AbstractStage
from huefield.training.step import MemberState, StepMetrics
from huefield.training.tensorboard import TensorBoard
from huefield.training.validation import Validator

PREFETCHED = 2
BAD_IN_A_ROW = 10
"""Steps that may fail one after the other before training goes back to the last checkpoint."""
ROLLBACKS = 3
SMALLER_RATE = 0.3
"""Factor on the learning rate of a member that has made training go back."""


class TrainingStoppedError(HuefieldError):
    """The run was asked to stop, and has saved where it is."""


@dataclass(frozen=True, eq=False)
class Setting:
    """What a run works with."""

    config: TrainConfig
    layout: Layout
    validator: Validator
    feed_for: Callable[[int], Feed]
    """The batches of a stage."""
    folder: Path
    fingerprint: dict[str, Any]
    report: Report
    should_stop: Callable[[], bool]
    diagnose: Callable[[ForceField, list[Int[np.ndarray, " _"]], AbstractStage], str]


class Run:
    """The state of a run, and the loop that changes it."""

    now: Contents
    """What checkpoints are made of, laid out over the devices."""

    def __init__(self, setting: Setting, members: ForceField) -> None:
        self.setting = setting
        self.stages = setting.config.stages
        self.position = Position()
        self.first = members
        self.program = self._program(members, 0)
        self.resumed = False
        self.history: History | None = None
        self.tensorboard: TensorBoard | None = None
        self.recent: deque[Place] = deque(maxlen=BAD_IN_A_ROW)
        """Places of the last batches, for a diagnosis."""

    @property
    def stage(self) -> AbstractStage:
        """The stage that the run is in."""
        return self.stages[self.position.stage]

    def __call__(self) -> tuple[ForceField, ForceField]:
        """Train until all stages are done; the members at their best and at their last validation."""
        path = self.setting.folder / "history.jsonl"
        with (
            History(path, self.position.history_bytes) if first_process() else nullcontext() as self.history,
            self._tensorboard() as self.tensorboard,
        ):
            if not self.resumed:
                self._enter_stage(self.first)
            while not self.position.finished:
                self._run_stage()
                self._next_stage()
        return self.now.best, self.now.last

    def _program(self, members: ForceField, stage: int) -> StageProgram:
        return StageProgram(members, self.stages[stage], self.setting.config.optimiser, self.setting.layout)

    def _begun(self, members: ForceField, states: MemberState) -> Contents:
        """A stage that starts from these members."""
        count = self.setting.layout.num_members
        return Contents(
            states,
            best=members,
            last=members,
            best_score=np.full(count, np.inf),
            waited=np.zeros(count, np.int64),
            stopped=np.zeros(count, bool),
            failures=np.zeros(count, np.int64),
        )

    def _enter_stage(self, members: ForceField) -> None:
        self.program = self._program(members, self.position.stage)
        if self.stage.initialise_noise:
            members = self._with_noise_from_errors(members)
        self._hold(self._begun(members, self.program.start(members)))
        self._validate()  # what a stage starts from is its first candidate
        self._save()

    def _next_stage(self) -> None:
        at = self.position
        if at.stage + 1 == len(self.stages):
            self.position = replace(at, finished=True)
            self._save()
            return
        handed_over = self.now.last if self.stage.trains_noise else self.now.best
        self.position = replace(at, stage=at.stage + 1, step=0, place=Place(), rollbacks=0)
        self._enter_stage(handed_over)

    def _run_stage(self) -> None:
        feed, config = self.setting.feed_for(self.position.stage), self.setting.config
        while self.position.step < self.stage.steps and not self.now.stopped.all():
            rollbacks, due = self.position.rollbacks, False
            with closing(prefetch(feed.start(self.position.place), PREFETCHED)) as batches:  # type: ignore[type-var]
                clock = Clock()
                while self.position.step < self.stage.steps and not self.now.stopped.all():
                    metrics = self._step(*next(batches))
                    at = self.position
                    last = at.step == self.stage.steps
                    if last or at.step % config.report_every == 0:
                        self._tell(metrics, clock)
                        self._go_back_if_bad(feed)
                        if self.position.rollbacks > rollbacks:
                            break
                    if last or at.step % config.validate_every == 0:
                        self._validate()
                    due = due or at.step % config.checkpoint_every == 0
                    if due and self._healthy():
                        self._save()
                        due = False
                    self._stop_if_asked()

    def _step(self, place: Place, batch: Batch) -> StepMetrics:
        states, metrics = self.program.step(self.now.states, batch)
        self.now = replace(self.now, states=states)
        at = self.position
        self.recent.append(at.place)
        self.position = replace(at, step=at.step + 1, total_steps=at.total_steps + 1, place=place)
        return metrics

    def _tell(self, metrics: StepMetrics, clock: Clock) -> None:
        found = (metrics, self.now.states.health.skipped, self.now.states.member.noise.watched())
        told, skipped, noise = self.setting.layout.fetch(found)
        report = StepReport(
            self.position.stage,
            self.stage.kind,
            self.position.step,
            self.stage.steps,
            clock.rate(self.position.step),
            told.loss,
            told.gradient_norm,
            skipped,
            noise,
        )
        values = {name: getattr(report, name) for name in ("loss", "gradient_norm", "skipped")}
        self._record("steps", **_at(self.position, self.stage), **values, **report.noise)
        self.setting.report(report)

    def _validate(self) -> None:
        now, patience = self.now, self.setting.config.patience
        scores = self.setting.validator(now.states.averaged, self.stage)
        improved = (scores.criterion < now.best_score) & ~now.stopped
        waited = np.where(improved, 0, now.waited + 1)
        self.now = replace(
            now,
            best=self._taken(now.best, improved),
            last=self._taken(now.last, ~now.stopped),
            best_score=np.where(improved, scores.criterion, now.best_score),
            waited=waited,
            stopped=now.stopped if patience is None else now.stopped | (waited >= patience),
        )
        self._record("validation", **_at(self.position, self.stage), improved=improved, **vars(scores))
        self.setting.report(
            ValidationReport(self.position.stage, self.stage.kind, self.position.step, scores, improved)
        )

    def _taken(self, members: ForceField, which: Bool[np.ndarray, " M"]) -> ForceField:
        """Members, some of them as they are now."""
        spread = self.setting.layout.put(np.asarray(which), self.setting.layout.states)
        return chosen(members, self.now.states.averaged, spread)

    def _with_noise_from_errors(self, members: ForceField) -> ForceField:
        """Noise levels that match the validation errors of each member."""
        scores = self.setting.validator(members, self.stages[max(self.position.stage - 1, 0)])
        host, dtype = self.setting.layout.fetch(members), np.dtype(self.setting.config.precision)
        errors = (scores.energy_rmse.astype(dtype), scores.force_rmse.astype(dtype))
        return eqx.filter_vmap(with_noise_levels)(host, *errors)

    def _failed_in_a_row(self) -> Int[np.ndarray, " M"]:
        """How many of the last steps of each member failed; those of members that have ended the stage do not count."""
        return np.where(self.now.stopped, 0, self.setting.layout.fetch(self.now.states.health.in_a_row))

    def _healthy(self) -> bool:
        """Whether no member has just failed: a state in the middle of failures is none to go back to."""
        return not self._failed_in_a_row().any()

    def _go_back_if_bad(self, feed: Feed) -> None:
        bad = self._failed_in_a_row() >= BAD_IN_A_ROW
        if not bad.any():
            return
        at = self.position
        names = ", ".join(str(m) for m in np.flatnonzero(bad))
        failures = self.now.failures + bad
        if failures.max() > ROLLBACKS:
            self._give_up(int(failures.argmax()), feed)
        loaded = load_newest(self._checkpoints, self.now, self.setting.fingerprint, self.setting.report)
        assert loaded is not None  # noqa: S101 - one is written at the beginning of each stage
        if loaded[1].stage != at.stage:
            raise CheckpointError(
                f"steps of member {names} fail, and the checkpoint to go back to in {self._checkpoints} is damaged: "
                "start the same command again, which goes on from the stage before"
            )
        rates = self.setting.layout.fetch(self.now.states.rate)
        slower = np.where(bad, SMALLER_RATE, 1.0).astype(rates.dtype) * rates
        self._hold(eqx.tree_at(lambda c: (c.states.rate, c.failures), loaded[0], (slower, failures)))
        self.position = replace(loaded[1], rollbacks=at.rollbacks + 1)
        message = (
            f"steps up to {at.step} of member {names} gave no numbers or a loss out of all proportion: going back to "
            f"step {self.position.step} with {SMALLER_RATE:g} times the learning rate"
        )
        self._record("rollback", **_at(at, self.stage), to_step=self.position.step, members=np.flatnonzero(bad))
        self._save()  # a resumed run takes the smaller rate too
        self.setting.report(message)

    def _give_up(self, member: int, feed: Feed) -> None:
        states = self.setting.layout.fetch(self.now.states.member)
        one = jax.tree.map(lambda x: x[member] if eqx.is_array(x) else x, states)
        last = islice(feed.indices(self.recent[0]), len(self.recent))
        found = self.setting.diagnose(one, [batches[member] for _, batches in last], self.stage)
        raise TrainingDivergedError(
            f"training of member {member} fails again and again by step {self.position.step} of stage "
            f"{self.position.stage + 1} ({self.stage.kind}), {ROLLBACKS} times with a smaller learning "
            f"rate. {found}\nTrain into another folder (--out) with a smaller learning rate, or without those "
            "structures"
        )

    @property
    def _checkpoints(self) -> Path:
        return self.setting.folder / CHECKPOINTS

    def _save(self) -> None:
        contents = self.setting.layout.fetch(self.now)
        if not first_process():
            return
        if self.tensorboard is not None:
            self.tensorboard.flush()
        size = self.history.num_bytes if self.history is not None else self.position.history_bytes
        save_checkpoint(
            self._checkpoints, contents, replace(self.position, history_bytes=size), self.setting.fingerprint
        )

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        skeleton = self._begun(self.first, self.program.begun)
        loaded = load_newest(self._checkpoints, skeleton, self.setting.fingerprint, self.setting.report)
        if not self.setting.layout.same_everywhere(-1 if loaded is None else loaded[1].total_steps):
            raise CheckpointError(
                f"processes of the job find different checkpoints in {self._checkpoints}: --out must be a folder that "
                "all of them share"
            )
        if loaded is None:
            return
        contents, position = loaded
        self.program = self._program(self.first, position.stage)
        self._hold(contents)
        self.position = position
        where = f"resuming at step {position.step} of stage {position.stage + 1} ({self.stage.kind})"
        self.setting.report("this run is finished: scoring it again" if position.finished else where)
        self.resumed = True

    def _hold(self, contents: Contents) -> None:
        """Go on from here."""
        layout = self.setting.layout
        self.recent.clear()
        spread = {name: layout.put(getattr(contents, name), layout.states) for name in ("states", "best", "last")}
        self.now = replace(contents, **spread)

    def _stop_if_asked(self) -> None:
        config = self.setting.config
        if self.setting.layout.several_processes and self.position.step % config.report_every:
            return
        if self.setting.layout.agreed(self.setting.should_stop()):
            healthy = self._healthy()  # else the checkpoint before the failures is the one to go on from
            if healthy:
                self._save()
            kept = "which is saved" if healthy else "where steps fail; the state before that is saved"
            raise TrainingStoppedError(
                f"stopped at step {self.position.step} of stage {self.position.stage + 1}, {kept} in "
                f"{self.setting.folder}; the same command goes on from there"
            )

    def _record(self, event: str, **values: Any) -> None:
        for file in (self.history, self.tensorboard):
            if file is not None:
                file.write(event, **values)

    def _tensorboard(self) -> TensorBoard | nullcontext[None]:
        wanted = self.setting.config.tensorboard and first_process()
        folder = self.setting.folder / "tensorboard"
        return TensorBoard(folder, self.position.total_steps) if wanted else nullcontext()


def _at(position: Position, stage: AbstractStage) -> dict[str, Any]:
    return {
        "stage": position.stage,
        "kind": stage.kind,
        "step": position.step,
        "total_steps": position.total_steps,
        "time": time.time(),
    }
