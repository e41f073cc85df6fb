"""Progress of long work: a live bar in a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from huefield.cli.exit_codes import ExitCode
from huefield.cli.signals import StopRequest, ending_at_once, stopping_politely
from huefield.support.pace import NowAndThen, duration

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn, TaskID

    from huefield.data.convert import ConvertProgress
    from huefield.make_data import MakeProgress

LINES_PER_STAGE = 20
"""Number of progress lines for each stage of data making."""

Counting = Callable[[int, int | None], None]
"""Called with the number of structures done, and with their total if it is known."""


def use_compilation_cache() -> None:
    """Keep compiled programs between runs, in the user's cache folder unless JAX has another one."""
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
    """A bar followed by a line of text."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    return _live(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}"), TimeElapsedColumn())


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
    """Give a function that shows the progress of a conversion: a bar over the sources, or a line every few seconds."""
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
    """Give a function that makes, for a name, a function that shows how many structures are done.

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
    """Numbers of structures and bad frames of a conversion, and its rate."""
    faults = f", {progress.faults} bad" if progress.faults else ""
    return f"{progress.structures} structures, {progress.rate:,.0f}/s{faults}"


@contextmanager
def make_progress() -> Iterator[Callable[["MakeProgress"], None]]:
    """Give a function that shows the progress of data making: a bar for each stage, or some lines."""
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
    """Print a line at the beginning, and for each twentieth of the work."""
    share, before = (done * LINES_PER_STAGE // progress.total for done in (progress.done, progress.done - 1))
    if progress.done == progress.resumed or share > before:
        typer.echo(f"{progress.stage} {make_line(progress)}", err=True)


def make_line(progress: "MakeProgress") -> str:
    """Units of work, their rate, and the remaining time."""
    count = f"{progress.done}/{progress.total}"
    if not progress.rate:
        return count
    rate = f"{progress.rate:.1f}/s" if progress.rate >= 1 else f"{60 * progress.rate:.1f}/min"
    left = f", {duration(progress.seconds_left)} left" if progress.done < progress.total else ""
    return f"{count}, {rate}{left}"


def seconds_left(seconds: float, left_at_first: int, left: int) -> float | None:
    """Estimated time for the remaining work of all processes; None before anything is done."""
    done = left_at_first - left
    return seconds / done * left if done > 0 else None
