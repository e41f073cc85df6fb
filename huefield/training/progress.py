"""Progress of training on the terminal, in notebooks and in log files."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from huefield.support.pace import NowAndThen, duration
from huefield.training.reports import OnTrainingEvent, StepReport, TrainingEvent, ValidationReport

if TYPE_CHECKING:
    from rich.progress import TaskID


@contextmanager
def run_progress() -> Iterator[OnTrainingEvent]:
    """Give a function that shows the progress of training: a bar for each stage in a terminal, else lines."""
    if not sys.stderr.isatty():
        yield _lines_now_and_then()
        return
    with _live_run() as show:
        yield show


@contextmanager
def _live_run() -> Iterator[OnTrainingEvent]:
    """A bar for each stage, with the numbers of the last report below; messages scroll above."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    console, numbers, say = Console(stderr=True), Text(), _sayer()
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[line]}"))
    bar = Bar(*columns, console=console, auto_refresh=False)
    preparing = bar.add_task("reading data, compiling", total=None, line="")
    tasks: dict[int, TaskID] = {}
    with Live(Group(bar, numbers), console=console) as live:

        def show(event: TrainingEvent) -> None:
            if not isinstance(event, StepReport):
                live.console.print(say(event), highlight=False, markup=False)
                return
            bar.update(preparing, visible=False)
            if event.stage not in tasks:
                tasks[event.stage] = bar.add_task(event.stage_name, line="")
            bar.update(tasks[event.stage], completed=event.step, total=event.stage_steps, line=speed(event))
            numbers.plain = numbers_line(event)

        yield show


def _lines_now_and_then() -> OnTrainingEvent:
    """Print every validation and message, and progress every few seconds."""
    time_for_line, say = NowAndThen(at_once=True), _sayer()

    def show(event: TrainingEvent) -> None:
        if not isinstance(event, StepReport):
            print(say(event), file=sys.stderr)
        elif time_for_line.due(event.step == event.stage_steps):
            parts = (f"{event.stage_name} {event.step}/{event.stage_steps}", speed(event), numbers_line(event))
            print(", ".join(part for part in parts if part), file=sys.stderr)

    return show


def _sayer() -> Callable[[ValidationReport | str], str]:
    """Give a function that formats messages and validations; the first validation of a stage has a head."""
    stages: set[int] = set()

    def say(event: ValidationReport | str) -> str:
        if isinstance(event, str):
            return event
        head = "" if event.stage in stages else f"{VALIDATION_HEAD}\n"
        stages.add(event.stage)
        return head + validation_line(event)

    return say


def speed(report: StepReport) -> str:
    """Steps per second, and the remaining time of the stage."""
    if not report.steps_per_second:
        return ""
    left = f", {duration(report.seconds_left)} left" if report.step < report.stage_steps else ""
    return f"{report.steps_per_second:.3g}/s{left}"


def numbers_line(report: StepReport) -> str:
    """Losses, gradient norms and γ of the members, and the number of skipped steps."""
    noise = [f"{name.replace('gamma', 'γ')} {_span(values)}" for name, values in report.noise.items()]
    skipped = [f"{int(report.skipped.sum())} steps skipped"] if report.skipped.any() else []
    return ", ".join([f"loss {_span(report.loss)}", f"|g| {_span(report.gradient_norm)}", *noise, *skipped])


VALIDATION_HEAD = "validation [meV, meV/Å]   E MAE    RMSE     NLL    RZV |   F MAE    RMSE     NLL    RZV | improved"
"""Head of the lines of :func:`validation_line`."""


def validation_line(report: ValidationReport) -> str:
    """Validation metrics, averaged over members, and how many members improved."""
    metrics = report.metrics

    def of(kind: str) -> str:
        mae, rmse, nll, rzv = (getattr(metrics, f"{kind}_{name}").mean() for name in ("mae", "rmse", "nll", "rzv"))
        noise = f"{'-':>7} {'-':>6}" if math.isnan(nll) else f"{nll:7.2f} {rzv:6.2f}"
        return f"{1e3 * mae:7.1f} {1e3 * rmse:7.1f} {noise}"

    improved = f"{int(report.improved.sum())} of {len(report.improved)}"
    stress = "" if metrics.stress_rmse is None else f"; stress RMSE {1e3 * metrics.stress_rmse.mean():.2f} meV/Å³"
    return f"{f'at step {report.step}':>23} {of('energy')} | {of('force')} | {improved:>8}{stress}"


def _span(values: Any) -> str:
    """The mean of some numbers, and their range if they differ."""
    low, high = float(values.min()), float(values.max())
    return f"{float(values.mean()):.3g}" + (f" ({low:.3g} to {high:.3g})" if high > low else "")
