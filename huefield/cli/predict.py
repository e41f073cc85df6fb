"""``huefield predict``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from huefield.cli.baselines import CommandOption, ComputedOption, given_baseline
from huefield.cli.data import ReaderOption, parse_reader
from huefield.cli.options import DatasetOption, GrowthOption, tell_of_growth
from huefield.cli.signals import Interrupted


@contextmanager
def _saying_so() -> Iterator[None]:
    """Tell the user that an interrupted prediction left no file."""
    try:
        yield
    except Interrupted:
        typer.echo("Interrupted: nothing was written", err=True)
        raise


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model file.")],
    source: Annotated[Path, typer.Argument(metavar="IN", help="Structures: a file of any size, or a packed store.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="File to write, in extended xyz: NAME.extxyz or NAME.xyz.")
    ],
    stress: Annotated[bool, typer.Option(help="Predict the stress of structures with a periodic cell.")] = True,
    members: Annotated[
        bool, typer.Option("--members", help="Write the prediction of each ensemble member, too.")
    ] = False,
    baseline: ComputedOption = None,
    baseline_command: CommandOption = None,
    reader: ReaderOption = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip frames that are damaged or have unknown elements.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    dataset: DatasetOption = None,
    growth: GrowthOption = True,
) -> None:
    """Predict energies and forces, with uncertainties, for all structures of a file."""
    from huefield.cli.progress import counting_progress, use_compilation_cache
    from huefield.predict.file import predict_file

    tell_of_growth(model, growth)
    use_compilation_cache()
    with _saying_so(), counting_progress() as report:
        done = predict_file(
            model,
            source,
            out,
            reader=parse_reader(reader),
            stress=stress,
            members=members,
            skip_bad=skip_bad,
            overwrite=overwrite,
            dataset=dataset,
            growth=growth,
            baseline=given_baseline(baseline, baseline_command),
            report=report(source.name),
        )
    stresses = f", {done.with_stress} with stress" if done.with_stress else ""
    typer.echo(f"Wrote {done.path}: {done.structures} structures{stresses}")
    for each in done.skipped:
        where = f"the first is frame {each.first.frame} of {each.first.source}"
        typer.echo(f"note: skipped {each.count}: {each.first.reason} ({where})", err=True)
