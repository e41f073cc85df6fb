"""``huefield demo``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from huefield.training.reports import OnTrainingEvent


def demo(
    out: Annotated[Path, typer.Option(help="Folder for models, curves and the page.")] = Path("demo"),
) -> None:
    """Train vanilla, white and colored ensembles on the bundled data, calibrate and compare their error bars."""
    from huefield.cli.progress import stopping_training, use_compilation_cache
    from huefield.demo import KINDS, run_demo
    from huefield.training.progress import run_progress

    @contextmanager
    def showing(kind: str) -> "Iterator[OnTrainingEvent]":
        should_stop.all_saved()
        typer.echo(f"Training {kind} ({KINDS.index(kind) + 1} of {len(KINDS)}) into {out / kind}", err=True)
        with run_progress() as report:
            yield report

    use_compilation_cache()
    with stopping_training() as should_stop:
        done = run_demo(out, showing, should_stop)
    typer.echo(done.tables)
    typer.echo("Wrote " + ", ".join(str(path) for path in done.files))
    typer.echo(f"Look at {done.files[0]} in a browser. With data of your own:")
    typer.echo("  huefield config --preset small --data YOUR.xyz > mine.yaml")
    typer.echo("  huefield train mine.yaml --out mine")
