"""``huefield md``."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from huefield.apps.cli.progress import SECONDS_BETWEEN_LINES, duration

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from huefield.apps.md import MDConfig, MDProgress

EXIT_CODES = {"finished": 0, "stopped": 3, "exploded": 4, "interrupted": 130}


class EnsembleName(StrEnum):
    """What is kept."""

    NVE = "nve"
    NVT = "nvt"
    NPT = "npt"


class MeasureName(StrEnum):
    """Of the uncertainty of forces."""

    MAX = "max"
    MEAN = "mean"
    ATOM = "atom"


class PartName(StrEnum):
    """Of the uncertainty."""

    TOTAL = "total"
    ALEATORIC = "aleatoric"
    EPISTEMIC = "epistemic"


class ActionName(StrEnum):
    """At the threshold."""

    STOP = "stop"
    SAVE = "save"


class PrecisionName(StrEnum):
    """Of the model."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


def md(
    model: Annotated[Path, typer.Argument(help="The model file.")],
    start: Annotated[Path, typer.Argument(help="A file with the first structure; with its velocities, if it has any.")],
    steps: Annotated[int, typer.Option(help="Steps to take in all.")],
    temperature: Annotated[
        float | None, typer.Option(help="K, of velocities that are drawn and of the thermostat.")
    ] = None,
    ensemble: Annotated[
        EnsembleName,
        typer.Option(
            help="nve: velocity Verlet; nvt: Langevin; npt: Langevin-Hoover (ASE's LangevinBAOAB) for cells of any "
            "shape, which is kept while the volume changes."
        ),
    ] = EnsembleName.NVT,
    timestep: Annotated[float, typer.Option(help="fs.")] = 0.5,
    friction: Annotated[float, typer.Option(help="1/fs, of nvt and npt.")] = 0.01,
    pressure: Annotated[float, typer.Option(help="bar, of npt.")] = 1.0,
    frame: Annotated[int | None, typer.Option(help="Of START, from 0; else the last one.")] = None,
    draw_velocities: Annotated[
        bool, typer.Option("--draw-velocities", help="Draw velocities even if START has some.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of velocities and thermostat.")] = 0,
    every: Annotated[int, typer.Option(help="Steps between two frames of the trajectory.")] = 10,
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished run in it is gone on with.")] = Path("md"),
    uncertainty_every: Annotated[int, typer.Option(help="Steps between two looks at it; 0 for none.")] = 10,
    threshold: Annotated[
        str | None, typer.Option(help="Of the uncertainty of forces: eV/Å, or a share of the validation data (99.9%).")
    ] = None,
    on_threshold: Annotated[
        ActionName, typer.Option(help="Stop (exit code 3), or save the structure for labelling and go on.")
    ] = ActionName.STOP,
    measure: Annotated[
        MeasureName, typer.Option(help="Compared with it: the largest of the atoms, their mean, or each atom.")
    ] = MeasureName.MAX,
    part: Annotated[PartName, typer.Option(help="Of the uncertainty.")] = PartName.TOTAL,
    refuse_above: Annotated[
        str | None,
        typer.Option(help="Uncertainty of exploded structures (exit code 4); else ten times the threshold."),
    ] = None,
    precision: Annotated[PrecisionName, typer.Option(help="Of the model.")] = PrecisionName.FLOAT32,
    checkpoint_every: Annotated[int, typer.Option(help="Steps that are lost at most if the process is killed.")] = 100,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
) -> None:
    """Run molecular dynamics that stop, or save structures, where forces become uncertain.

    The same command goes on with a run that was interrupted. Exit codes: 0 all steps taken, 1 error, 3 stopped at the
    threshold, 4 exploded, 130 interrupted.
    """
    from huefield.apps.cli.progress import stopping_politely, use_compilation_cache
    from huefield.apps.md import read_start, run_md

    config = _config(
        steps=steps,
        temperature_kelvin=temperature,
        ensemble=ensemble.value,
        timestep_fs=timestep,
        friction_per_fs=friction,
        pressure_bar=pressure,
        draw_velocities=draw_velocities,
        seed=seed,
        every=every,
        uncertainty_every=uncertainty_every,
        threshold=threshold,
        on_threshold=on_threshold.value,
        measure=measure.value,
        part=part.value,
        refuse_above=refuse_above,
        precision=precision.value,
        checkpoint_every=checkpoint_every,
    )
    atoms = read_start(start, frame)
    use_compilation_cache()
    with stopping_politely("after this step") as should_stop, md_progress() as report:
        result = run_md(config, model, atoms, out, overwrite=overwrite, report=report, should_stop=should_stop)
    typer.echo(result.message, err=result.ended != "finished")
    saved = f", {result.saved} uncertain structures" if result.saved else ""
    typer.echo(f"{result.frames} frames{saved}. Wrote {', '.join(map(str, result.files))}")
    raise typer.Exit(EXIT_CODES[result.ended])


def _config(**given: object) -> "MDConfig":
    """What is wrong is told under the name of the option."""
    from pydantic import ValidationError

    from huefield.apps.md import MDConfig

    try:
        return MDConfig.model_validate(given)
    except ValidationError as error:
        raise ValueError("; ".join(map(_fault, error.errors()))) from None


def _fault(fault: "ErrorDetails") -> str:
    """One fault; units are no part of an option's name."""
    said = fault["msg"].removeprefix("Value error, ")
    if not fault["loc"]:
        return said
    name = str(fault["loc"][0])
    for unit in ("_kelvin", "_per_fs", "_fs", "_bar"):
        name = name.removesuffix(unit)
    return f"--{name.replace('_', '-')}: {said} (got {fault['input']})"


@contextmanager
def md_progress() -> Iterator[Callable[["MDProgress | str"], None]]:
    """Give a function that shows how far dynamics are: a bar, or a line now and then."""
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
    last = time.monotonic()

    def show(event: "MDProgress | str") -> None:
        nonlocal last
        if isinstance(event, str):
            typer.echo(event, err=True)
        elif time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            typer.echo(f"step {event.step}/{event.steps}, {md_line(event)}", err=True)
            last = time.monotonic()

    return show


def md_line(progress: "MDProgress") -> str:
    """Time, temperature, energy, uncertainty and speed of dynamics."""
    parts = [f"{progress.time_fs / 1000:.3f} ps", f"{progress.temperature_kelvin:.0f} K"]
    parts.append(f"E {progress.total_energy:.3f} eV")
    if progress.force_uncertainty is not None:
        parts.append(f"σ(F) {progress.force_uncertainty:.3g} eV/Å")
    if progress.steps_per_second and progress.seconds_left is not None:
        parts.append(f"{progress.steps_per_second:.3g} steps/s ({progress.ns_per_day:.2g} ns/day)")
        parts.append(f"{duration(progress.seconds_left)} left")
    return ", ".join(parts)
