"""``huefield data make``."""

from pathlib import Path
from typing import Annotated

import typer

from huefield.cli.progress import make_progress


def make(
    out: Annotated[Path, typer.Argument(help="Folder for the data, its provenance and the finished units of work.")],
    level_of_theory: Annotated[
        str, typer.Option(help="Level of theory of the labels: gfn2-xtb or wb97x/6-31g(d).")
    ] = "gfn2-xtb",
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes, with one thread each.")] = 1,
    scale: Annotated[float, typer.Option(help="Factor on the numbers of configurations.")] = 1.0,
    max_heavy_atoms: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train on molecules and reactions with at most this number of atoms heavier than hydrogen; larger "
            "ones are a test of their own.",
        ),
    ] = None,
    fewer_above: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Take a fifth of the configurations of molecules and reactions with more than this number of atoms "
            "heavier than hydrogen.",
        ),
    ] = None,
    whole_paths: Annotated[
        bool, typer.Option("--whole-paths", help="Keep all images of converged paths, as a test.")
    ] = False,
    resume: Annotated[bool, typer.Option(help="Resume an interrupted run, or start again.")] = True,
) -> None:
    """Make a reactive data set with quantum chemistry: normal modes, dynamics and reaction paths of small molecules."""
    from huefield.make_data import SamplingPlan
    from huefield.make_data import make as make_data

    with make_progress() as report:
        data = make_data(
            out,
            seed=seed,
            level_of_theory=level_of_theory,
            workers=workers,
            scale=scale,
            resume=resume,
            plan=SamplingPlan(max_heavy_atoms=max_heavy_atoms, fewer_above=fewer_above, whole_paths=whole_paths),
            report=report,
        )
    for name, block in data.blocks.items():
        typer.echo(f"{name:>15}: {len(block)} structures")
    failed = {name: unit["failed"] for name, unit in data.provenance["units"].items() if "failed" in unit}
    for name, reason in failed.items():
        typer.echo(f"left out {name}: {reason}", err=True)
    typer.echo(f"Wrote {out / 'data.npz'}, {out / 'provenance.json'}")
