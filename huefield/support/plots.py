"""Drawings on axes that the caller owns. Colours can be told apart with any colour vision (Okabe and Ito)."""

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
"""Colours of models, one after the other."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Of models too: either of the two tells them apart."""

Values = Float[np.ndarray, " n"]


@contextmanager
def publication_style() -> Iterator[None]:
    """Type and lines for a figure across two columns of a journal."""
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


def draw_bands(ax: Axes, x: Values, mean: Values, aleatoric: Values, epistemic: Values, *, widths: float = 2.0) -> None:
    """A mean with its noise band inside the band of the total uncertainty; what is between them is epistemic.

    ``aleatoric`` and ``epistemic`` are standard deviations; bands reach ``widths`` of them to each side. A band of no
    width anywhere is left out.
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


def draw_uncertainties(ax: Axes, x: Values, aleatoric: Values, epistemic: Values) -> None:
    """Both standard deviations on a logarithmic scale. One that is zero everywhere is left out."""
    for values, color, name in ((aleatoric, ALEATORIC, "aleatoric"), (epistemic, EPISTEMIC, "epistemic")):
        if np.any(values > 0):
            ax.plot(x, np.where(values > 0, values, np.nan), color=color, label=name)
    if ax.lines:
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(NullFormatter())
