"""How far long work is: a live bar in a terminal, plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn, TaskID

    from huefield.apps.convert import ConvertProgress
    from huefield.apps.make_data import MakeProgress
    from huefield.training import Progress

SECONDS_BETWEEN_LINES = 5.0
"""Between two lines about a conversion."""
LINES_PER_STAGE = 20
"""Lines about a stage of making data."""


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
def training_progress() -> Iterator[Callable[["Progress"], None]]:
    """Give a function that shows a :class:`Progress`."""
    if not sys.stderr.isatty():
        yield _print_training
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with _live(*columns) as bar:
        tasks = {0: bar.add_task("compiling", total=None, loss="")}

        def show(progress: "Progress") -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bar.add_task("", total=None, loss="")
            bar.update(
                tasks[progress.stage],
                description=progress.stage_name,
                total=progress.stage_steps,
                completed=progress.step,
                loss=_loss(progress),
            )

        yield show


def _loss(progress: "Progress") -> str:
    return f"loss {progress.loss.mean():.3f} ({progress.loss.min():.3f} to {progress.loss.max():.3f})"


def _print_training(progress: "Progress") -> None:
    typer.echo(f"{progress.stage_name} {progress.step}/{progress.stage_steps}: {_loss(progress)}", err=True)


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
    last = time.monotonic()

    def show(progress: "ConvertProgress") -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            typer.echo(f"file {progress.source_number}/{progress.num_sources}: {convert_line(progress)}", err=True)
            last = time.monotonic()

    return show


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


def duration(seconds: float) -> str:
    """A time for people, in two units at most, such as 1 h 05 min."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
