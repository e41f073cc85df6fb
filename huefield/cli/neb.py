"""``huefield neb``."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from huefield.cli.options import naming_options
from huefield.cli.progress import NowAndThen

if TYPE_CHECKING:
    from huefield.ase.neb.path import PathReport, ReactionPath


def neb(
    model: Annotated[Path, typer.Argument(help="Model file.")],
    reactant: Annotated[Path, typer.Argument(help="Structure, in any format of ASE; of several frames the last.")],
    product: Annotated[Path, typer.Argument(help="The same atoms in the same order.")],
    out: Annotated[Path, typer.Option(help="Folder for path, numbers and figure.")] = Path("neb"),
    images: Annotated[
        int | None, typer.Option(min=3, show_default="11", help="Structures on the path, both ends included.")
    ] = None,
    fmax: Annotated[float, typer.Option(help="Largest force across the path at the end, in eV/Å.")] = 0.05,
    steps: Annotated[int, typer.Option(min=1, help="Of the optimiser, at most.")] = 1000,
    climb: Annotated[bool, typer.Option(help="Let the highest image climb to the saddle point.")] = True,
    relax_ends: Annotated[bool, typer.Option(help="Relax reactant and product first.")] = True,
    spring: Annotated[float, typer.Option(help="Constant of the springs between images, in eV/Å².")] = 0.1,
    start_from: Annotated[
        Path | None, typer.Option(help="A path to begin with, such as band.xyz or path.xyz of before; its ends stay.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the band or path in the folder.")] = False,
) -> None:
    """Find a reaction path; barrier and reaction energy come with error bars.

    The band is kept in OUT/band.xyz until the path is found: --start-from goes on with it. Exit codes: 0 found, 1 error
    or not converged, 130 interrupted.
    """
    from huefield.ase.calculator import Calculator
    from huefield.ase.neb.path import (
        BAND_FILE,
        PathConfig,
        PathStoppedError,
        find_path,
        require_no_path,
        save_band,
        save_path,
    )
    from huefield.ase.structures import naming_structure, read_structure, read_structures
    from huefield.cli.progress import use_compilation_cache
    from huefield.cli.signals import stopping_politely
    from huefield.support.files import alone_in
    from huefield.support.folders import folder_for_results

    with naming_options():
        settings = PathConfig(
            images=11 if images is None else images,
            fmax_ev_per_angstrom=fmax,
            steps=steps,
            climb=climb,
            relax_ends=relax_ends,
            spring_ev_per_angstrom2=spring,
        )
    first, last = read_structure(reactant), read_structure(product)
    through = [] if start_from is None else read_structures(start_from)
    use_compilation_cache()
    with folder_for_results(out), alone_in(out), stopping_politely("after this step") as should_stop:
        if not overwrite and (start_from is None or start_from.resolve().parent != out.resolve()):
            require_no_path(out)
        calculator = Calculator(model)
        for what, path, atoms in (("reactant", reactant, first), ("product", product, last)):
            with naming_structure(f"{what} ({path})"):
                calculator.require_sense(atoms)
        if through and images not in (None, len(through)):
            typer.echo(f"note: --images {images} has no effect: {start_from} has {len(through)}", err=True)
        try:
            with _progress() as show:
                found = find_path(
                    calculator,
                    first,
                    last,
                    settings,
                    through=through,
                    keep=lambda band: save_band(band, out),
                    report=show,
                    should_stop=should_stop,
                )
        except PathStoppedError as stopped:
            left = f"go on with --start-from {out / BAND_FILE}" if stopped.kept else "no band yet, nothing was written"
            typer.echo(f"{stopped}: {left}", err=True)
            raise typer.Exit(130) from stopped
        files = save_path(found, out)
    _say(found, settings.fmax_ev_per_angstrom, files[0])
    typer.echo("Wrote " + ", ".join(map(str, files)))
    if not found.converged:
        raise typer.Exit(1)


@contextmanager
def _progress() -> Iterator[Callable[["PathReport"], None]]:
    """Give a function that shows how far it is: a live line, or one now and then."""
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
    return f"{report.what}, step {report.step}: largest force {report.fmax:.3f} eV/Å, down to {report.aim:g}"


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
        typer.echo("The path has no barrier: it rises or falls all the way", err=True)
    if not found.converged:
        typer.echo(
            f"The band did not converge: the largest force across it is {found.fmax:.3f} eV/Å, not {aim:g}. Go on with "
            f"--start-from {path}, or give more --steps",
            err=True,
        )
