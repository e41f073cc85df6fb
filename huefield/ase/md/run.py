"""A run of molecular dynamics, from its first step or from where it was left."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from ase import Atoms

from huefield.ase.calculator import Calculator
from huefield.ase.md.config import MDConfig
from huefield.ase.md.dynamics import Dynamics, State
from huefield.ase.md.figure import save_md_figure
from huefield.ase.md.folder import CONFIG, FIGURE, LOG, TRAJECTORY, UNCERTAIN, Folder, Saved
from huefield.ase.md.frames import table_row
from huefield.ase.md.records import Look, log_columns, temperature_kelvin
from huefield.ase.md.start import degrees_of_freedom, prepared
from huefield.ase.md.watch import Levels, Watch, deviations_in, measured
from huefield.ase.thresholds import Threshold
from huefield.model.forcefield import Ensemble
from huefield.predict.evaluator import Precision
from huefield.support.errors import HuefieldError
from huefield.support.files import alone_in, require_writable

WRITTEN = (TRAJECTORY, LOG, UNCERTAIN, FIGURE, CONFIG)
Ended = Literal["finished", "stopped", "exploded", "interrupted"]


@dataclass(frozen=True)
class MDProgress:
    """How far a run is."""

    step: int
    steps: int
    timestep_fs: float
    temperature_kelvin: float
    potential_energy: float
    total_energy: float
    force_uncertainty: float | None
    """What the threshold is for; None where it was not looked at yet."""
    steps_per_second: float | None
    """Of this process, without compilation; None at its beginning."""

    @property
    def time_fs(self) -> float:
        """Since the first step."""
        return self.step * self.timestep_fs

    @property
    def seconds_left(self) -> float | None:
        """Until the last step."""
        return (self.steps - self.step) / self.steps_per_second if self.steps_per_second else None

    @property
    def ns_per_day(self) -> float | None:
        """Simulated time in a day."""
        return self.steps_per_second * self.timestep_fs * 1e-6 * 86400 if self.steps_per_second else None


@dataclass(frozen=True)
class MDResult:
    """How a run ended."""

    ended: Ended
    step: int
    """The last one that was taken, or tried."""
    message: str
    """For people: why it ended, and what they can do."""
    frames: int
    """In the trajectory."""
    saved: int
    """Uncertain structures that were saved."""
    files: tuple[Path, ...]


def run_md(
    config: MDConfig,
    model: Ensemble | Calculator | str | Path,
    start: Atoms,
    out: Path,
    *,
    overwrite: bool = False,
    figure: bool = True,
    report: Callable[[MDProgress | str], None] = lambda event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> MDResult:
    """Run molecular dynamics, or go on with a run.

    Args:
        config: of the run.
        model: an ensemble, its file, or a calculator whose compiled programs are used.
        start: the first structure; its momenta are kept if it has some.
        out: folder to write to. A run in it that has the same settings is gone on with.
        overwrite: start anew where there is a run.
        figure: draw the log at the end.
        report: is told how far the run is at each look at it, and what people should know.
        should_stop: is asked after each step.
    """
    calculator = _calculator(model, config.precision)
    calculator.require_sense(start)
    first = prepared(start, config)
    levels = Levels.of(config, calculator.ensemble)
    folder = Folder(out, config, calculator.ensemble, start)
    if out.exists() and not overwrite:
        folder.newest()  # says what is wrong with it before anything is compiled
    Dynamics(first, State.of(first), config, calculator)  # says what is wrong with the start
    kelvin = config.temperature_kelvin or temperature_kelvin(first, degrees_of_freedom(first, config))
    cutoff_angstrom = calculator.ensemble.members.potential.atomic_config.cutoff_angstrom
    watch = Watch(first, config, levels, cutoff_angstrom, kelvin)
    for given in (config.threshold, config.refuse_above):
        if given is not None and Threshold.parse(given).doubt:
            report(Threshold.parse(given).doubt)
    if config.threshold is None and config.uncertainty_every:
        report("Without --threshold the run goes on however uncertain forces are")
    require_writable(out)
    with alone_in(out):
        saved = None if overwrite else folder.newest()
        if saved is None:
            saved = folder.begin(State.of(first))
        elif saved.state.step:
            report(f"Going on from step {saved.state.step} of the run in {out}")
        try:
            folder.go_on(saved)
            folder.write_config(config, threshold_level=levels.lower, refuse_level=levels.upper)
            run = _Run(config, first, calculator, folder, watch, saved, report, should_stop)
            ending = run.to_the_end()
        finally:
            folder.close()
        if figure and (out / LOG).exists():
            save_md_figure(out / LOG, config, levels)
        files = tuple(out / name for name in WRITTEN if (out / name).exists())
        return MDResult(*ending, run.place.frames, run.place.saved, files)


class _Ending(NamedTuple):
    """See :class:`MDResult`."""

    ended: Ended
    step: int
    message: str


class _Run:
    """Steps, looks and checkpoints."""

    def __init__(
        self,
        config: MDConfig,
        start: Atoms,
        calculator: Calculator,
        folder: Folder,
        watch: Watch,
        saved: Saved,
        report: Callable[[MDProgress | str], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.config, self.folder, self.watch, self.place = config, folder, watch, saved.place
        self._start, self._calculator, self._report, self._should_stop = start, calculator, report, should_stop
        self._freedom = degrees_of_freedom(start, config)
        self._columns = log_columns(config)
        self._uncertainty: float | None = None
        self._looks: list[tuple[float, int]] = []
        self._dynamics = self._going_on(saved.state)

    def to_the_end(self) -> _Ending:
        """Take all steps, or as many as there can be."""
        ending = None if self.place.looked else self._look()
        while ending is None and self._dynamics.step < self.config.steps:
            if self._should_stop():
                return self._interrupted()
            ending = self._advance() or self._look()
        if ending is not None:
            return ending
        if self._dynamics.step % self.config.checkpoint_every == 0:
            self._save(looked=True)
        return _Ending(
            "finished", self._dynamics.step, f"Took {self._dynamics.step} steps: {self._time_fs / 1000:g} ps"
        )

    def _going_on(self, state: State) -> Dynamics:
        """With new neighbour lists, so that forces are the same whoever goes on from the state."""
        return Dynamics(self._start, state, self.config, self._calculator.sibling())

    def _advance(self) -> _Ending | None:
        try:
            self._dynamics.advance()
            if self._dynamics.step % self.config.checkpoint_every == 0:
                self._dynamics = self._going_on(self._save(looked=False))
        except ValueError as error:  # atoms too close, or no number any more
            return self._exploded(str(error))
        return None

    def _save(self, *, looked: bool) -> State:
        state = self._dynamics.state()
        self.place = replace(self.place, looked=looked)
        self.folder.save(state, self.place)
        return state

    def _look(self) -> _Ending | None:
        """Write what is to be written of a step, and say how the run ends if it does."""
        step, config, atoms = self._dynamics.step, self.config, self._dynamics.atoms
        kelvin = temperature_kelvin(atoms, self._freedom)
        reason = self.watch.too_hot(kelvin)
        uncertain = bool(config.uncertainty_every) and step % config.uncertainty_every == 0
        regular = step % config.every == 0
        if not (reason or uncertain or regular):
            return None
        results = self._dynamics.results
        look = Look(step, self._time_fs, atoms, kelvin, results, deviations_in(results))
        reason = reason or self.watch.exploded(atoms, look.deviations)
        if reason:
            return self._exploded(reason)
        self._log(look)
        if regular:
            self.folder.append(TRAJECTORY, look.frame())
            self.place = replace(self.place, frames=self.place.frames + 1)
        return self._beyond_threshold(look)

    def _beyond_threshold(self, look: Look) -> _Ending | None:
        place, lower, stop = self.place, self.watch.levels.lower, self.config.on_threshold == "stop"
        reason = self.watch.uncertain(look.atoms, look.deviations)
        if not reason or lower is None:
            return None
        if stop or place.last_saved is None or look.step - place.last_saved >= self.config.save_every:
            self.folder.append(UNCERTAIN, look.uncertain_frame(self.config, lower))
            self.place = replace(place, saved=place.saved + 1, last_saved=look.step)
        if not stop:
            return None
        said = (
            f"Stopped at step {look.step} ({self._time_fs:g} fs): {reason}. Label the structure in "
            f"{self.folder.path / UNCERTAIN} and train with it; or go on all the same, with --on-threshold save or a "
            "higher --threshold"
        )
        return _Ending("stopped", look.step, said)

    def _log(self, look: Look) -> None:
        """A row, and a report."""
        if not look.step:
            self.folder.append(LOG, ",".join(self._columns) + "\n")
        values = look.values()
        self.folder.append(LOG, table_row(values, self._columns))
        if look.deviations:
            self._uncertainty = measured(look.deviations[self.config.part], self.config.measure)
        energies = values["potential_energy"], values["total_energy"]
        numbers = (look.temperature_kelvin, *energies, self._uncertainty, self._rate())
        self._report(MDProgress(look.step, self.config.steps, self.config.timestep_fs, *numbers))

    def _rate(self) -> float | None:
        """Steps in a second since the second look, as programs are compiled before it."""
        now, step = time.monotonic(), self._dynamics.step
        if len(self._looks) < 2:
            self._looks.append((now, step))
            return None
        begun, first = self._looks[1]
        return (step - first) / max(now - begun, 1e-9)

    def _exploded(self, reason: str) -> _Ending:
        step = self._dynamics.step
        kept = f"{self.place.frames} frames before it are in {self.folder.path / TRAJECTORY}"
        advice = (
            "try a smaller --timestep, or train with structures from before (--threshold finds them)"
            if step
            else "the start is bad, or the model does not know such structures"
        )
        said = f"Exploded at step {step} ({self._time_fs:g} fs): {reason}. {kept}; {advice}"
        return _Ending("exploded", step, said)

    def _interrupted(self) -> _Ending:
        step = self._dynamics.step
        said = (
            f"Stopped after step {step}. Everything is in {self.folder.path}: the same command goes on from the "
            f"checkpoint at step {step - step % self.config.checkpoint_every}"
        )
        return _Ending("interrupted", step, said)

    @property
    def _time_fs(self) -> float:
        return self._dynamics.step * self.config.timestep_fs


def _calculator(model: Ensemble | Calculator | str | Path, precision: Precision) -> Calculator:
    if not isinstance(model, Calculator):
        return Calculator(model, warn_above=None, precision=precision)
    found = model.evaluator.precision
    if found != precision:
        raise HuefieldError(
            f"the calculator computes in {found}, but the run should in {precision}: make them the same"
        )
    return model.sibling()
