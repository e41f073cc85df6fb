"""Layout of figures of several models and quantities."""

from collections.abc import Callable, Mapping, Sequence
from textwrap import fill
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from huefield.evaluation.slices import Evaluation
from huefield.evaluation.summaries import MetricSummary
from huefield.predict.marginals import Marginals
from huefield.predict.predictions import Predictions
from huefield.support.names import one_line

PANEL = 2.05
"""Width of a panel if there are several models, inches."""


class PlottedQuantity(NamedTuple):
    """Energies, forces or stresses, with the words for labels."""

    field: str
    """Name of the attribute of evaluations and predictions."""
    title: str
    word: str
    unit: str

    def summary(self, evaluation: Evaluation) -> MetricSummary | None:
        """Metrics of this quantity."""
        found: MetricSummary | None = getattr(evaluation, self.field)
        return found

    def marginals(self, predictions: Predictions) -> Marginals | None:
        """Predicted means and variances of this quantity."""
        found: Marginals | None = getattr(predictions, self.field)
        return found


QUANTITIES = (
    PlottedQuantity("energy", "Energies", "energy", "eV"),
    PlottedQuantity("forces", "Force components", "force", "eV/Å"),
    PlottedQuantity("stress", "Stress components", "stress", "eV/Å³"),
)


def summaries(
    evaluations: Sequence[Evaluation], drawable: Callable[[MetricSummary], bool | np.bool_]
) -> dict[PlottedQuantity, dict[int, MetricSummary]]:
    """For each quantity, the summaries that can be drawn, by the number of the model."""
    found = {
        q: {i: s for i, e in enumerate(evaluations) if (s := q.summary(e)) is not None and drawable(s)}
        for q in QUANTITIES
    }
    return {quantity: row for quantity, row in found.items() if row}


def grid(
    names: Sequence[str], shown: Mapping[PlottedQuantity, Mapping[int, object]]
) -> tuple[Figure | None, dict[tuple[PlottedQuantity, int], Axes]]:
    """One panel per quantity and model; the panels of a single model are side by side."""
    if not shown:
        return None, {}
    models = sorted({model for row in shown.values() for model in row})
    single = len(models) == 1
    rows, columns = (1, len(shown)) if single else (len(shown), len(models))
    width = 2.9 if single else max(PANEL, 5.6 / len(models))
    figure = Figure(
        figsize=(0.3 + width * columns, 0.25 + (2.6 if single else width + 0.1) * rows), layout="constrained"
    )
    axes = figure.subplots(rows, columns, squeeze=False)
    panels: dict[tuple[PlottedQuantity, int], Axes] = {}
    for i, quantity in enumerate(shown):
        for j, model in enumerate(models):
            ax = axes[0, i] if single else axes[i, j]
            if model not in shown[quantity]:
                ax.set_axis_off()
                continue
            first = not any(column == model for _, column in panels)
            panels[quantity, model] = ax
            if single:
                ax.set_title(
                    quantity.title if len(names) == 1 else wrapped(f"{names[model]}: {quantity.title.lower()}")
                )
            elif first:
                ax.set_title(wrapped(names[model]))
    return figure, panels


def row_of_panels(shown: Mapping[PlottedQuantity, object]) -> tuple[Figure | None, dict[PlottedQuantity, Axes]]:
    """One panel per quantity."""
    if not shown:
        return None, {}
    figure = Figure(figsize=(0.3 + 2.9 * len(shown), 2.85), layout="constrained")
    axes = figure.subplots(1, len(shown), squeeze=False)[0]
    return figure, dict(zip(shown, axes, strict=True))


def wrapped(name: str) -> str:
    """A name in lines that fit above a panel."""
    return drawn_name(fill(one_line(name), 26))


def drawn_name(name: str) -> str:
    """A name that matplotlib draws literally: a dollar sign starts mathematics, an underscore hides a label."""
    return f"{' ' if name.startswith('_') else ''}{name}".replace("$", r"\$")
