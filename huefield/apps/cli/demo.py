"""``huefield demo``."""

from pathlib import Path
from typing import Annotated

import typer


def demo(out: Annotated[Path, typer.Option(help="Folder for models, curves and the table.")] = Path("demo")) -> None:
    """Train vanilla, white and colored ensembles on the bundled data, and compare their error bars."""
    from huefield.apps.cli.progress import run_progress, stopping_politely, use_compilation_cache
    from huefield.apps.demo import KINDS, run_demo
    from huefield.training import TrainingStoppedError

    def begin(kind: str) -> None:
        number = f"{KINDS.index(kind) + 1} of {len(KINDS)}"
        typer.echo(f"Training {kind} ({number}), three members, into {out / kind}", err=True)

    use_compilation_cache()
    with run_progress() as report, stopping_politely("after this step") as should_stop:
        try:
            done = run_demo(out, report, should_stop, begin)
        except TrainingStoppedError as stopped:
            typer.echo(str(stopped), err=True)
            raise typer.Exit(130) from stopped
    typer.echo(done.table)
    typer.echo("Wrote " + ", ".join(str(path) for path in done.files))
    typer.echo(
        "Next: `huefield config --preset small --data YOUR.xyz > mine.yaml`, then `huefield train mine.yaml --out mine`"
    )
