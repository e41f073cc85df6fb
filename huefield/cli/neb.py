"""``huefield neb``."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from huefield.cli.baselines import CommandOption, ComputedOption, given_baseline
from huefield.cli.exit_codes import ExitCode
from huefield.cli.options import DatasetOption, GrowthOption, naming_options, tell_of_growth, with_settings
from huefield.support.pace import NowAndThen

if TYPE_CHECKING:
    from huefield.ase.neb import PathConfig, PathReport, ReactionPath


def _config() -> "type[PathConfig]":
    from huefield.ase.neb import PathConfig

    return PathConfig


@with_settings(_config)
def neb(
    model: Annotated[Path, typer.Argument(help="Model file.")],
    reactant: Annotated[Path, typer.Argument(help="Structure in any format of ASE; the last frame of a file.")],
    product: Annotated[Path, typer.Argument(help="Structure with the same atoms in the same order.")],
    settings: dict[str, Any],
    out: Annotated[Path, typer.Option(help="Folder for the path, its numbers and the figure.")] = Path("neb"),
    start_from: Annotated[
        Path | None, typer.Option(help="Initial path, such as band.xyz or path.xyz of an earlier run; its ends stay.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the band or path in the folder.")] = False,
    dataset: DatasetOption = None,
    growth: GrowthOption = True,
    baseline: ComputedOption = None,
    baseline_command: CommandOption = None,
) -> None:
    """Find a reaction path; the barrier and the reaction energy have error bars.

    The band is kept in OUT/band.xyz until the path is found; --start-from resumes from it. The exit code of a band that
    did not converge is 1.
    """
    from huefield.ase.calculator import Calculator
    from huefield.ase.neb import PathStoppedError, find_and_save_path
    from huefield.ase.neb.files import BAND_FILE
    from huefield.ase.structures import naming_structure, read_structure, read_structures
    from huefield.cli.progress import use_compilation_cache
    from huefield.cli.signals import stopping_politely
    from huefield.model.modelfile import open_model

    with naming_options():
        config = _config().model_validate(settings)
    tell_of_growth(model, growth)
    use_compilation_cache()
    ensemble = open_model(model, dataset=dataset, growth=growth)
    calculator = Calculator(ensemble, baseline=given_baseline(baseline, baseline_command))
    first, last = read_structure(reactant), read_structure(product)
    through = [] if start_from is None else read_structures(start_from)
    for what, path, atoms in (("reactant", reactant, first), ("product", product, last)):
        with naming_structure(f"{what} ({path})"):
            calculator.require_sense(atoms)
    if through and config.images not in (len(through), _config().model_fields["images"].default):
        typer.echo(f"note: --images {config.images} has no effect: {start_from} has {len(through)}", err=True)
    resumes = start_from is not None and start_from.resolve().parent == out.resolve()
    with stopping_politely("after this step") as should_stop, _progress() as show:
        try:
            found, files = find_and_save_path(
                calculator,
                first,
                last,
                out,
                config,
                through=through,
                overwrite=overwrite or resumes,
                report=show,
                should_stop=should_stop,
            )
        except PathStoppedError as stopped:
            left = f"resume with --start-from {out / BAND_FILE}" if stopped.kept else "no band yet, nothing was written"
            typer.echo(f"{stopped}: {left}", err=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from stopped
    _say(found, config.fmax_ev_per_angstrom, files[0])
    typer.echo("Wrote " + ", ".join(map(str, files)))
    if not found.converged:
        raise typer.Exit(ExitCode.ERROR)


@contextmanager
def _progress() -> Iterator[Callable[["PathReport"], None]]:
    """Give a function that shows the progress: a live line in a terminal, otherwise a line every few seconds."""
    if not sys.stderr.isatty():
        time_for_line = NowAndThen(at_once=True)

        def tell(report: "PathReport") -> None:
            if time_for_line.due():
                typer.echo(_line(report), err=True)

        yield tell
        return
    from rich.console import Console

    with Console(stderr=True).status("compiling") as status:
        yield lambda report: status.update(_line(report))


def _line(report: "PathReport") -> str:
    return f"{report.what}, step {report.step}: largest force {report.fmax:.3f} eV/Å (aim {report.aim:g})"


def _say(found: "ReactionPath", aim: float, path: Path) -> None:
    names = {
        "barrier": found.barrier, "reverse barrier": found.reverse_barrier, "reaction energy": found.reaction_energy,
    }  # fmt: skip
    typer.echo(f"{'':>16} {'eV':>8} {'±':>7} {'noise':>7} {'members':>8} {'if independent':>15}")
    for name, each in names.items():
        typer.echo(
            f"{name:>16} {each.value:8.3f} {each.uncertainty:7.3f} {each.uncertainty_aleatoric:7.3f} "
            f"{each.uncertainty_epistemic:8.3f} {each.uncertainty_if_independent:15.3f}"
        )
    low, high = found.barrier_range()
    typer.echo(f"With the uncertainty of all images, the barrier is between {low:.3f} and {high:.3f} eV (68 %)")
    if found.top in (0, len(found.images) - 1):
        typer.echo("The path has no barrier: its highest point is an end", err=True)
    if not found.converged:
        typer.echo(
            f"The band did not converge: the largest force across it is {found.fmax:.3f} eV/Å, not {aim:g}. Resume "
            f"with --start-from {path}, or increase --steps",
            err=True,
        )
