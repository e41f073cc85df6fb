"""``huefield md``."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from huefield.cli.options import naming_options
from huefield.cli.progress import NowAndThen, duration

if TYPE_CHECKING:
    from huefield.ase.md import MDProgress

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
    barostat: Annotated[float, typer.Option(help="fs, the time scale of the volume in npt.")] = 1000.0,
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
    save_every: Annotated[int, typer.Option(help="Steps between two structures that are saved, at least.")] = 100,
    measure: Annotated[
        MeasureName, typer.Option(help="Compared with it: the largest of the atoms, their mean, or each atom.")
    ] = MeasureName.MAX,
    part: Annotated[PartName, typer.Option(help="Of the uncertainty.")] = PartName.TOTAL,
    refuse_above: Annotated[
        str | None,
        typer.Option(
            help="Uncertainty of exploded structures (exit code 4); else ten times the threshold, or without one ten "
            "times the most that validation data had (10 eV/Å if the model does not know them)."
        ),
    ] = None,
    precision: Annotated[PrecisionName, typer.Option(help="Of the model.")] = PrecisionName.FLOAT32,
    checkpoint_every: Annotated[int, typer.Option(help="Steps that are lost at most if the process is killed.")] = 100,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
) -> None:
    """Run molecular dynamics that stop, or save structures, where forces become uncertain.

    The same command goes on with a run that was interrupted. Exit codes: 0 all steps taken, 1 error, 3 stopped at the
    threshold, 4 exploded, 130 interrupted.
    """
    from huefield.ase.calculator import Calculator
    from huefield.ase.md import MDConfig, run_md
    from huefield.ase.structures import naming_structure, read_structure
    from huefield.cli.progress import use_compilation_cache
    from huefield.cli.signals import stopping_politely

    settings = {
        "steps": steps,
        "temperature_kelvin": temperature,
        "ensemble": ensemble.value,
        "timestep_fs": timestep,
        "friction_per_fs": friction,
        "pressure_bar": pressure,
        "barostat_fs": barostat,
        "draw_velocities": draw_velocities,
        "seed": seed,
        "every": every,
        "uncertainty_every": uncertainty_every,
        "threshold": threshold,
        "on_threshold": on_threshold.value,
        "save_every": save_every,
        "measure": measure.value,
        "part": part.value,
        "refuse_above": refuse_above,
        "precision": precision.value,
        "checkpoint_every": checkpoint_every,
    }
    with naming_options():
        config = MDConfig.model_validate(settings)
    atoms = read_structure(start, frame)
    use_compilation_cache()
    calculator = Calculator(model, warn_above=None, precision=precision.value)
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
    time_for_line = NowAndThen(at_once=False)

    def show(event: "MDProgress | str") -> None:
        if isinstance(event, str):
            typer.echo(event, err=True)
        elif time_for_line.due():
            typer.echo(f"step {event.step}/{event.steps}, {md_line(event)}", err=True)

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
