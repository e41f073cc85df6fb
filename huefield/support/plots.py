"""Plots on axes of the caller, in colours for all kinds of colour vision (Okabe and Ito)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

MEAN = "#000000"
ALEATORIC = "#E69F00"
EPISTEMIC = "#0072B2"
TRUTH = "#7A7A7A"
OBSERVED = "#D55E00"
MODELS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours of the first, second, ... model."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Markers of the first, second, ... model."""

Line = Float[np.ndarray, " n"]


@contextmanager
def publication_style() -> Iterator[None]:
    """Fonts and line widths for a figure across two columns of a journal."""
    style: dict[Any, Any] = {
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.labelsize": 8,
        "legend.fontsize": 7,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "axes.linewidth": 0.6,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.direction": "in",
        "ytick.direction": "in",
        "lines.linewidth": 1.2,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "pdf.fonttype": 42,
    }
    with mpl.rc_context(style):
        yield


def draw_bands(ax: Axes, x: Line, mean: Line, aleatoric: Line, epistemic: Line, *, widths: float = 2.0) -> None:
    """Mean with bands of the aleatoric and the total uncertainty; their difference is epistemic.

    ``aleatoric`` and ``epistemic`` are standard deviations; bands extend ``widths`` of them to each side. A band
    without width is not drawn.
    """
    total = np.hypot(aleatoric, epistemic)
    bands = (
        (total, epistemic, EPISTEMIC, 0.28, "with epistemic" if np.any(aleatoric > 0) else "epistemic"),
        (aleatoric, aleatoric, ALEATORIC, 0.75, "aleatoric"),
    )
    for sigma, part, color, alpha, name in bands:
        if np.any(part > 0):
            low, high = mean - widths * sigma, mean + widths * sigma
            ax.fill_between(x, low, high, color=color, alpha=alpha, lw=0, label=f"{name}, {widths:g}σ")
    ax.plot(x, mean, color=MEAN, label="mean")


def draw_uncertainties(ax: Axes, x: Line, aleatoric: Line, epistemic: Line) -> None:
    """Both standard deviations on a logarithmic scale; one that is zero everywhere is not drawn."""
    for values, color, name in ((aleatoric, ALEATORIC, "aleatoric"), (epistemic, EPISTEMIC, "epistemic")):
        if np.any(values > 0):
            ax.plot(x, np.where(values > 0, values, np.nan), color=color, label=name)
    if ax.lines:
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(NullFormatter())
