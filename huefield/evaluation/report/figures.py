"""Figures of one or several models, as PNG and PDF."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from huefield.core.strain import UPPER
from huefield.evaluation.entries import Vector
from huefield.evaluation.report import curve_plots as draw
from huefield.evaluation.report.panels import (
    PANEL,
    QUANTITIES,
    PlottedQuantity,
    drawn_name,
    grid,
    row_of_panels,
    summaries,
    wrapped,
)
from huefield.evaluation.report.tables import number
from huefield.evaluation.slices import Evaluation
from huefield.predict.predictions import Predictions, linear_in_composition
from huefield.support.errors import HuefieldError
from huefield.support.files import replacing
from huefield.support.plots import publication_style

DPI = 200
KINDS = ("png", "pdf")
"""Files of each figure."""
MOST_POINTS = 200_000
"""Largest number of entries in a plot; a random selection is shown if there are more."""


@dataclass(frozen=True)
class Caption:
    """Title and caption of a figure."""

    title: str
    text: str
    with_tails: str = ""
    """Added if the errors of a model follow a Student t distribution."""


CAPTIONS = {
    "reliability": Caption(
        "Reliability",
        "Root mean squared error (RMSE) against root mean variance (RMV) in bins of equal counts. On the dashed line "
        "the uncertainty matches the error; above it the model is overconfident, below it underconfident.",
    ),
    "z_scores": Caption(
        "z-scores",
        "Errors divided by their predicted standard deviations. They follow the dashed standard normal density if the "
        "uncertainties are right and the errors normal. The scale is logarithmic to show the tails.",
        "Panels with ν: the dashed density is that of a Student t distribution with unit variance, the dotted one the "
        "standard normal one.",
    ),
    "coverage": Caption(
        "Coverage",
        "Fraction of observed values in the central interval of a given probability. Above the dashed line intervals "
        "are too wide, below it too narrow.",
        "Models with ν in the legend: intervals of a Student t distribution; all others: of a normal one.",
    ),
    "retention": Caption(
        "Retention",
        "Mean absolute error of the most certain predictions, as a function of the fraction that is kept. Dotted: the "
        "lower bound, reached if entries are sorted by their true errors.",
    ),
    "parity": Caption(
        "Parity",
        "Predicted against observed values; energies relative to a fit of one energy per element. Very large data sets "
        "are shown as a random selection.",
    ),
    "uncertainty_parts": Caption(
        "Aleatoric and epistemic uncertainty",
        "Standard deviations of the noise (aleatoric) and of the ensemble members (epistemic): root mean squares in "
        "bins of equal counts, from the most certain to the most uncertain prediction.",
    ),
    "calibration": Caption(
        "Before and after calibration",
        "Reliability and coverage with the uncertainties of the uncalibrated model (before, grey) and of the "
        "calibrated model (after).",
        "Intervals are those of a normal distribution, after calibration those of a Student t where ν is given.",
    ),
}


def save_figures(
    evaluations: Sequence[Evaluation],
    predictions: Sequence[Predictions],
    folder: Path,
    *,
    before: Sequence[Evaluation] = (),
) -> list[Path]:
    """Draw all figures that have data into a folder and return the files: for each figure PNG, then PDF.

    Args:
        evaluations: evaluations of the models, in the order of ``predictions``.
        predictions: predictions of the same models.
        folder: created if it does not exist.
        before: evaluations before calibration, with the same model names.
    """
    if len(evaluations) != len(predictions) or not evaluations:
        raise HuefieldError(
            f"each model needs one evaluation and its predictions, but there are {len(evaluations)} evaluations and "
            f"{len(predictions)} predictions"
        )
    figures = {
        "reliability": lambda: reliability_figure(evaluations),
        "z_scores": lambda: z_score_figure(evaluations),
        "coverage": lambda: coverage_figure(evaluations),
        "retention": lambda: retention_figure(evaluations),
        "parity": lambda: parity_figure(predictions),
        "uncertainty_parts": lambda: parts_figure(predictions),
        "calibration": lambda: calibration_figure(before, evaluations),
    }
    return [path for name, make in figures.items() for path in saved_figure(make, folder / name)]


def saved_figure(make: Callable[[], Figure | None], stem: Path) -> Iterator[Path]:
    """Write a figure, if there is one, as PNG and PDF, and yield the files."""
    with publication_style():
        figure = make()
        if figure is None:
            return
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the layout is final and is used for both files
        for path in (stem.with_suffix(f".{kind}") for kind in KINDS):
            with replacing(path) as temporary:
                figure.savefig(temporary, dpi=DPI)
            yield path


def reliability_figure(evaluations: Sequence[Evaluation]) -> Figure | None:
    """RMSE against RMV: one column per model, one row per quantity. Panels of a row share their limits."""
    curves = summaries(evaluations, lambda found: len(found.reliability.rmv) > 0)
    figure, panels = grid([e.name for e in evaluations], curves)
    for quantity, row in curves.items():
        shown = [values for found in row.values() for values in (found.reliability.rmv, found.reliability.rmse)]
        for model, found in row.items():
            ax = panels[quantity, model]
            draw.draw_diagonal(ax, *shown)
            draw.draw_reliability(ax, found.reliability, model=model)
            _say(ax, f"ENCE {number(found.ence, 2)}\nRZV {number(found.rzv, 2)}")
            ax.set(xlabel=f"RMV ({quantity.unit})", ylabel=f"{quantity.word} RMSE ({quantity.unit})")
    return figure


def z_score_figure(evaluations: Sequence[Evaluation]) -> Figure | None:
    """Histograms of z-scores: one column per model, one row per quantity."""
    curves = summaries(evaluations, lambda found: len(found.z_histogram.density) > 0)
    figure, panels = grid([e.name for e in evaluations], curves)
    for quantity, row in curves.items():
        for model, found in row.items():
            draw.draw_z_scores(panels[quantity, model], found.z_histogram, model=model, dof=found.dof)
            panels[quantity, model].set(xlabel=f"{quantity.word} error / σ", ylabel="density")
    return figure


def coverage_figure(evaluations: Sequence[Evaluation]) -> Figure | None:
    """Observed against nominal coverage: one panel per quantity with all models."""
    curves = summaries(evaluations, lambda found: len(found.coverage_curve.nominal) > 0)
    figure, panels = row_of_panels(curves)
    for quantity, row in curves.items():
        draw.frame_coverage(panels[quantity])
        panels[quantity].set(xlabel="nominal coverage", ylabel="observed coverage", title=quantity.title)
        for model, found in row.items():
            tails = "" if found.dof is None else f" ({draw.nu_text(found.dof)})"
            name = f"{drawn_name(evaluations[model].name)}{tails}"
            draw.draw_coverage(panels[quantity], found.coverage_curve, model=model, label=name)
        panels[quantity].legend(loc="best")
    return figure


def retention_figure(evaluations: Sequence[Evaluation]) -> Figure | None:
    """Mean absolute error of the kept entries: one panel per quantity with all models."""
    curves = summaries(evaluations, lambda found: np.isfinite(found.retention_area))
    figure, panels = row_of_panels(curves)
    for quantity, row in curves.items():
        for model, found in row.items():
            name = drawn_name(evaluations[model].name)
            draw.draw_retention(panels[quantity], found.retention, model=model, label=name)
        ax = panels[quantity]
        ax.set(xlabel="fraction kept, most certain first", ylabel=f"{quantity.word} MAE ({quantity.unit})")
        ax.set_title(quantity.title)
        ax.set(xlim=(0, 1), ylim=(0, None))
        ax.xaxis.set_major_formatter(PercentFormatter(1.0))
        ax.legend(loc="best")
    return figure


def parity_figure(predictions: Sequence[Predictions]) -> Figure | None:
    """Predicted against observed values: one column per model, one row per quantity."""
    pairs = {q: {i: pair for i, p in enumerate(predictions) if (pair := _pairs(p, q))} for q in QUANTITIES}
    pairs = {quantity: row for quantity, row in pairs.items() if row}
    figure, panels = grid([p.name for p in predictions], pairs)
    for quantity, row in pairs.items():
        for model, (observed, predicted) in row.items():
            draw.draw_parity(panels[quantity, model], observed, predicted, model=model)
            panels[quantity, model].set(
                xlabel=f"observed {quantity.word} ({quantity.unit})",
                ylabel=f"predicted {quantity.word} ({quantity.unit})",
            )
    return figure


def parts_figure(predictions: Sequence[Predictions]) -> Figure | None:
    """Aleatoric and epistemic uncertainty of models that have both: one column per model, one row per quantity."""
    parts = {q: {i: found for i, p in enumerate(predictions) if (found := _parts(p, q))} for q in QUANTITIES}
    parts = {quantity: row for quantity, row in parts.items() if row}
    figure, panels = grid([p.name for p in predictions], parts)
    for quantity, row in parts.items():
        for model, (aleatoric, epistemic) in row.items():
            ax = panels[quantity, model]
            draw.draw_parts(ax, aleatoric, epistemic)
            ax.set(xlabel="rank of uncertainty", ylabel=f"{quantity.word} uncertainty ({quantity.unit})")
            ax.legend(loc="best")
    return figure


def calibration_figure(before: Sequence[Evaluation], after: Sequence[Evaluation]) -> Figure | None:
    """Reliability and coverage before and after calibration: one row per model, two panels per quantity."""
    earlier = {evaluation.name: evaluation for evaluation in before}
    pairs = [(earlier[e.name], e, model) for model, e in enumerate(after) if e.name in earlier]
    shown = [q for q in QUANTITIES if any(q.summary(e) and q.summary(b) for b, e, _ in pairs)]
    if not shown:
        return None
    columns = 2 * len(shown)
    figure = Figure(figsize=(0.3 + PANEL * columns, 0.25 + 2.15 * len(pairs)), layout="constrained")
    axes = figure.subplots(len(pairs), columns, squeeze=False)
    for row, (old, new, model) in zip(axes, pairs, strict=True):
        for place, quantity in enumerate(shown):
            _draw_calibration(list(row[2 * place : 2 * place + 2]), quantity, old, new, model)
    return figure


def _draw_calibration(
    axes: Sequence[Axes], quantity: PlottedQuantity, old: Evaluation, new: Evaluation, model: int
) -> None:
    before, after = quantity.summary(old), quantity.summary(new)
    if before is None or after is None:
        for ax in axes:
            ax.set_axis_off()
        return
    left, right = axes
    draw.draw_diagonal(left, *(v for s in (before, after) for v in (s.reliability.rmv, s.reliability.rmse)))
    draw.draw_reliability(left, before.reliability, model=model, label="before", faded=True)
    draw.draw_reliability(left, after.reliability, model=model, label="after")
    left.set(xlabel=f"RMV ({quantity.unit})", ylabel=f"{quantity.word} RMSE ({quantity.unit})", title=wrapped(new.name))
    draw.frame_coverage(right)
    draw.draw_coverage(right, before.coverage_curve, model=model, label="before", faded=True)
    draw.draw_coverage(right, after.coverage_curve, model=model, label="after")
    right.set(xlabel="nominal coverage", ylabel="observed coverage")
    if after.dof is not None:
        _say(right, f"before: normal\nafter: {draw.nu_text(after.dof)}")
    left.legend(loc="best")


def _say(ax: Axes, text: str) -> None:
    ax.text(0.96, 0.05, text, ha="right", va="bottom", fontsize=6.5, transform=ax.transAxes)


def _pairs(predictions: Predictions, quantity: PlottedQuantity) -> tuple[Vector, Vector] | None:
    """Observed and predicted values; energies relative to a fit of one energy per element."""
    energies = quantity.field == "energy"
    found = predictions.observed(quantity.field)
    if found is None:
        return None
    at = _random_selection(len(found.mean))
    target, mean = found.target[at].astype(float), found.mean[at].astype(float)
    base = linear_in_composition(predictions.structures.block(found.structure[at]), target) if energies else 0.0
    return target - base, mean - base


def _parts(predictions: Predictions, quantity: PlottedQuantity) -> tuple[Vector, Vector] | None:
    """Aleatoric and epistemic variances of all predictions."""
    found = quantity.marginals(predictions)
    if found is None or found.aleatoric_var is None or found.epistemic_var is None or not np.any(found.variance > 0):
        return None
    predicted = np.isfinite(found.mean) & (UPPER if quantity.field == "stress" else True)
    at = _random_selection(int(predicted.sum()))
    return found.aleatoric_var[predicted][at], found.epistemic_var[predicted][at]


def _random_selection(count: int) -> slice | np.ndarray:
    return slice(None) if count <= MOST_POINTS else np.random.default_rng(0).integers(0, count, MOST_POINTS)
