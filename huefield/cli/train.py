"""``huefield train``, ``config``, ``assemble`` and ``history``."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from huefield.cli.baselines import BaselineOption, CommandOption, given_baseline, parse_baseline
from huefield.cli.exit_codes import ExitCode
from huefield.cli.failures import one_line, show
from huefield.cli.options import NoiseKind
from huefield.support.errors import HuefieldError

SILENCE_SECONDS = 20
"""Time without a sign of life after which a process of a job counts as dead."""
SIGNS_OF_LOSS = ("Gloo", "NCCL", "UNAVAILABLE", "DEADLINE_EXCEEDED")
"""Parts of JAX's messages about a process that cannot be reached."""
GO_ON = "start the job again with the same command to resume from the last checkpoint"


class PresetKind(StrEnum):
    """Configurations to start from."""

    PAPER = "paper"
    SMALL = "small"
    TINY = "tiny"


def train(
    config: Annotated[str, typer.Argument(help="YAML file, as `huefield config` prints it, or the name of a preset.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished run in it is resumed.")],
    data: Annotated[
        list[Path] | None, typer.Option(help="File or store to train on, instead of that of the configuration.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key, such as members=3.")
    ] = None,
    baseline: BaselineOption = None,
    baseline_command: CommandOption = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out structures for which the baseline fails.")
    ] = False,
    member: Annotated[int | None, typer.Option(min=0, help="Train this member alone, for job arrays.")] = None,
    distributed: Annotated[
        bool,
        typer.Option("--distributed", help="Join a job of several processes that Slurm, MPI or Kubernetes started."),
    ] = False,
) -> None:
    """Train an ensemble that predicts energies, forces and their uncertainties."""
    import jax

    from huefield.cli.progress import stopping_training, use_compilation_cache
    from huefield.training import train as run

    if baseline is not None and baseline_command is not None:
        raise typer.BadParameter("name the baseline with --baseline or with --baseline-command, not with both")
    given = given_baseline(None, baseline_command) if baseline is None else parse_baseline(baseline)
    if distributed:
        join_job()
    use_compilation_cache()
    with ending_the_job(distributed), stopping_training() as should_stop:
        trained = run(
            config,
            out,
            data=data or None,
            overrides=[*(overrides or []), *(["skip_bad=true"] if skip_bad else [])],
            member=member,
            baseline=given,
            report=None if jax.process_index() == 0 else lambda event: None,
            should_stop=should_stop,
            on_saved=should_stop.all_saved,
        )
    if jax.process_index():
        return
    typer.echo(trained.table())
    typer.echo(f"Wrote {trained.model}")
    if member is not None:
        typer.echo(f"When all members are trained: huefield assemble {out}")
    else:
        typer.echo(f"Curves of the run: huefield history {out}")


def join_job() -> None:
    """Join the job that JAX finds in the environment."""
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
            f"cannot join a job: {error}. Start the processes with srun or mpirun, or set the environment variables "
            f"{', '.join(known)}"
        ) from error


@contextmanager
def ending_the_job(distributed: bool) -> Iterator[None]:
    """End a failed process of a job without waiting for the others, which would wait for it in turn."""
    import os

    try:
        yield
    except Exception as error:
        if not distributed or isinstance(error, typer.Exit):
            raise
        if one_line(error) is None and any(sign in str(error) for sign in SIGNS_OF_LOSS):
            typer.echo(f"error: another process of the job has ended: {error}", err=True)
            code = ExitCode.ERROR
        else:
            code = show(error)
        typer.echo(f"The job ends: {GO_ON}", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def config(
    preset: Annotated[PresetKind, typer.Option(help="Preset to start from.")] = PresetKind.SMALL,
    data: Annotated[Path | None, typer.Option(help="File or store to train on; the bundled data by default.")] = None,
    noise: Annotated[
        NoiseKind | None,
        typer.Option(
            help="Noise model, if not the preset's. local and local_white are size-consistent: their error bars do not "
            "vanish as structures grow. colored and white are the paper's models in the preset paper, and other names "
            "of local and local_white in the other presets."
        ),
    ] = None,
    baseline: BaselineOption = None,
) -> None:
    """Print a configuration to start from, with comments."""
    from huefield.training import presets

    model = None if noise is None else presets.noise_of_kind(noise.value, preset.value)
    chosen = presets.preset(preset.value, presets.example_data(data), model)
    if baseline is not None:
        chosen = chosen.model_copy(update={"baseline": parse_baseline(baseline)})
    typer.echo(presets.commented_yaml(chosen, presets.ABOUT[preset.value]), nl=False)


def assemble(
    out: Annotated[Path, typer.Argument(help="Folder of the run; the ensemble is written there.")],
    models: Annotated[list[Path] | None, typer.Argument(help="Model files; all members of the run by default.")] = None,
    allow_missing: Annotated[bool, typer.Option("--allow-missing", help="Allow members that are not trained.")] = False,
    baseline_command: CommandOption = None,
) -> None:
    """Assemble members that were trained one by one."""
    from huefield.cli.progress import use_compilation_cache
    from huefield.training import assemble as run
    from huefield.training.progress import run_progress

    use_compilation_cache()
    with run_progress() as show:
        given = given_baseline(None, baseline_command)
        made = run(out, models or None, allow_missing=allow_missing, baseline=given, report=show)
    typer.echo(made)


def history(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    figure: Annotated[
        Path | None, typer.Option(help="PNG, PDF or SVG file; history.png in the folder by default.")
    ] = None,
) -> None:
    """Draw the loss, validation errors and noise of a run."""
    from huefield.training.history_figure import save_history_figure

    typer.echo(f"Drew {save_history_figure(run, figure)}")
