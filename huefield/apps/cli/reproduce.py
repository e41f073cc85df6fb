"""``huefield reproduce toy`` and ``table``."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from huefield.apps.cli.toy import toy

if TYPE_CHECKING:
    from huefield.training.reports import Report

app = typer.Typer(no_args_is_help=True)
app.command()(toy)


class SizeKind(StrEnum):
    """How much is trained."""

    MINI = "mini"
    PAPER = "paper"


class RowsKind(StrEnum):
    """Which rows."""

    PAPER = "paper"
    ALL = "all"


@app.command()
def table(
    data: Annotated[
        str, typer.Option(help="bundled, acac, ani1x, transition1x (with --file), or a file of your own.")
    ] = "bundled",
    size: Annotated[SizeKind, typer.Option(help="mini for a pair of cores; paper for days on GPUs.")] = SizeKind.MINI,
    rows: Annotated[RowsKind, typer.Option(help="The paper's three models, or all.")] = RowsKind.PAPER,
    only: Annotated[list[str] | None, typer.Option(help="A row by its name; may be given several times.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Splits of the data, and as many trainings of each row.")] = 1,
    file: Annotated[Path | None, typer.Option(help="The published HDF5 file of ani1x or transition1x.")] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for everything (with --size paper one in it); what is there is gone on with.")
    ] = Path("reproduction"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --size paper: two steps of each stage, to see that it runs.")
    ] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="Train nothing: write configurations and say how to run them.")
    ] = False,
    against: Annotated[Path | None, typer.Option(help="Results of another run, to compare the numbers with.")] = None,
) -> None:
    """Make the table and the reliability diagrams of the paper, with its own rows beside ours.

    Start the command several times to use several cores or machines: processes share the rows out.
    """
    from huefield.apps.cli.progress import convert_progress, stopping_training, use_compilation_cache
    from huefield.apps.convert import ConversionStoppedError
    from huefield.apps.reproduce.commands import written_commands
    from huefield.apps.reproduce.plan import AbstractSize, Job, MiniSize, PaperSize
    from huefield.apps.reproduce.report import compared, write_table
    from huefield.apps.reproduce.rows import PAPER, all_rows, rows_named
    from huefield.apps.reproduce.sources import FEW, Limits, source_of
    from huefield.apps.reproduce.work import RESULT, work_through

    if dry_run and size is not SizeKind.PAPER:
        raise ValueError("--dry-run is for --size paper; the small size runs as it is")
    scale: AbstractSize = MiniSize() if size is SizeKind.MINI else PaperSize(dry_run=dry_run)
    if size is SizeKind.PAPER:
        out = out / ("dry-run" if dry_run else "paper")  # or a result of one size would be taken for another's
    source = source_of(data, file, out, FEW if size is SizeKind.MINI else Limits())
    chosen = PAPER if rows is RowsKind.PAPER else all_rows(mixed_sizes=source.mixed_sizes)
    chosen = rows_named(only) if only else chosen
    jobs = [Job(source, seed, row) for seed in range(seeds) for row in chosen]
    use_compilation_cache()
    with stopping_training() as should_stop:
        with convert_progress() as converting:
            try:
                source.prepare(converting, should_stop)
            except ConversionStoppedError as stopped:
                typer.echo(str(stopped), err=True)
                raise typer.Exit(130) from stopped
        if commands:
            typer.echo(written_commands(jobs, scale, out))
            return
        left = sum(not (job.folder(out) / RESULT).exists() for job in jobs)
        typer.echo(f"{left} of {len(jobs)} rows are to be trained, into {out / source.name}", err=True)
        done = work_through(jobs, scale, out, _showing, should_stop)
    made = write_table(source, out, scale.about)
    typer.echo(made.text)
    typer.echo("Wrote " + ", ".join(map(str, made.files)))
    if done.elsewhere:
        names = ", ".join(f"{job.row.name} (seed {job.seed})" for job in done.elsewhere)
        typer.echo(f"Other processes are at work with {names}: start the command again when they are done", err=True)
    typer.echo(f"Look at {made.files[0]} in a browser.")
    if against is not None:
        typer.echo(compared(source, out, against))


@contextmanager
def _showing(what: str) -> "Iterator[Report]":
    from huefield.apps.cli.progress import run_progress

    typer.echo(what, err=True)
    with run_progress() as report:
        yield report
