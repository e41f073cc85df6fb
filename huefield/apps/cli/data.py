"""``huefield data``: convert files to packed stores, and look at what is in them."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from huefield.apps.convert import ConvertProgress
    from huefield.data.reading import ReaderConfig
    from huefield.data.summary import Summary

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

SECONDS_BETWEEN_LINES = 5.0

ReaderOption = Annotated[
    str | None,
    typer.Option(
        help="How to read: a kind (ase, md17, ani1x, transition1x) or JSON with its settings, such as "
        '\'{"kind": "ase", "energy_unit": "hartree"}\'. Without it each file is looked at.'
    ),
]


class PrecisionName(StrEnum):
    """Precision of positions and forces."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"


@app.command()
def convert(
    paths: Annotated[list[Path], typer.Argument(metavar="SRC... DEST", help="Files, and the store NAME.hues.")],
    reader: ReaderOption = None,
    precision: Annotated[
        PrecisionName, typer.Option(help="Of positions and forces; float32 halves the store.")
    ] = PrecisionName.FLOAT64,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad frames out, and list them.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted conversion, or throw it away.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store that exists.")] = False,
) -> None:
    """Convert files of structures to a packed store."""
    if len(paths) < 2:
        raise typer.BadParameter("give at least one source and the destination NAME.hues", param_hint="SRC... DEST")
    from huefield.apps.convert import ConversionStoppedError
    from huefield.apps.convert import convert as run

    chosen = parse_reader(reader)
    with convert_progress() as report, stopping_politely() as should_stop:
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
            raise typer.Exit(130) from stopped
    typer.echo(f"Wrote {done.path}: {done.structures} structures, {done.atoms} atoms")
    if done.resumed:
        typer.echo(f"{done.resumed} structures came from an interrupted conversion")
    if done.left_out:
        typer.echo(f"The reader left out {done.left_out} structures by its rules, such as rows without labels")
    if done.faults:
        typer.echo(f"Left out {done.faults} bad frames, listed in {done.path / 'faults.txt'}")


def parse_reader(text: str | None) -> "ReaderConfig | None":
    """A reader from the name of its kind, or from JSON."""
    if text is None:
        return None
    import json

    from pydantic import TypeAdapter, ValidationError

    from huefield.core.config import explain
    from huefield.data.reading import ReaderConfig

    content: Any = {"kind": text}
    if text.lstrip().startswith("{"):
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"--reader is not JSON: {error} (got {text!r})") from error
    adapter: TypeAdapter[ReaderConfig] = TypeAdapter(ReaderConfig)
    try:
        return adapter.validate_python(content)
    except ValidationError as error:
        raise ValueError(explain(error, "--reader")) from error


@contextmanager
def stopping_politely() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether SIGINT or SIGTERM came; a second one ends the program at once."""
    asked = False

    def handle(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        typer.echo("Stopping after this block of structures; once more to stop at once", err=True)
        for name, handler in before.items():
            signal.signal(name, handler)

    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    for name in before:
        signal.signal(name, handle)
    try:
        yield lambda: asked
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextmanager
def convert_progress() -> Iterator[Callable[["ConvertProgress"], None]]:
    """Give a function that shows how far a conversion is: a bar over the sources, or a line now and then."""
    if not sys.stderr.isatty():
        yield _now_and_then()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("file"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)

        def show(progress: "ConvertProgress") -> None:
            total = progress.num_sources if progress.num_sources > 1 else None
            bar.update(task, description=_line(progress), completed=progress.source_number, total=total)

        yield show


def _now_and_then() -> Callable[["ConvertProgress"], None]:
    last = time.monotonic()

    def show(progress: "ConvertProgress") -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            typer.echo(f"file {progress.source_number}/{progress.num_sources}: {_line(progress)}", err=True)
            last = time.monotonic()

    return show


def _line(progress: "ConvertProgress") -> str:
    faults = f", {progress.faults} bad" if progress.faults else ""
    return f"{progress.structures} structures, {progress.rate:,.0f}/s{faults}"


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="A store, or a file that readers know.")],
    reader: ReaderOption = None,
    figure: Annotated[Path | None, typer.Option(help="Where to draw; else NAME_info.png in this folder.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte of a store first.")] = False,
) -> None:
    """Say what is in a store or file, what looks wrong about it, and draw the distributions."""
    import numpy as np

    from huefield.apps.convert import is_store, read_any
    from huefield.core.files import replacing
    from huefield.data.base import Fault, LeftOut
    from huefield.data.store import Store
    from huefield.data.summary import describe, summarise

    if is_store(path):
        store = Store.open(path)
        typer.echo(f"store             {path}, {store.manifest.precision}, by huefield {store.provenance.huefield}")
        if store.manifest.faults:
            typer.echo(f"bad frames        {store.manifest.faults}, left out, listed in {path / 'faults.txt'}")
        if verify:
            store.verify()
    faults: list[Fault] = []
    left_out: list[LeftOut] = []
    blocks = read_any(path, parse_reader(reader), on_fault=faults.append, on_left_out=left_out.append)
    summary = summarise(blocks, rng=np.random.default_rng(0))
    for line in describe(summary):
        typer.echo(line)
    if left_out:
        typer.echo(f"left out          {sum(part.count for part in left_out)} by rules, such as: {left_out[0].reason}")
    if faults:
        typer.echo(f"bad frames        {len(faults)}, such as: {faults[0]}")
    if not summary.structures:
        raise ValueError(f"{path} has no structures that can be used, so there is nothing to draw")
    out = figure or Path(f"{path.stem}_info.png")
    with replacing(out) as temporary:
        draw_summary(summary, path.name).savefig(temporary, format="png", dpi=200)
    typer.echo(f"Drew {out}")


def draw_summary(summary: "Summary", title: str) -> "Figure":
    """Six panels: sizes, elements, labels, energies, forces and shortest distances."""
    import numpy as np
    from matplotlib.figure import Figure

    from huefield.evaluation.plots import ALEATORIC, EPISTEMIC, TRUTH, publication_style

    with publication_style():
        drawing = Figure(figsize=(7.0, 4.2), layout="constrained")
        sizes, elements, labels, energy, force, distance = drawing.subplots(2, 3).flat
        drawing.suptitle(f"{title}: {summary.structures} structures, {summary.atoms} atoms", fontsize=9)
        sizes.bar(np.arange(len(summary.sizes)), summary.sizes, width=1.0, color=EPISTEMIC)
        sizes.set(xlabel="atoms in a structure", ylabel="structures")
        sizes.set_xlim(summary.smallest - 1, len(summary.sizes))
        sizes.locator_params(axis="x", integer=True)
        shown = dict(list(summary.elements.items())[:12])
        elements.bar(list(shown), list(shown.values()), color=EPISTEMIC)
        elements.set(
            ylabel="atoms",
            yscale="log",
            ylim=(0.5, None),
            xlabel="element" + (" (12 commonest)" if len(shown) == 12 else ""),
        )
        counts = [summary.with_energy, summary.with_forces, summary.with_stress, summary.periodic]
        labels.bar(["energy", "forces", "stress", "periodic"], np.array(counts) / summary.structures, color=TRUTH)
        labels.set(ylabel="fraction of structures", ylim=(0, 1.05))
        panels = (
            (energy, summary.energy_per_atom, "energy per atom (eV)", "structures"),
            (force, summary.force_norm, "force on an atom (eV/Å)", "atoms"),
            (distance, summary.shortest_distance, "shortest distance (Å)", "structures"),
        )
        for ax, values, name, what in panels:
            ax.set(xlabel=name, ylabel=f"{what} in sample")
            if values.count:
                ax.hist(values.sample, bins=60, color=ALEATORIC)
                ax.ticklabel_format(axis="x", useOffset=False)
                ax.locator_params(axis="x", nbins=4)
                ax.set_yscale("linear" if ax is distance else "log")
            else:
                ax.text(0.5, 0.5, "none", transform=ax.transAxes, ha="center", color=TRUTH)
        drawing.draw_without_rendering()
    return drawing
