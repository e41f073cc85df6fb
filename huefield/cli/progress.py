"""How far long work is: a live bar in a terminal, plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from huefield.cli.exit_codes import ExitCode
from huefield.cli.signals import StopRequest, ending_at_once, stopping_politely

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn, TaskID

    from huefield.data.convert import ConvertProgress
    from huefield.make_data import MakeProgress
    from huefield.training import StepReport, ValidationReport

SECONDS_BETWEEN_LINES = 5.0
"""Between two lines about long work."""
LINES_PER_STAGE = 20
"""Lines about a stage of making data."""

Counting = Callable[[int, int | None], None]
"""Told how many structures are done, and of how many."""


class NowAndThen:
    """Says whether it is time for another line."""

    def __init__(self, *, at_once: bool) -> None:
        """Begin to wait; with ``at_once``, the first line need not."""
        self._last = -math.inf if at_once else time.monotonic()

    def due(self, anyway: bool = False) -> bool:
        """Whether a few seconds have passed since it last said yes, or someone wants a line anyway."""
        if not anyway and time.monotonic() - self._last < SECONDS_BETWEEN_LINES:
            return False
        self._last = time.monotonic()
        return True


def use_compilation_cache() -> None:
    """Keep compiled programs between runs, in the user's cache folder unless JAX was told another."""
    import jax
    import platformdirs

    if jax.config.values["jax_compilation_cache_dir"] is None:
        folder = str(platformdirs.user_cache_path("huefield") / "jax")
        jax.config.update("jax_compilation_cache_dir", folder)


def _live(*columns: "ProgressColumn") -> "Bar":
    from rich.console import Console
    from rich.progress import Progress as Bar

    return Bar(*columns, console=Console(stderr=True))


def _live_line() -> "Bar":
    """A bar with a line behind it that says more."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    return _live(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}"), TimeElapsedColumn())


@contextmanager
def run_progress() -> Iterator[Callable[["StepReport | ValidationReport | str"], None]]:
    """Give a function that shows how far a training run is: a bar for each stage, or a line now and then."""
    if not sys.stderr.isatty():
        yield _lines_now_and_then()
        return
    with _live_run() as show:
        yield show


@contextmanager
def _live_run() -> Iterator[Callable[["StepReport | ValidationReport | str"], None]]:
    """A bar for each stage, with the numbers of the last report below; all else scrolls by above."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    from huefield.training import StepReport

    console, numbers, say = Console(stderr=True), Text(), _sayer()
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[line]}"))
    bar = Bar(*columns, console=console, auto_refresh=False)
    preparing = bar.add_task("reading data, compiling", total=None, line="")
    tasks: dict[int, TaskID] = {}
    with Live(Group(bar, numbers), console=console) as live:

        def show(event: "StepReport | ValidationReport | str") -> None:
            if not isinstance(event, StepReport):
                live.console.print(say(event), highlight=False, markup=False)
                return
            bar.update(preparing, visible=False)
            if event.stage not in tasks:
                tasks[event.stage] = bar.add_task(event.stage_name, line="")
            bar.update(tasks[event.stage], completed=event.step, total=event.stage_steps, line=speed(event))
            numbers.plain = numbers_line(event)

        yield show


def _lines_now_and_then() -> Callable[["StepReport | ValidationReport | str"], None]:
    """Print every validation and message, and progress every few seconds."""
    from huefield.training import StepReport

    time_for_line, say = NowAndThen(at_once=True), _sayer()

    def show(event: "StepReport | ValidationReport | str") -> None:
        if not isinstance(event, StepReport):
            typer.echo(say(event), err=True)
        elif time_for_line.due(event.step == event.stage_steps):
            parts = (f"{event.stage_name} {event.step}/{event.stage_steps}", speed(event), numbers_line(event))
            typer.echo(", ".join(part for part in parts if part), err=True)

    return show


def _sayer() -> Callable[["ValidationReport | str"], str]:
    """Give a function for the text of messages and validations; the first validation of a stage has a head."""
    stages: set[int] = set()

    def say(event: "ValidationReport | str") -> str:
        if isinstance(event, str):
            return event
        head = "" if event.stage in stages else f"{VALIDATION_HEAD}\n"
        stages.add(event.stage)
        return head + validation_line(event)

    return say


def speed(report: "StepReport") -> str:
    """Steps per second, and the time that is left of the stage."""
    if not report.steps_per_second:
        return ""
    left = f", {duration(report.seconds_left)} left" if report.step < report.stage_steps else ""
    return f"{report.steps_per_second:.3g}/s{left}"


def numbers_line(report: "StepReport") -> str:
    """Losses, gradient norms and γ of the members, and the steps that were not taken."""
    noise = [f"{name.replace('gamma', 'γ')} {_span(values)}" for name, values in report.noise.items()]
    skipped = [f"{int(report.skipped.sum())} steps skipped"] if report.skipped.any() else []
    return ", ".join([f"loss {_span(report.loss)}", f"|g| {_span(report.gradient_norm)}", *noise, *skipped])


VALIDATION_HEAD = "validation [meV, meV/Å]   E MAE    RMSE     NLL    RZV |   F MAE    RMSE     NLL    RZV | improved"
"""Above the lines of :func:`validation_line`."""


def validation_line(report: "ValidationReport") -> str:
    """Metrics of the members on validation data, the mean of them, and how many are better than ever before."""
    metrics = report.metrics

    def of(kind: str) -> str:
        mae, rmse, nll, rzv = (getattr(metrics, f"{kind}_{name}").mean() for name in ("mae", "rmse", "nll", "rzv"))
        noise = f"{'-':>7} {'-':>6}" if math.isnan(nll) else f"{nll:7.2f} {rzv:6.2f}"
        return f"{1e3 * mae:7.1f} {1e3 * rmse:7.1f} {noise}"

    improved = f"{int(report.improved.sum())} of {len(report.improved)}"
    return f"{f'at step {report.step}':>23} {of('energy')} | {of('force')} | {improved:>8}"


def _span(values: Any) -> str:
    """The mean of some numbers, and their range where they are several."""
    low, high = float(values.min()), float(values.max())
    return f"{float(values.mean()):.3g}" + (f" ({low:.3g} to {high:.3g})" if high > low else "")


@contextmanager
def stopping_training() -> Iterator[StopRequest]:
    """Give a function that says whether training should save its state and stop; the exit code is then 130."""
    from huefield.training import TrainingStoppedError

    with stopping_politely("after this step") as should_stop:
        try:
            yield should_stop
        except TrainingStoppedError as stopped:
            typer.echo(str(stopped), err=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from stopped


@contextmanager
def convert_progress() -> Iterator[Callable[["ConvertProgress"], None]]:
    """Give a function that shows how far a conversion is: a bar over the sources, or a line now and then."""
    if not sys.stderr.isatty():
        yield _now_and_then()
        return
    with _live_line() as bar:
        task = bar.add_task("opening", total=None, line="")

        def show(progress: "ConvertProgress") -> None:
            total = progress.num_sources if progress.num_sources > 1 else None  # within a file nobody knows how far
            description = f"file {progress.source_number}/{progress.num_sources}"
            done = progress.source_number - 1
            bar.update(task, description=description, completed=done, total=total, line=convert_line(progress))

        yield show
        bar.update(task, total=1, completed=1)


def _now_and_then() -> Callable[["ConvertProgress"], None]:
    time_for_line = NowAndThen(at_once=False)

    def show(progress: "ConvertProgress") -> None:
        if time_for_line.due():
            typer.echo(f"file {progress.source_number}/{progress.num_sources}: {convert_line(progress)}", err=True)

    return show


@contextmanager
def counting_progress() -> Iterator[Callable[[str], "Counting"]]:
    """Give a function that, given a name, gives one that shows how many structures are done, and of how many if known.

    Nothing is saved before all structures are done, so Ctrl-C ends the program at once.
    """
    with ending_at_once():
        if not sys.stderr.isatty():
            yield _counting_lines
            return
        with _live_line() as bar:

            def counting(name: str) -> Counting:
                task = bar.add_task(name, total=None, line="compiling")
                return lambda done, total: bar.update(task, completed=done, total=total, line=_count(done, total))

            yield counting


def _counting_lines(name: str) -> Counting:
    time_for_line, told = NowAndThen(at_once=False), False

    def show(done: int, total: int | None) -> None:
        nonlocal told
        if time_for_line.due(told and done == total):
            typer.echo(f"{name}: {_count(done, total)}", err=True)
            told = True

    return show


def _count(done: int, total: int | None) -> str:
    return f"{done} structures" if total is None else f"{done}/{total} structures"


def convert_line(progress: "ConvertProgress") -> str:
    """Structures, rate and bad frames of a conversion."""
    faults = f", {progress.faults} bad" if progress.faults else ""
    return f"{progress.structures} structures, {progress.rate:,.0f}/s{faults}"


@contextmanager
def make_progress() -> Iterator[Callable[["MakeProgress"], None]]:
    """Give a function that shows how far the making of data is: a bar for each stage, or some lines."""
    if not sys.stderr.isatty():
        yield _print_making
        return
    with _live_line() as bar:
        tasks: dict[str, TaskID] = {}

        def show(progress: "MakeProgress") -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bar.add_task(progress.stage, line="")
            line = make_line(progress)
            bar.update(tasks[progress.stage], completed=progress.done, total=progress.total, line=line)

        yield show


def _print_making(progress: "MakeProgress") -> None:
    """A line at the beginning, and for each twentieth of the work."""
    share, before = (done * LINES_PER_STAGE // progress.total for done in (progress.done, progress.done - 1))
    if progress.done == progress.resumed or share > before:
        typer.echo(f"{progress.stage} {make_line(progress)}", err=True)


def make_line(progress: "MakeProgress") -> str:
    """Units of work, their rate, and the time that is left."""
    count = f"{progress.done}/{progress.total}"
    if not progress.rate:
        return count
    rate = f"{progress.rate:.1f}/s" if progress.rate >= 1 else f"{60 * progress.rate:.1f}/min"
    left = f", {duration(progress.seconds_left)} left" if progress.done < progress.total else ""
    return f"{count}, {rate}{left}"


def seconds_left(seconds: float, left_at_first: int, left: int) -> float | None:
    """For what is left, at the pace so far, whoever did it; None as long as nothing is done."""
    done = left_at_first - left
    return seconds / done * left if done > 0 else None


def duration(seconds: float) -> str:
    """A time for people, in two units at most, such as 1 h 05 min."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
