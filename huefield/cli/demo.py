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
    """Correct GFN2-xTB to DFT with error bars, and check them: barriers, larger molecules, unseen reactions."""
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
    typer.echo("  huefield train small --data YOUR.xyz --baseline GFN2-xTB --out mine")
    typer.echo("  huefield calibrate mine/model.safetensors mine")
