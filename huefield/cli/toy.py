"""``huefield toy``."""

from pathlib import Path
from typing import Annotated

import typer

from huefield.cli.options import NoiseKind


def toy(
    out: Annotated[Path, typer.Option(help="Folder for the figure, the numbers and the model.")] = Path("toy"),
    noise: Annotated[NoiseKind, typer.Option(help="Noise model.")] = NoiseKind.COLORED,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Seed of the noise, the training points and the networks.")
    ] = 0,
    members: Annotated[int, typer.Option(min=1, max=1000, help="Networks in the ensemble.")] = 10,
) -> None:
    """Draw the paper's toy example: an ensemble on energies and forces with correlated noise."""
    from huefield.cli.progress import use_compilation_cache
    from huefield.reproduce.toy import ToyConfig, run_toy, toy_scores, write_toy
    from huefield.support.files import require_writable
    from huefield.training.progress import run_progress

    config = ToyConfig.model_validate({"noise": {"kind": noise.value}, "seed": seed, "members": members})
    require_writable(out)
    use_compilation_cache()
    with run_progress() as report:
        result = run_toy(config, report)
    paths = write_toy(result, out)
    summary = toy_scores(result)
    for place in ("inside_training_interval", "outside_training_interval"):
        scores = summary[place]
        typer.echo(
            f"{place.replace('_', ' '):>25}: energy RMSE {scores['energy_rmse']:.3f} eV, "
            f"aleatoric {scores['energy_aleatoric']:.3f}, epistemic {scores['energy_epistemic']:.3f} eV"
        )
    typer.echo("Wrote " + ", ".join(str(path) for path in paths))
