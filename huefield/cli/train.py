"""``huefield train``, ``config``, ``assemble`` and ``history``."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from huefield.cli.options import NoiseKind
from huefield.support.errors import HuefieldError

if TYPE_CHECKING:
    from huefield.training import Trained

SILENCE_SECONDS = 20
"""After which the processes of a job take one of them for dead."""
SIGNS_OF_LOSS = ("Gloo", "NCCL", "UNAVAILABLE", "DEADLINE_EXCEEDED")
"""In messages of JAX when a process cannot be reached."""
GO_ON = "start the job again with the same command, and it goes on from the last checkpoint"


class PresetKind(StrEnum):
    """Configurations to start from."""

    PAPER = "paper"
    SMALL = "small"
    TINY = "tiny"


def train(
    config: Annotated[Path, typer.Argument(help="Configuration, as `huefield config` prints it.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished run in it is gone on with.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key, such as members=3.")
    ] = None,
    member: Annotated[int | None, typer.Option(min=0, help="Train this member alone, for job arrays.")] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Be one process of a job that Slurm, MPI or Kubernetes has started.")
    ] = False,
) -> None:
    """Train an ensemble: from data to a model that says how wrong it is."""
    import jax

    from huefield.cli.progress import run_progress, stopping_training, use_compilation_cache
    from huefield.training import parse_config
    from huefield.training import train as run

    parsed = parse_config(config.read_text(), str(config), overrides or [])
    if distributed:
        join_job()
    use_compilation_cache()
    with ending_at_once(distributed), stopping_training() as should_stop, run_progress() as show:
        report = show if jax.process_index() == 0 else lambda event: None
        trained = run(parsed, out, member=member, report=report, should_stop=should_stop)
    if jax.process_index():
        return
    _say_scores(trained)
    typer.echo(f"Wrote {trained.model}")
    if member is not None:
        typer.echo(f"When all members are trained: huefield assemble {out}")
    else:
        typer.echo(f"Curves of the run: huefield history {out}")


def join_job() -> None:
    """Become one process of a job, as JAX finds it in the environment."""
    import jax

    _find_job()
    typer.echo(f"Process {jax.process_index()} of {jax.process_count()}. If one ends, all end: {GO_ON}", err=True)


def _find_job() -> None:
    import os

    import jax

    known = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    if all(name in os.environ for name in known):
        address, count, number = (os.environ[name] for name in known)
        jax.distributed.initialize(address, int(count), int(number), heartbeat_timeout_seconds=SILENCE_SECONDS)
        return
    try:
        jax.distributed.initialize(heartbeat_timeout_seconds=SILENCE_SECONDS)
    except (ValueError, RuntimeError) as error:
        raise HuefieldError(
            f"cannot join a job: {error}. Start the processes with srun or mpirun, or say by hand who they are, with "
            f"the environment variables {', '.join(known)}"
        ) from error


@contextmanager
def ending_at_once(distributed: bool) -> Iterator[None]:
    """In a job, end this process without waiting for the others if it fails, as they would wait for it in turn."""
    import os

    try:
        yield
    except Exception as error:
        if not distributed or isinstance(error, typer.Exit):
            raise
        if isinstance(error, ValueError | OSError | RuntimeError):
            lost = any(sign in str(error) for sign in SIGNS_OF_LOSS)
            typer.echo(f"error: {'another process of the job has ended: ' if lost else ''}{error}", err=True)
        else:
            traceback.print_exception(error)
        typer.echo(f"The job ends: {GO_ON}", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _say_scores(trained: "Trained") -> None:
    """The table of the paper, as far as training knows it."""
    head = f"{'':>16} {'MAE':>8} {'RMSE':>8} {'NLL':>8} {'RZV':>6} {'RMV':>8}"
    for quantity, unit in (("energy", "eV"), ("forces", "eV/Å")) if trained.scores else ():
        typer.echo(f"{quantity} [{unit}]".ljust(16) + head[16:])
        for name, scores in trained.scores.items():
            e = getattr(scores, quantity)
            typer.echo(f"{name:>16} {e.mae:8.4f} {e.rmse:8.4f} {e.nll:8.2f} {e.rzv:6.2f} {e.rmv:8.4f}")


def config(
    preset: Annotated[PresetKind, typer.Option(help="What to start from.")] = PresetKind.SMALL,
    data: Annotated[Path | None, typer.Option(help="File or store to train on; else the bundled data.")] = None,
    noise: Annotated[NoiseKind | None, typer.Option(help="Another noise model than the preset's.")] = None,
) -> None:
    """Print a configuration to start from, with comments."""
    from huefield.training import presets

    chosen = presets.preset(preset.value, presets.example_data(data))
    if noise is not None and chosen.model.noise.kind != noise.value:
        chosen = presets.with_noise(chosen, presets.noise_of_kind(noise.value))
    typer.echo(presets.commented_yaml(chosen, presets.ABOUT[preset.value]), nl=False)


def assemble(
    out: Annotated[Path, typer.Argument(help="Folder of the run; the ensemble is written there.")],
    models: Annotated[list[Path] | None, typer.Argument(help="Model files; else all members of the run.")] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Do without members that are not trained.")
    ] = False,
) -> None:
    """Put members together that were trained one by one."""
    from huefield.cli.progress import run_progress, use_compilation_cache
    from huefield.training import assemble as run

    use_compilation_cache()
    with run_progress() as show:
        made = run(out, models or None, allow_missing=allow_missing, report=show)
    _say_scores(made)
    count = made.ensemble.num_members
    typer.echo(f"Wrote {made.model}: {count} member{'s' if count != 1 else ''}")


def history(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    figure: Annotated[
        Path | None, typer.Option(help="Where to draw, as PNG, PDF or SVG; else history.png in the folder.")
    ] = None,
) -> None:
    """Draw how loss, errors and noise changed in a run."""
    from huefield.training.history_figure import save_history_figure

    typer.echo(f"Drew {save_history_figure(run, figure)}")
