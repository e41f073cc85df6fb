"""Molecular dynamics runs, from the first step or resumed from a checkpoint."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from ase import Atoms

from huefield.ase.calculator import Calculator
from huefield.ase.md.config import MDConfig
from huefield.ase.md.dynamics import Dynamics, State
from huefield.ase.md.figure import save_md_figure
from huefield.ase.md.folder import CONFIG, FIGURE, LOG, TRAJECTORY, UNCERTAIN, Checkpoint, Folder
from huefield.ase.md.frames import table_row
from huefield.ase.md.records import Snapshot, log_columns, temperature_kelvin
from huefield.ase.md.start import degrees_of_freedom, prepared
from huefield.ase.md.watch import Limits, Watch, deviations_in, measured
from huefield.ase.thresholds import Threshold
from huefield.core.structure import Precision
from huefield.model.modelfile import ModelSource
from huefield.support.errors import HuefieldError, NoPredictionError
from huefield.support.files import alone_in, require_writable

WRITTEN = (TRAJECTORY, LOG, UNCERTAIN, FIGURE, CONFIG)
Ended = Literal["finished", "stopped", "exploded", "interrupted"]


@dataclass(frozen=True)
class MDProgress:
    """Progress of a run."""

    step: int
    steps: int
    timestep_fs: float
    temperature_kelvin: float
    potential_energy: float
    total_energy: float
    force_uncertainty: float | None
    """The last value that was compared with the threshold; None before the first."""
    steps_per_second: float | None
    """Speed of this process without compilation; None at its beginning."""

    @property
    def time_fs(self) -> float:
        """Simulated time since the first step."""
        return self.step * self.timestep_fs

    @property
    def seconds_left(self) -> float | None:
        """Estimated time until the last step."""
        return (self.steps - self.step) / self.steps_per_second if self.steps_per_second else None

    @property
    def ns_per_day(self) -> float | None:
        """Simulated time per day."""
        return self.steps_per_second * self.timestep_fs * 1e-6 * 86400 if self.steps_per_second else None


@dataclass(frozen=True)
class MDResult:
    """Outcome of a run."""

    ended: Ended
    step: int
    """The last step that was taken or tried."""
    message: str
    """The reason for the end, and possible next actions."""
    frames: int
    """Number of frames in the trajectory."""
    saved: int
    """Number of saved uncertain structures."""
    files: tuple[Path, ...]


def run_md(
    config: MDConfig,
    model: ModelSource | Calculator,
    start: Atoms,
    out: str | Path,
    *,
    overwrite: bool = False,
    figure: bool = True,
    report: Callable[[MDProgress | str], None] = lambda event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> MDResult:
    """Run molecular dynamics, or resume a run.

    Args:
        config: settings of the run.
        model: a model as :class:`huefield.Calculator` takes it, or a calculator whose compiled programs are reused.
        start: the first structure; its momenta are kept if it has any.
        out: folder for the files of the run. A run in it that has the same settings is resumed.
        overwrite: start again if the folder has a run.
        figure: draw the log at the end.
        report: called with progress and with messages for the user.
        should_stop: called after each step; the run stops when it returns True.
    """
    out = Path(out)
    calculator = _calculator(model, config.precision)
    calculator.require_sense(start)
    first = prepared(start, config)
    limits = Limits.of(config, calculator.ensemble)
    folder = Folder(out, config, calculator.ensemble, start)
    if out.exists() and not overwrite:
        folder.checkpoint()  # fails before anything is compiled
    Dynamics(first, State.of(first), config, calculator)  # fails before anything is written
    kelvin = config.temperature_kelvin or temperature_kelvin(first, degrees_of_freedom(first, config))
    cutoff_angstrom = calculator.ensemble.members.potential.atomic_config.cutoff_angstrom
    watch = Watch(first, config, limits, cutoff_angstrom, kelvin)
    for given in (config.threshold, config.refuse_above):
        if given is not None and Threshold.parse(given).doubt:
            report(Threshold.parse(given).doubt)
    if config.threshold is None and config.uncertainty_every:
        report("No --threshold: the run continues however uncertain the forces are")
    require_writable(out)
    with alone_in(out):
        checkpoint = None if overwrite else folder.checkpoint()
        if checkpoint is None:
            checkpoint = folder.begin(State.of(first))
        elif checkpoint.state.step:
            report(f"Resuming the run in {out} at step {checkpoint.state.step}")
        try:
            folder.resume(checkpoint)
            folder.write_config(config, limits_ev_per_angstrom=asdict(limits))
            run = _Run(config, first, calculator, folder, watch, checkpoint, report, should_stop)
            ending = run.to_the_end()
        finally:
            folder.close()
        if figure and (out / LOG).exists():
            save_md_figure(out / LOG, config, limits)
        files = tuple(out / name for name in WRITTEN if (out / name).exists())
        return MDResult(*ending, run.written.frames, run.written.saved, files)


class _Ending(NamedTuple):
    """See :class:`MDResult`."""

    ended: Ended
    step: int
    message: str


class _Run:
    """The loop over steps, with records and checkpoints."""

    def __init__(
        self,
        config: MDConfig,
        start: Atoms,
        calculator: Calculator,
        folder: Folder,
        watch: Watch,
        checkpoint: Checkpoint,
        report: Callable[[MDProgress | str], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.config, self.folder, self.watch, self.written = config, folder, watch, checkpoint.written
        self._start, self._calculator, self._report, self._should_stop = start, calculator, report, should_stop
        self._freedom = degrees_of_freedom(start, config)
        self._columns = log_columns(config)
        self._uncertainty: float | None = None
        self._clock: list[tuple[float, int]] = []
        self._dynamics = self._continued(checkpoint.state)

    def to_the_end(self) -> _Ending:
        """Take all steps, unless something ends the run before."""
        ending = None if self.written.this_step else self._explosion_or(self._record)
        while ending is None and self._dynamics.step < self.config.steps:
            if self._should_stop():
                return self._interrupted()
            ending = self._explosion_or(self._advance) or self._explosion_or(self._record)
        if ending is not None:
            return ending
        if self._dynamics.step % self.config.checkpoint_every == 0:
            self._save(this_step=True)
        return _Ending(
            "finished", self._dynamics.step, f"Took {self._dynamics.step} steps: {self._time_fs / 1000:g} ps"
        )

    def _continued(self, state: State) -> Dynamics:
        """Continue with new neighbour lists, so that forces do not depend on whether the run was interrupted."""
        return Dynamics(self._start, state, self.config, self._calculator.sibling())

    def _explosion_or(self, action: Callable[[], _Ending | None]) -> _Ending | None:
        """End the run if the model cannot predict a structure. Any other error is not caught."""
        try:
            return action()
        except NoPredictionError as error:
            return self._exploded(str(error))

    def _advance(self) -> None:
        self._dynamics.advance()
        if self._dynamics.step % self.config.checkpoint_every == 0:
            self._dynamics = self._continued(self._save(this_step=False))

    def _save(self, *, this_step: bool) -> State:
        state = self._dynamics.state()
        self.written = replace(self.written, this_step=this_step)
        self.folder.save(state, self.written)
        return state

    def _record(self) -> _Ending | None:
        """Write the records of a step; returns how the run ends if it ends here."""
        step, config, atoms = self._dynamics.step, self.config, self._dynamics.atoms
        kelvin = temperature_kelvin(atoms, self._freedom)
        reason = self.watch.too_hot(kelvin)
        uncertain = bool(config.uncertainty_every) and step % config.uncertainty_every == 0
        regular = step % config.every == 0
        if not (reason or uncertain or regular):
            return None
        results = self._dynamics.results
        snapshot = Snapshot(step, self._time_fs, atoms, kelvin, results, deviations_in(results))
        reason = reason or self.watch.exploded(atoms, snapshot.deviations)
        if reason:
            return self._exploded(reason)
        self._log(snapshot)
        if regular:
            self.folder.append(TRAJECTORY, snapshot.frame())
            self.written = replace(self.written, frames=self.written.frames + 1)
        return self._above_threshold(snapshot)

    def _above_threshold(self, snapshot: Snapshot) -> _Ending | None:
        written, threshold, stop = self.written, self.watch.limits.threshold, self.config.on_threshold == "stop"
        reason = self.watch.uncertain(snapshot.atoms, snapshot.deviations)
        if not reason or threshold is None:
            return None
        if stop or written.last_saved is None or snapshot.step - written.last_saved >= self.config.save_every:
            self.folder.append(UNCERTAIN, snapshot.uncertain_frame(self.config, threshold))
            self.written = replace(written, saved=written.saved + 1, last_saved=snapshot.step)
        if not stop:
            return None
        message = (
            f"Stopped at step {snapshot.step} ({self._time_fs:g} fs): {reason}. Label the structure in "
            f"{self.folder.path / UNCERTAIN} and train with it, or continue with --on-threshold save or a higher "
            "--threshold"
        )
        return _Ending("stopped", snapshot.step, message)

    def _log(self, snapshot: Snapshot) -> None:
        """Write a row of the log, and report progress."""
        if not snapshot.step:
            self.folder.append(LOG, ",".join(self._columns) + "\n")
        values = snapshot.values()
        self.folder.append(LOG, table_row(values, self._columns))
        if snapshot.deviations:
            self._uncertainty = measured(snapshot.deviations[self.config.part], self.config.measure)
        energies = values["potential_energy"], values["total_energy"]
        numbers = (snapshot.temperature_kelvin, *energies, self._uncertainty, self._rate())
        self._report(MDProgress(snapshot.step, self.config.steps, self.config.timestep_fs, *numbers))

    def _rate(self) -> float | None:
        """Steps per second since the second record, because programs are compiled before it."""
        now, step = time.monotonic(), self._dynamics.step
        if len(self._clock) < 2:
            self._clock.append((now, step))
            return None
        begun, first = self._clock[1]
        return (step - first) / max(now - begun, 1e-9)

    def _exploded(self, reason: str) -> _Ending:
        step = self._dynamics.step
        frames = self.written.frames
        kept = f"{frames} frames before it are in {self.folder.path / TRAJECTORY}; " if frames else ""
        advice = (
            "try a smaller --timestep, or train with structures from before the explosion (--threshold finds them)"
            if step
            else "the start is unphysical, the model was not trained on such structures, or a limit is too low"
        )
        return _Ending("exploded", step, f"Exploded at step {step} ({self._time_fs:g} fs): {reason}. {kept}{advice}")

    def _interrupted(self) -> _Ending:
        step = self._dynamics.step
        message = (
            f"Stopped after step {step}. Everything is in {self.folder.path}: repeat the command to resume from the "
            f"checkpoint at step {step - step % self.config.checkpoint_every}"
        )
        return _Ending("interrupted", step, message)

    @property
    def _time_fs(self) -> float:
        return self._dynamics.step * self.config.timestep_fs


def _calculator(model: ModelSource | Calculator, precision: Precision) -> Calculator:
    if not isinstance(model, Calculator):
        return Calculator(model, warn_above=None, precision=precision)
    found = model.evaluator.precision
    if found != precision:
        raise HuefieldError(f"the calculator has the precision {found}, but the run {precision}: make them equal")
    return model.sibling()
