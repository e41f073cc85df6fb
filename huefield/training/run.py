"""The training loop: stages, steps, validations, checkpoints, and recovery from failed steps."""

from collections import deque
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NoReturn

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Int

from huefield.data.batches.batching import Batch, Place, prefetch
from huefield.model.forcefield import ForceField
from huefield.support.errors import HuefieldError
from huefield.training.checkpoint import (
    CHECKPOINTS,
    CheckpointError,
    RunPosition,
    RunState,
    load_newest,
    save_checkpoint,
)
from huefield.training.feed import AbstractFeed
from huefield.training.initial import with_noise_levels
from huefield.training.mesh import first_process
from huefield.training.program import StageProgram, chosen
from huefield.training.record import RunRecord, recording
from huefield.training.reports import Clock, StepReport, ValidationReport
from huefield.training.setting import Setting
from huefield.training.stages import AbstractStage
from huefield.training.step import MemberState, StepMetrics

PREFETCHED = 2
"""Batches that are prepared ahead."""
BAD_IN_A_ROW = 10
"""Consecutive failed steps of a member after which training goes back to the last checkpoint."""
ROLLBACKS = 3
"""Times that a member may make training go back in a stage."""
SMALLER_RATE = 0.3
"""Factor on the learning rate of a member that made training go back."""


class TrainingStoppedError(HuefieldError):
    """The run was asked to stop and has saved its state."""


class TrainingDivergedError(HuefieldError):
    """Steps of a member keep failing; the message names the structures and terms of the loss."""


class Run:
    """The state of a run, and the loop that changes it."""

    now: RunState
    """The state that checkpoints save, laid out over the devices."""
    record: RunRecord

    def __init__(self, setting: Setting, members: ForceField) -> None:
        self.setting = setting
        self.stages = setting.loop.stages
        self.position = RunPosition()
        self.first = members
        self.program = self._program(members, 0)
        self.resumed = False
        self.recent: deque[Place] = deque(maxlen=BAD_IN_A_ROW)
        """Positions of the last batches in the data, for a diagnosis."""

    @property
    def stage(self) -> AbstractStage:
        """The current stage."""
        return self.stages[self.position.stage]

    def __call__(self) -> tuple[ForceField, ForceField]:
        """Train through all stages; returns the members at their best and at their last validation."""
        setting = self.setting
        with recording(setting.folder, self.position, tensorboard=setting.loop.tensorboard) as self.record:
            if not self.resumed:
                self._enter_stage(self.first)
            while not self.position.finished:
                self._run_stage()
                self._next_stage()
        return self.now.best, self.now.last

    def _program(self, members: ForceField, stage: int) -> StageProgram:
        setting = self.setting
        return StageProgram(members, self.stages[stage], setting.loop.optimiser, setting.layout, setting.strategy)

    def _begun(self, members: ForceField, states: MemberState) -> RunState:
        """The state at the start of a stage."""
        count = self.setting.layout.num_members
        return RunState(
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
        self._validate()  # the initial parameters of a stage may be its best
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
        feed, loop = self.setting.feed_for(self.position.stage), self.setting.loop
        while self.position.step < self.stage.steps and not self.now.stopped.all():
            rollbacks, due = self.position.rollbacks, False
            with closing(prefetch(feed.start(self.position.place), PREFETCHED)) as batches:  # type: ignore[type-var]
                clock = Clock()
                while self.position.step < self.stage.steps and not self.now.stopped.all():
                    metrics = self._step(*next(batches))
                    at = self.position
                    last = at.step == self.stage.steps
                    if last or at.step % loop.report_every == 0:
                        self._report_step(metrics, clock)
                        self._go_back_if_bad(feed)
                        if self.position.rollbacks > rollbacks:
                            break
                    if last or at.step % loop.validate_every == 0:
                        self._validate()
                    due = due or at.step % loop.checkpoint_every == 0
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

    def _report_step(self, metrics: StepMetrics, clock: Clock) -> None:
        found = (metrics, self.now.states.health.skipped, self.now.states.member.noise.watched())
        fetched, skipped, noise = self.setting.layout.fetch(found)
        report = StepReport(
            self.position.stage,
            self.stage.kind,
            self.position.step,
            self.stage.steps,
            clock.rate(self.position.step),
            fetched.loss,
            fetched.gradient_norm,
            skipped,
            noise,
        )
        values = {name: getattr(report, name) for name in ("loss", "gradient_norm", "skipped")}
        self.record.write("steps", self.position, self.stage, **values, **report.noise)
        self.setting.report(report)

    def _validate(self) -> None:
        now, patience = self.now, self.setting.loop.patience
        metrics = self.setting.validator(now.states.averaged, self.stage)
        improved = (metrics.criterion < now.best_score) & ~now.stopped
        waited = np.where(improved, 0, now.waited + 1)
        self.now = replace(
            now,
            best=self._taken(now.best, improved),
            last=self._taken(now.last, ~now.stopped),
            best_score=np.where(improved, metrics.criterion, now.best_score),
            waited=waited,
            stopped=now.stopped if patience is None else now.stopped | (waited >= patience),
        )
        self.record.write("validation", self.position, self.stage, improved=improved, **metrics.known())
        self.setting.report(
            ValidationReport(self.position.stage, self.stage.kind, self.position.step, metrics, improved)
        )

    def _taken(self, members: ForceField, which: Bool[np.ndarray, " M"]) -> ForceField:
        """The given members, of which the selected ones are replaced by their current averages."""
        spread = self.setting.layout.put(np.asarray(which), self.setting.layout.states)
        return chosen(members, self.now.states.averaged, spread)

    def _with_noise_from_errors(self, members: ForceField) -> ForceField:
        """The members with noise levels that match their own validation errors."""
        metrics = self.setting.validator(members, self.stages[max(self.position.stage - 1, 0)])
        host, dtype = self.setting.layout.fetch(members), np.dtype(self.setting.loop.precision)
        errors = (metrics.energy_rmse.astype(dtype), metrics.force_rmse.astype(dtype))
        atoms = self.setting.atoms
        return eqx.filter_vmap(lambda member, e, f: with_noise_levels(member, e, f, atoms))(host, *errors)

    def _failed_in_a_row(self) -> Int[np.ndarray, " M"]:
        """Consecutive failed steps of each member; zero for members that have ended the stage."""
        return np.where(self.now.stopped, 0, self.setting.layout.fetch(self.now.states.health.in_a_row))

    def _healthy(self) -> bool:
        """Whether the last step of every member succeeded; only such a state is worth returning to."""
        return not self._failed_in_a_row().any()

    def _go_back_if_bad(self, feed: AbstractFeed) -> None:
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
                f"steps of member {names} fail, and the checkpoint of this stage in {self._checkpoints} is damaged: "
                "run the same command again to resume from the stage before"
            )
        rates = self.setting.layout.fetch(self.now.states.rate)
        slower = np.where(bad, SMALLER_RATE, 1.0).astype(rates.dtype) * rates
        self._hold(eqx.tree_at(lambda c: (c.states.rate, c.failures), loaded[0], (slower, failures)))
        self.position = replace(loaded[1], rollbacks=at.rollbacks + 1)
        message = (
            f"the last steps of member {names} up to {at.step} gave NaN or a loss that exploded: returning to step "
            f"{self.position.step} with {SMALLER_RATE:g} times the learning rate"
        )
        self.record.write("rollback", at, self.stage, to_step=self.position.step, members=np.flatnonzero(bad))
        self._save()  # a resumed run keeps the smaller rate
        self.setting.report(message)

    def _give_up(self, member: int, feed: AbstractFeed) -> NoReturn:
        states = self.setting.layout.fetch(self.now.states.member)
        one = jax.tree.map(lambda x: x[member] if eqx.is_array(x) else x, states)
        last = islice(feed.indices(self.recent[0]), len(self.recent))
        found = self.setting.diagnose(one, [batches[member] for _, batches in last], self.stage)
        raise TrainingDivergedError(
            f"training of member {member} diverged at step {self.position.step} of stage {self.position.stage + 1} "
            f"({self.stage.kind}), also after {ROLLBACKS} returns with a smaller learning rate. {found}\nTrain into "
            "another folder (--out) with a smaller learning rate, or without those structures"
        )

    @property
    def _checkpoints(self) -> Path:
        return self.setting.folder / CHECKPOINTS

    def _save(self) -> None:
        state = self.setting.layout.fetch(self.now)
        if first_process():
            position = replace(self.position, history_bytes=self.record.flushed_bytes())
            save_checkpoint(self._checkpoints, state, position, self.setting.fingerprint)
        self.setting.on_saved()

    def resume(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        skeleton = self._begun(self.first, self.program.begun)
        loaded = load_newest(self._checkpoints, skeleton, self.setting.fingerprint, self.setting.report)
        if not self.setting.layout.same_everywhere(-1 if loaded is None else loaded[1].total_steps):
            raise CheckpointError(
                f"the processes of the job find different checkpoints in {self._checkpoints}: --out must be a folder "
                "that all of them share"
            )
        if loaded is None:
            return
        state, position = loaded
        self.program = self._program(self.first, position.stage)
        self._hold(state)
        self.position = position
        where = f"resuming at step {position.step} of stage {position.stage + 1} ({self.stage.kind})"
        self.setting.report("this run is finished: evaluating it again" if position.finished else where)
        self.resumed = True

    def _hold(self, state: RunState) -> None:
        """Make this the current state."""
        layout = self.setting.layout
        self.recent.clear()
        spread = {name: layout.put(getattr(state, name), layout.states) for name in ("states", "best", "last")}
        self.now = replace(state, **spread)

    def _stop_if_asked(self) -> None:
        if self.setting.layout.several_processes and self.position.step % self.setting.loop.report_every:
            return
        if self.setting.layout.agreed(self.setting.should_stop()):
            healthy = self._healthy()  # otherwise the checkpoint before the failures is the one to resume from
            if healthy:
                self._save()
            kept = "saved" if healthy else "where steps fail; the last good state is saved"
            raise TrainingStoppedError(
                f"stopped at step {self.position.step} of stage {self.position.stage + 1}, {kept} in "
                f"{self.setting.folder}; run the same command again to resume"
            )
