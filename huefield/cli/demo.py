"""``huefield demo``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from huefield.training.reports import OnTrainingEvent


def demo(
    out: Annotated[Path, typer.Option(help="Folder for models, training curves and the report.")] = Path("demo"),
) -> None:
    """Train ensembles with three noise models on the bundled data, calibrate them, and compare their error bars."""
    from huefield.cli.progress import stopping_training, use_compilation_cache
    from huefield.demo import run_demo
    from huefield.training.progress import run_progress

    @contextmanager
    def showing(title: str) -> "Iterator[OnTrainingEvent]":
        should_stop.all_saved()
        typer.echo(title, err=True)
        with run_progress() as report:
            yield report

    use_compilation_cache()
    with stopping_training() as should_stop:
        done = run_demo(out, showing, should_stop, on_saved=should_stop.all_saved)
    typer.echo(done.tables)
    typer.echo("Wrote " + ", ".join(str(path) for path in done.files))
    typer.echo(f"Open {done.files[0]} in a browser. To train on your own data:")
    typer.echo("  huefield config --preset small --data YOUR.xyz > mine.yaml")
    typer.echo("  huefield train mine.yaml --out mine")
