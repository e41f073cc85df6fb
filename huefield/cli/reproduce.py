"""``huefield reproduce toy`` and ``table``."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from huefield.cli.toy import toy
from huefield.support.errors import HuefieldError

if TYPE_CHECKING:
    from huefield.training.reports import Report

OTHER_NUMBERS = 3
"""Exit code where results are not those that they were compared with."""

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
        str | None,
        typer.Option(
            help="bundled, acac, ani1x, transition1x (with --file), or a file of your own. Without it, bundled; with "
            "--size paper it must be named."
        ),
    ] = None,
    size: Annotated[SizeKind, typer.Option(help="mini for a pair of cores; paper for days on GPUs.")] = SizeKind.MINI,
    rows: Annotated[RowsKind, typer.Option(help="The paper's three models, or all.")] = RowsKind.PAPER,
    only: Annotated[
        list[str] | None,
        typer.Option(help="A row by its name, as in docs/reproduction.md; may be given several times."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Splits of the data, and as many trainings of each row.")] = 1,
    file: Annotated[Path | None, typer.Option(help="The published HDF5 file of ani1x or transition1x.")] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for everything (with --size paper one in it); what is there is gone on with.")
    ] = Path("reproduction"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --size paper: two steps of each stage, to see that it runs.")
    ] = False,
    commands: Annotated[
        bool,
        typer.Option("--commands", help="With --size paper: train nothing, say how it is run."),
    ] = False,
    against: Annotated[Path | None, typer.Option(help="Results of another run, to compare the numbers with.")] = None,
) -> None:
    """Make the table and the reliability diagrams of the paper, with its own rows beside ours.

    Start the command several times to use several cores or machines: processes share the rows out. Exit code 3:
    --against found numbers that differ by more than a tenth.
    """
    from huefield.cli.progress import convert_progress, stopping_training, use_compilation_cache
    from huefield.data.convert import ConversionStoppedError
    from huefield.reproduce.commands import written_commands
    from huefield.reproduce.plan import planned
    from huefield.reproduce.report import compared, write_table
    from huefield.reproduce.table import Table, require_comparable
    from huefield.reproduce.work import RESULT, work_through

    if data is None and size is SizeKind.PAPER:
        raise HuefieldError("months of work need a name: say which data with --data, and see --dry-run and --commands")
    plan = planned(
        data or "bundled",
        paper_size=size is SizeKind.PAPER,
        dry_run=dry_run,
        rows=only or rows.value,
        seeds=seeds,
        file=file,
        out=out,
    )
    other = None if against is None else Table.load(against)
    if other is not None:
        require_comparable(plan.source, [(job.row.name, job.seed) for job in plan.jobs], other)
    use_compilation_cache()
    with stopping_training() as should_stop:
        with convert_progress() as converting:
            try:
                plan.source.prepare(seeds, converting, should_stop)
            except ConversionStoppedError as stopped:
                typer.echo(str(stopped), err=True)
                raise typer.Exit(130) from stopped
        if commands:
            typer.echo(written_commands(plan, _without(sys.argv, "--commands")))
            return
        rows_left = _RowsLeft(lambda: sum(not (job.folder(plan.out) / RESULT).exists() for job in plan.jobs))
        _tell(f"{rows_left.at_first} of {len(plan.jobs)} rows are to be trained, into {plan.folder}")
        work_through(plan.jobs, plan.size, plan.out, rows_left.showing, _tell, should_stop)
    made = write_table(plan.source, plan.size, plan.out)
    typer.echo(made.text)
    typer.echo("Wrote " + ", ".join(map(str, made.files)))
    typer.echo(f"Look at {made.files[0]} in a browser.")
    if other is not None:
        comparison = compared(made.table, other)
        typer.echo(f"{against}: {comparison.text}")
        raise typer.Exit(0 if comparison.agrees else OTHER_NUMBERS)


def _without(arguments: list[str], flag: str) -> str:
    """The command as it was given, but for a flag."""
    return shlex.join(["huefield", *(argument for argument in arguments[1:] if argument != flag)])


def _tell(text: str) -> None:
    typer.echo(text, err=True)


class _RowsLeft:
    """Says before each training how many rows are left, whoever trains them, and how long that may take."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count, self.at_first, self._begun = count, count(), time.monotonic()

    @contextmanager
    def showing(self, what: str) -> "Iterator[Report]":
        from huefield.cli.progress import run_progress

        _tell(f"{what}{self._outlook()}")
        with run_progress() as report:
            yield report

    def _outlook(self) -> str:
        from huefield.cli.progress import duration, seconds_left

        left = self._count()
        rows = "1 row" if left == 1 else f"{left} rows"
        seconds = seconds_left(time.monotonic() - self._begun, self.at_first, left)
        return f" ({rows} left)" if seconds is None else f" ({rows} left, about {duration(seconds)})"
