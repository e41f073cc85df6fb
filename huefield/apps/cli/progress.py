"""How far long work is: a live bar in a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from huefield.training import Progress


def use_compilation_cache() -> None:
    """Keep compiled programs between runs, in the user's cache folder unless JAX was told another."""
    import jax
    import platformdirs

    if jax.config.values["jax_compilation_cache_dir"] is None:
        folder = str(platformdirs.user_cache_path("huefield") / "jax")
        jax.config.update("jax_compilation_cache_dir", folder)


@contextmanager
def training_progress() -> Iterator[Callable[["Progress"], None]]:
    """Give a function that shows a :class:`Progress`."""
    if not sys.stderr.isatty():
        yield _print_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
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


def _print_line(progress: "Progress") -> None:
    typer.echo(f"{progress.stage_name} {progress.step}/{progress.stage_steps}: {_loss(progress)}", err=True)
