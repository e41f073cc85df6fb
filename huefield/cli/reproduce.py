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

from huefield.cli.exit_codes import ExitCode
from huefield.cli.toy import toy
from huefield.support.errors import HuefieldError

if TYPE_CHECKING:
    from huefield.reproduce.sources import AbstractSource
    from huefield.training.reports import OnTrainingEvent

app = typer.Typer(no_args_is_help=True)
app.command()(toy)


class SizeKind(StrEnum):
    """Size of networks and training."""

    MINI = "mini"
    PAPER = "paper"


class RowsKind(StrEnum):
    """Set of rows."""

    PAPER = "paper"
    ALL = "all"


@app.command()
def table(
    data: Annotated[
        str | None,
        typer.Option(
            help="bundled, acac, ani1x, transition1x (with --file), or the path of a file of yours. The default is "
            "bundled, but --size paper requires a choice."
        ),
    ] = None,
    size: Annotated[SizeKind, typer.Option(help="mini takes hours on two cores, paper days on GPUs.")] = SizeKind.MINI,
    rows: Annotated[RowsKind, typer.Option(help="The paper's three models, or all rows.")] = RowsKind.PAPER,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Name of a row, as in docs/reproduction.md; may be given several times."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of data splits; each row is trained once per split.")] = 1,
    file: Annotated[Path | None, typer.Option(help="The published HDF5 file of ani1x or transition1x.")] = None,
    out: Annotated[
        Path, typer.Option(help="Output folder; a run in it is resumed. --size paper uses a subfolder.")
    ] = Path("reproduction"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --size paper: train two steps of each stage, to see that it runs.")
    ] = False,
    commands: Annotated[
        bool,
        typer.Option("--commands", help="With --size paper: train nothing; write configurations and print commands."),
    ] = False,
    against: Annotated[Path | None, typer.Option(help="results.json of another run to compare with.")] = None,
) -> None:
    """Make the paper's table and reliability diagrams, with the published rows beside ours.

    To use several cores or machines, start the command several times: the processes share the rows. Exit code 3 means
    that --against found numbers that differ by more than a tenth.
    """
    from huefield.cli.progress import stopping_training, use_compilation_cache
    from huefield.reproduce.commands import written_commands
    from huefield.reproduce.plan import plan_table
    from huefield.reproduce.report import compared, write_table
    from huefield.reproduce.table import Table, require_comparable
    from huefield.reproduce.work import RESULT, run_jobs

    if data is None and size is SizeKind.PAPER:
        raise HuefieldError("--size paper needs --data, as it trains for months; see also --dry-run and --commands")
    plan = plan_table(
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
        _prepare(plan.source, seeds, should_stop)
        if commands:
            typer.echo(written_commands(plan, _without(sys.argv, "--commands")))
            return
        rows_left = _RowsLeft(
            lambda: sum(not (job.folder(plan.out) / RESULT).exists() for job in plan.jobs), should_stop.all_saved
        )
        _tell(f"Training {rows_left.at_first} of {len(plan.jobs)} rows into {plan.folder}")
        run_jobs(plan.jobs, plan.size, plan.out, rows_left.showing, _tell, should_stop, should_stop.all_saved)
    made = write_table(plan.source, plan.size, plan.out)
    typer.echo(made.text)
    typer.echo("Wrote " + ", ".join(map(str, made.files)))
    typer.echo(f"Look at {made.files[0]} in a browser.")
    if other is not None:
        comparison = compared(made.table, other)
        typer.echo(f"{against}: {comparison.text}")
        raise typer.Exit(0 if comparison.agrees else ExitCode.LIMIT)


def _prepare(source: "AbstractSource", seeds: int, should_stop: Callable[[], bool]) -> None:
    """Convert the data, with a progress bar."""
    from huefield.cli.progress import convert_progress
    from huefield.data.convert import ConversionStoppedError

    with convert_progress() as converting:
        try:
            source.prepare(seeds, converting, should_stop)
        except ConversionStoppedError as stopped:
            _tell(str(stopped))
            raise typer.Exit(ExitCode.INTERRUPTED) from stopped


def _without(arguments: list[str], flag: str) -> str:
    """The given command without one flag."""
    return shlex.join(["huefield", *(argument for argument in arguments[1:] if argument != flag)])


def _tell(text: str) -> None:
    typer.echo(text, err=True)


class _RowsLeft:
    """Reports before each training how many rows are left for all processes, and the estimated time."""

    def __init__(self, count: Callable[[], int], all_saved: Callable[[], None]) -> None:
        self._count, self.at_first, self._begun, self._all_saved = count, count(), time.monotonic(), all_saved

    @contextmanager
    def showing(self, title: str) -> "Iterator[OnTrainingEvent]":
        from huefield.training.progress import run_progress

        self._all_saved()
        _tell(f"{title}{self._outlook()}")
        with run_progress() as report:
            yield report

    def _outlook(self) -> str:
        from huefield.cli.progress import seconds_left
        from huefield.support.pace import duration

        left = self._count()
        rows = "1 row" if left == 1 else f"{left} rows"
        seconds = seconds_left(time.monotonic() - self._begun, self.at_first, left)
        return f" ({rows} left)" if seconds is None else f" ({rows} left, about {duration(seconds)})"
