"""The paper's toy example: [J23] arXiv:2312.04174v1, section "Toy Example".

It uses the noise models, ensembles, training and metrics for molecules, with a potential of one coordinate.
"""

import io
import json
from pathlib import Path
from typing import Annotated, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field
from scipy.stats import spearmanr

from huefield import __version__
from huefield.data import toy
from huefield.evaluation import gaussian_nll, rmse
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.modelfile import save
from huefield.noise import ColoredNoise, NoiseConfig, VanillaNoise
from huefield.potentials import MLPPotential
from huefield.support import plots
from huefield.support.config import FrozenConfig
from huefield.support.files import write_bytes
from huefield.training import BetaNLLStage, NLLStage, SquaredErrorStage, Stage, fit
from huefield.training.reports import OnTrainingEvent

Steps = Annotated[int, Field(ge=0, le=10**9)]
"""Steps of a stage."""


class ToyConfig(FrozenConfig):
    """Settings of the toy example.

    The paper states neither network nor schedule for its toy; these are ours, with the paper's three stages for
    molecules. A flexible network that is trained for long follows one smooth realisation to within the nugget, α/100,
    and no visible noise remains; weight decay makes members trade precision for smoothness, as the paper says.
    """

    process: toy.ToyProcess = toy.ToyProcess()
    potential: MLPPotential.Config = MLPPotential.Config(width=32, depth=2, frequency=2.0)
    noise: NoiseConfig = ColoredNoise.Config()
    members: int = Field(10, ge=1, le=1000, description="networks in the ensemble")
    seed: int = Field(0, ge=0, lt=2**31, description="of the noise, the training points and the networks")
    steps: tuple[Steps, Steps, Steps] = Field((1500, 1000, 2000), description="of squared error, β-NLL and NLL")
    learning_rate: float = Field(3e-3, gt=0, description="of Adam; falls to a tenth in the last stage")
    weight_decay: float = Field(0.3, ge=0, description="of the networks")
    view: tuple[float, float] = Field((-1.6, 1.6), description="interval that is predicted and drawn")
    grid_points: int = Field(321, ge=2, le=10_000, description="points in that interval")

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Squared error, β-NLL, NLL; without a noise model, squared error for as many steps."""
        rate: dict[str, Any] = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        if isinstance(self.noise, VanillaNoise.Config):
            return (SquaredErrorStage(steps=sum(self.steps), decay=0.1, **rate),)
        first, second, third = self.steps
        return (
            SquaredErrorStage(steps=first, **rate),
            BetaNLLStage(steps=second, initialise_noise=True, **rate),
            NLLStage(steps=third, decay=0.1, **rate),
        )


class PredictedCurves(eqx.Module):
    """Predictions of an ensemble at points x: means, and aleatoric and epistemic standard deviations."""

    mean: toy.ToyCurve
    aleatoric: toy.ToyCurve
    epistemic: toy.ToyCurve


class ToyResult(eqx.Module):
    """A trained toy: data, ensemble and its prediction on the grid and on the training points."""

    config: ToyConfig = eqx.field(static=True)
    data: toy.ToyData
    ensemble: Ensemble
    gamma: Float[np.ndarray, " M"] | None
    on_grid: PredictedCurves
    on_train: PredictedCurves

    @property
    def inside(self) -> Bool[np.ndarray, " n"]:
        """Mask of the grid points in the training interval."""
        grid = self.data.truth.x
        return (grid >= self.config.process.low) & (grid <= self.config.process.high)


def run_toy(config: ToyConfig, report: OnTrainingEvent = lambda event: None) -> ToyResult:
    """Draw the data and train the ensemble, in double precision."""
    with jax.enable_x64(True):
        data_key, member_key = jax.random.split(jax.random.key(config.seed))
        data = toy.draw_toy(config.process, np.linspace(*config.view, config.grid_points), key=data_key)
        architecture = ForceField.Config(potential=config.potential, noise=config.noise)
        ensemble = Ensemble.build(architecture, config.members, key=member_key, strategy="vmap")
        graph, labels = toy.toy_graph(data.train.x), toy.toy_labels(data.train)
        ensemble = fit(ensemble, graph, labels, config.stages, report=report)
        noise = ensemble.members.noise
        gamma = np.asarray(noise.gamma.gamma).ravel() if isinstance(noise, ColoredNoise) else None
        return ToyResult(config, data, ensemble, gamma, *(_predict(ensemble, x) for x in (data.truth.x, data.train.x)))


def _predict(ensemble: Ensemble, x: Float[np.ndarray, " n"]) -> PredictedCurves:
    p = ensemble.predict(toy.toy_graph(x))
    pairs = (
        (p.energy, p.forces),
        (p.energy_uncertainty_aleatoric, p.forces_uncertainty_aleatoric),
        (p.energy_uncertainty_epistemic, p.forces_uncertainty_epistemic),
    )
    return PredictedCurves(*(toy.ToyCurve(x, np.asarray(energy), np.asarray(forces)[:, 0]) for energy, forces in pairs))


def toy_scores(result: ToyResult) -> dict[str, Any]:
    """Scores of a toy as JSON types. The same configuration gives the same numbers."""
    inside = result.inside
    return {
        "huefield": __version__,
        "config": result.config.model_dump(mode="json"),
        "true_gamma": result.config.process.length_scale**-2,
        "gamma": None if result.gamma is None else result.gamma.tolist(),
        "force_noise_rank_correlation_with_crowding": _grows_where_points_crowd(result),
        "training_points": _scores(result.on_train, result.data.train, np.ones(result.data.train.x.size, bool)),
        "inside_training_interval": _scores(result.on_grid, result.data.realisation, inside),
        "outside_training_interval": _scores(result.on_grid, result.data.realisation, ~inside),
    }


def _grows_where_points_crowd(result: ToyResult) -> float | None:
    """Rank correlation, over the training points, of the force noise with the number of points within 0.1 Å.

    [J23] says of its figure that the aleatoric uncertainty "increases when the samples are close together"; whether
    it does depends on the draw. None without noise.
    """
    x, noise = result.data.train.x, result.on_train.aleatoric.forces
    crowd = np.sum(np.abs(x[:, None] - x[None, :]) < 0.1, axis=1)
    if np.ptp(noise) == 0 or np.ptp(crowd) == 0:
        return None
    return float(spearmanr(crowd, noise).statistic)


def _scores(
    predicted: PredictedCurves, target: toy.ToyCurve, where: Bool[np.ndarray, " n"]
) -> dict[str, float | None] | None:
    """Errors against the noisy realisation, and the root mean squares of both standard deviations."""
    if not where.any():
        return None
    scores: dict[str, float | None] = {}
    for name in ("energy", "forces"):
        mean, aleatoric, epistemic, truth = (
            getattr(curve, name)[where] for curve in (predicted.mean, predicted.aleatoric, predicted.epistemic, target)
        )
        variance = aleatoric**2 + epistemic**2
        scores[f"{name}_rmse"] = rmse(truth - mean)
        scores[f"{name}_nll"] = gaussian_nll(truth - mean, variance) if np.all(variance > 0) else None
        scores[f"{name}_aleatoric"], scores[f"{name}_epistemic"] = rmse(aleatoric), rmse(epistemic)
    return scores


def draw_figure(result: ToyResult) -> Figure:
    """Energy left, force right; above the prediction, below its two standard deviations."""
    with plots.publication_style():
        figure = Figure(figsize=(7.0, 4.0), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True, height_ratios=(2.2, 1))
        units = (("energy", "Energy (eV)"), ("forces", "Force (eV/Å)"))
        for column, (name, label) in enumerate(units):
            _draw_quantity(axes[0, column], axes[1, column], result, name)
            axes[0, column].set_title(f"({'ab'[column]})", loc="left", fontweight="bold")
            axes[0, column].set_ylabel(label)
            axes[1, column].set_ylabel("σ " + label[label.index("(") :])
            axes[1, column].set_xlabel("x (Å)")
        handles, names = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=len(names), handlelength=1.6, columnspacing=1.2)
    return figure


def _draw_quantity(above: Axes, below: Axes, result: ToyResult, name: str) -> None:
    data, predicted, process = result.data, result.on_grid, result.config.process
    x = data.truth.x
    mean, aleatoric, epistemic = (
        getattr(curve, name) for curve in (predicted.mean, predicted.aleatoric, predicted.epistemic)
    )
    plots.draw_bands(above, x, mean, aleatoric, epistemic)
    above.plot(x, getattr(data.truth, name), color=plots.TRUTH, ls="--", lw=0.9, label="truth")
    above.plot(x, getattr(data.realisation, name), color=plots.OBSERVED, ls=":", lw=1.2, label="truth + noise")
    above.plot(
        data.train.x, getattr(data.train, name), "o", color=plots.OBSERVED, ms=3, mew=0.4, mec="white", label="observed"
    )
    curves = np.concatenate([getattr(data.truth, name), getattr(data.realisation, name)])
    margin = 0.35 * np.ptp(curves)
    above.set_ylim(curves.min() - margin, curves.max() + margin)
    plots.draw_uncertainties(below, x, aleatoric, epistemic)
    rug = np.full(data.train.x.size, 0.06)
    below.plot(data.train.x, rug, "|", color=plots.OBSERVED, ms=5, mew=0.8, transform=below.get_xaxis_transform())
    for ax in (above, below):
        ax.axvspan(process.low, process.high, color="0.95", zorder=-1, lw=0)
        ax.margins(x=0)


def write_toy(result: ToyResult, directory: Path) -> list[Path]:
    """Write the model, the scores as JSON, and the figure as PDF and PNG, each atomically."""
    figure, stem = draw_figure(result), directory / f"toy-{result.config.noise.kind}"
    paths = {kind: stem.with_suffix(f".{kind}") for kind in ("safetensors", "json", "pdf", "png")}
    save(result.ensemble, paths["safetensors"])
    write_bytes(paths["json"], (json.dumps(toy_scores(result), indent=2) + "\n").encode())
    for kind in ("pdf", "png"):
        drawn = io.BytesIO()  # in memory first, so that a full disk raises the usual OSError
        figure.savefig(drawn, format=kind, dpi=300, metadata={"CreationDate": None} if kind == "pdf" else None)
        write_bytes(paths[kind], drawn.getvalue())
    return list(paths.values())
