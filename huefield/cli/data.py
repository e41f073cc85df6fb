"""``huefield data``: convert files to packed stores, and describe stores and files."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from huefield.cli.baselines import BaselineOption, CommandOption, given_baseline
from huefield.cli.exit_codes import ExitCode
from huefield.cli.options import from_kind_or_json
from huefield.cli.progress import convert_progress
from huefield.cli.signals import stopping_politely
from huefield.support.errors import HuefieldError

if TYPE_CHECKING:
    from huefield.data.readers.detect import ReaderConfig

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

ReaderOption = Annotated[
    str | None,
    typer.Option(
        help="How to read: a kind (ase, md17, ani1x, transition1x) or JSON with its settings, such as "
        '\'{"kind": "ase", "energy_unit": "hartree"}\'. By default the kind is detected from each file.'
    ),
]


class StorePrecision(StrEnum):
    """Precision of positions and forces."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"


@app.command()
def convert(
    paths: Annotated[
        list[Path], typer.Argument(metavar="SRC... DEST", help="Files to convert, and the store NAME.hues to write.")
    ],
    reader: ReaderOption = None,
    precision: Annotated[
        StorePrecision, typer.Option(help="Precision of positions and forces; float32 halves the size.")
    ] = StorePrecision.FLOAT64,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip bad frames and list them in faults.txt.")] = False,
    resume: Annotated[bool, typer.Option(help="Resume an interrupted conversion, or delete it.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing store.")] = False,
) -> None:
    """Convert files of structures to a packed store."""
    if len(paths) < 2:
        raise typer.BadParameter("give at least one source and the destination NAME.hues", param_hint="SRC... DEST")
    from huefield.data.convert import ConversionStoppedError
    from huefield.data.convert import convert as run

    chosen = parse_reader(reader)
    with convert_progress() as report, stopping_politely("after this block of structures") as should_stop:
        try:
            done = run(
                paths[:-1],
                paths[-1],
                reader=chosen,
                precision=precision.value,
                skip_bad=skip_bad,
                resume=resume,
                overwrite=overwrite,
                report=report,
                should_stop=should_stop,
            )
        except ConversionStoppedError as stopped:
            typer.echo(str(stopped), err=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from stopped
    typer.echo(f"Wrote {done.path}: {done.structures} structures, {done.atoms} atoms")
    if done.resumed:
        typer.echo(f"{done.resumed} structures were converted before an interruption")
    if done.left_out:
        typer.echo(f"Left out by the reader: {done.left_out} structures, such as rows without labels")
    if done.faults:
        typer.echo(f"Bad frames skipped: {done.faults}, listed in {done.path / 'faults.txt'}")


def parse_reader(text: str | None) -> "ReaderConfig | None":
    """The reader from its kind or from JSON."""
    if text is None:
        return None
    from pydantic import TypeAdapter

    from huefield.data.readers.detect import ReaderConfig

    adapter: TypeAdapter[ReaderConfig] = TypeAdapter(ReaderConfig)
    return from_kind_or_json(text, "--reader", adapter)


@app.command()
def baseline(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Structures: a file, or a packed store.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="File to write, NAME.extxyz or NAME.xyz, or a store NAME.hues.")
    ],
    baseline: BaselineOption = None,
    baseline_command: CommandOption = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes; one on each core by default.")
    ] = None,
    reader: ReaderOption = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out bad frames, and structures for which the baseline fails.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Compute a baseline for all structures of a file, and write its results beside the labels.

    The same command resumes an interrupted computation.
    """
    from huefield.baselines.files import write_baseline
    from huefield.cli.progress import counting_progress

    chosen = given_baseline(baseline, baseline_command)
    if chosen is None:
        raise HuefieldError("name the baseline with --baseline or with --baseline-command")
    with counting_progress() as report:
        show = report(chosen.title)
        done = write_baseline(
            source,
            out,
            chosen,
            reader=parse_reader(reader),
            skip_bad=skip_bad,
            workers=workers,
            overwrite=overwrite,
            report=lambda count: show(count, None),
        )
    typer.echo(f"Wrote {done.path}: {done.structures} structures with results of {chosen.title}")
    for fault in done.faults:
        typer.echo(f"note: left out {fault}", err=True)


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="A store, a file of structures, or the folder of a run.")],
    reader: ReaderOption = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the distributions into this PNG file.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Verify all checksums of a store first.")] = False,
) -> None:
    """Describe a store, a file or the data of a run: counts, ranges, duplicates, and units that look wrong."""
    from huefield.data.info import draw_summary, look_into
    from huefield.support.files import replacing

    found = look_into(path, parse_reader(reader), verify=verify)
    for line in found.lines():
        typer.echo(line)
    if not found.summary.structures:
        raise HuefieldError(f"{path} has no structure that can be used; the lines above give the reasons")
    if figure is not None:
        with replacing(figure) as temporary:
            draw_summary(found.summary, path.name).savefig(temporary, format="png", dpi=200)
        typer.echo(f"Drew {figure}")
