"""``huefield md``."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from huefield.cli.baselines import CommandOption, ComputedOption, given_baseline
from huefield.cli.exit_codes import ExitCode
from huefield.cli.options import DatasetOption, GrowthOption, naming_options, tell_of_growth, with_settings
from huefield.support.pace import NowAndThen, duration

if TYPE_CHECKING:
    from huefield.ase.md import MDConfig, MDProgress

EXIT_CODES = {
    "finished": ExitCode.SUCCESS,
    "stopped": ExitCode.LIMIT,
    "exploded": ExitCode.EXPLODED,
    "interrupted": ExitCode.INTERRUPTED,
}


def _config() -> "type[MDConfig]":
    from huefield.ase.md import MDConfig

    return MDConfig


@with_settings(_config)
def md(
    model: Annotated[Path, typer.Argument(help="Model file.")],
    start: Annotated[Path, typer.Argument(help="File with the first structure, and optionally its velocities.")],
    settings: dict[str, Any],
    frame: Annotated[
        int | None, typer.Option(help="Frame of START, counted from 0. If not given, the last one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run. An unfinished run in it is resumed.")] = Path("md"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
    dataset: DatasetOption = None,
    growth: GrowthOption = True,
    baseline: ComputedOption = None,
    baseline_command: CommandOption = None,
) -> None:
    """Run molecular dynamics that stops, or saves structures, when forces become uncertain.

    The same command resumes a run that was interrupted.
    """
    from huefield.ase.calculator import Calculator
    from huefield.ase.md import run_md
    from huefield.ase.structures import naming_structure, read_structure
    from huefield.cli.progress import use_compilation_cache
    from huefield.cli.signals import stopping_politely
    from huefield.model.modelfile import open_model

    with naming_options():
        config = _config().model_validate(settings)
    tell_of_growth(model, growth)
    use_compilation_cache()
    given = given_baseline(baseline, baseline_command)
    ensemble = open_model(model, dataset=dataset, growth=growth)
    calculator = Calculator(ensemble, baseline=given, warn_above=None, precision=config.precision)
    atoms = read_structure(start, frame)
    with naming_structure(f"{start}, {'last frame' if frame is None else f'frame {frame}'}"):
        calculator.require_sense(atoms)
    with stopping_politely("after this step") as should_stop, md_progress() as report:
        result = run_md(config, calculator, atoms, out, overwrite=overwrite, report=report, should_stop=should_stop)
    typer.echo(result.message, err=result.ended != "finished")
    saved = f", {result.saved} uncertain structures" if result.saved else ""
    typer.echo(f"{result.frames} frames{saved}. Wrote {', '.join(map(str, result.files))}")
    raise typer.Exit(EXIT_CODES[result.ended])


@contextmanager
def md_progress() -> Iterator[Callable[["MDProgress | str"], None]]:
    """Give a function that shows the progress of a run: a bar in a terminal, otherwise a line every few seconds."""
    if not sys.stderr.isatty():
        yield _lines_now_and_then()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[line]}"))
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("compiling", total=None, line="")

        def show(event: "MDProgress | str") -> None:
            if isinstance(event, str):
                bar.console.print(event, highlight=False, markup=False)
            else:
                bar.update(task, description="step", completed=event.step, total=event.steps, line=md_line(event))

        yield show


def _lines_now_and_then() -> Callable[["MDProgress | str"], None]:
    time_for_line = NowAndThen(at_once=False)

    def show(event: "MDProgress | str") -> None:
        if isinstance(event, str):
            typer.echo(event, err=True)
        elif time_for_line.due():
            typer.echo(f"step {event.step}/{event.steps}, {md_line(event)}", err=True)

    return show


def md_line(progress: "MDProgress") -> str:
    """Time, temperature, energy, uncertainty and speed of a run."""
    parts = [f"{progress.time_fs / 1000:.3f} ps", f"{progress.temperature_kelvin:.0f} K"]
    parts.append(f"E {progress.total_energy:.3f} eV")
    if progress.force_uncertainty is not None:
        parts.append(f"force uncertainty {progress.force_uncertainty:.3g} eV/Å")
    if progress.steps_per_second and progress.seconds_left is not None:
        parts.append(f"{progress.steps_per_second:.3g} steps/s ({progress.ns_per_day:.2g} ns/day)")
        parts.append(f"{duration(progress.seconds_left)} left")
    return ", ".join(parts)
