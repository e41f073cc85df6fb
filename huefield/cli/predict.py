"""``huefield predict``."""

from pathlib import Path
from typing import Annotated

import typer

from huefield.cli.data import ReaderOption, parse_reader


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file.")],
    source: Annotated[Path, typer.Argument(metavar="IN", help="Structures: a file of any size, or a store.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where to write, as extended xyz: NAME.extxyz.")],
    stress: Annotated[
        bool, typer.Option(help="Predict the stress of structures that are periodic in three directions.")
    ] = True,
    members: Annotated[bool, typer.Option("--members", help="Write what each member of the ensemble says.")] = False,
    reader: ReaderOption = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out structures that are damaged or of unknown elements.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")] = False,
) -> None:
    """Predict energies and forces with their uncertainties for all structures of a file."""
    from huefield.cli.progress import counting_progress, use_compilation_cache
    from huefield.predict.file import predict_file

    use_compilation_cache()
    with counting_progress() as report:
        done = predict_file(
            model,
            source,
            out,
            reader=parse_reader(reader),
            stress=stress,
            members=members,
            skip_bad=skip_bad,
            overwrite=overwrite,
            report=report(source.name),
        )
    stresses = f", {done.with_stress} with stress" if done.with_stress else ""
    typer.echo(f"Wrote {done.path}: {done.structures} structures{stresses}")
    for each in done.skipped:
        where = f"the first is frame {each.first.frame} of {each.first.source}"
        typer.echo(f"note: left out {each.count}: {each.first.reason} ({where})", err=True)
