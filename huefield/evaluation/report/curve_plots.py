"""Curves and parity plots, drawn on axes of the caller."""

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from huefield.core.tails import standard_density
from huefield.evaluation.curves import CoverageCurve, Reliability, RetentionCurve, ZHistogram
from huefield.evaluation.entries import Vector
from huefield.support.plots import ALEATORIC, EPISTEMIC, MARKERS, MEAN, MODELS, TRUTH

FEW = 3000
"""Largest number of points that are drawn one by one."""
WIDE_Z = 4.0
"""Smallest range of z-score histograms."""


def draw_reliability(
    ax: Axes, curve: Reliability, *, model: int = 0, label: str | None = None, faded: bool = False
) -> None:
    """RMSE against RMV of each bin, both logarithmic; correct variances lie on the diagonal."""
    color, marker = style_of(model, faded)
    drawn = (curve.rmv > 0) & (curve.rmse > 0)
    if not drawn.any():  # an unclipped line without points collapses the constrained layout
        return
    ax.plot(curve.rmv[drawn], curve.rmse[drawn], f"{marker}-", color=color, ms=3.5, lw=0.8, label=label, clip_on=False,
            mfc="white" if faded else color)  # fmt: skip


def draw_diagonal(ax: Axes, *values: Float[np.ndarray, " _"], logarithmic: bool = True) -> None:
    """Square axes around all values, with the diagonal."""
    found = np.concatenate(values)
    found = found[np.isfinite(found) & ((found > 0) | (not logarithmic))]
    low, high = (float(found.min()), float(found.max())) if len(found) else (0.1, 1.0)
    limits = _log_limits(low, high) if logarithmic else _linear_limits(low, high)
    if logarithmic:
        ax.set(xscale="log", yscale="log")
    ax.set(xlim=limits, ylim=limits, aspect="equal")
    ax.plot(limits, limits, color=TRUTH, lw=0.7, ls="--", zorder=0)
    for axis in (ax.xaxis, ax.yaxis):
        if logarithmic:
            label_decades(axis.axes, axis.axis_name, limits)
        else:
            axis.set_major_locator(MaxNLocator(5))


def label_decades(ax: Axes, name: str, limits: tuple[float, float]) -> None:
    """Plain numbers as tick labels at powers of ten, with more ticks in between if the range is short."""
    axis = ax.xaxis if name == "x" else ax.yaxis
    ratio = limits[1] / limits[0]
    subs = (1,) if ratio > 300 else (1, 3) if ratio > 30 else (1, 2, 5) if ratio > 4 else (1, 1.5, 2, 3, 4, 5, 7)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if 1e-3 <= value < 1e4 else f"{value:.0e}"))
    axis.set_minor_formatter(NullFormatter())


def draw_z_scores(ax: Axes, found: ZHistogram, *, model: int = 0, dof: float | None = None) -> None:
    """Histogram with the predicted density on a logarithmic scale; texts give ν and the fraction outside.

    The density is the standard normal one or, with ``dof``, that of a Student t with unit variance; the normal one is
    then dotted.
    """
    color, _ = style_of(model)
    ax.stairs(found.density, found.edges, fill=True, color=color, alpha=0.45, lw=0)
    ax.stairs(np.where(found.density > 0, found.density, np.nan), found.edges, color=color, lw=0.8)
    wide = max(WIDE_Z, float(np.abs(found.edges).max()))
    z = np.linspace(-wide, wide, 400)
    ax.plot(z, standard_density(z, dof), color=MEAN, lw=0.9, ls="--")
    seen = found.density[found.density > 0]
    ax.set(yscale="log", xlim=(-wide, wide), ylim=(min(1e-3, seen.min() / 2) if len(seen) else 1e-3, None))
    ax.set_ylim(top=max(1.0, 1.6 * seen.max() if len(seen) else 1.0))
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if dof is not None:
        ax.plot(z, standard_density(z), color=TRUTH, lw=0.8, ls=":")
        ax.text(0.05, 0.97, nu_text(dof), ha="left", va="top", fontsize=6.5, transform=ax.transAxes)
    if (outside := found.below + found.above) > 0:
        ax.text(0.98, 0.97, f"|z| > {wide:g}: {percent(outside)}", ha="right", va="top", fontsize=6.5,
                transform=ax.transAxes)  # fmt: skip


def draw_coverage(
    ax: Axes, curve: CoverageCurve, *, model: int = 0, label: str | None = None, faded: bool = False
) -> None:
    """Observed against nominal coverage: variances are too large above the diagonal, too small below it."""
    color, marker = style_of(model, faded)
    every = max(1, len(curve.nominal) // 8)
    offset = (model * every // len(MARKERS)) % every
    ax.plot(curve.nominal, curve.observed, color=color, marker=marker, ms=3, markevery=(offset, every), label=label,
            mfc="white" if faded else color)  # fmt: skip


def frame_coverage(ax: Axes) -> None:
    """Square axes in percent, with the diagonal."""
    ax.plot([0, 1], [0, 1], color=TRUTH, lw=0.7, ls="--", zorder=0)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))


def draw_retention(ax: Axes, curve: RetentionCurve, *, model: int = 0, label: str | None = None) -> None:
    """Mean absolute error of the kept entries; dotted, the lower bound with known errors."""
    color, marker = style_of(model)
    ax.plot(
        curve.kept, curve.error, color=color, marker=marker, ms=3, markevery=max(1, len(curve.kept) // 8), label=label
    )
    ax.plot(curve.kept, curve.oracle, color=color, lw=0.8, ls=":")


def draw_parity(ax: Axes, observed: Vector, predicted: Vector, *, model: int = 0) -> None:
    """Predicted against observed values: points, or hexagons with counts if there are many."""
    color, _ = style_of(model)
    draw_diagonal(ax, observed, predicted, logarithmic=False)
    if len(observed) <= FEW:
        ax.plot(observed, predicted, ".", color=color, ms=2.5, mew=0, alpha=0.6, rasterized=True)
        return
    extent = (*ax.get_xlim(), *ax.get_ylim())
    ax.hexbin(observed, predicted, gridsize=70, bins="log", mincnt=1, extent=extent, cmap="cividis", lw=0.1)


def draw_parts(ax: Axes, aleatoric_var: Vector, epistemic_var: Vector, *, bins: int = 20) -> None:
    """Aleatoric and epistemic uncertainty in bins of equal counts, sorted by the total uncertainty.

    A part that is zero everywhere is not drawn.
    """
    order = np.argsort(aleatoric_var + epistemic_var, kind="stable")
    groups = np.array_split(order, min(bins, len(order)))
    place = (np.arange(len(groups)) + 0.5) / len(groups)
    parts = {"aleatoric": (aleatoric_var, ALEATORIC), "epistemic": (epistemic_var, EPISTEMIC)}
    rows = {name: np.sqrt([values[group].mean() for group in groups]) for name, (values, _) in parts.items()}
    ax.plot(place, np.hypot(*rows.values()), color=MEAN, lw=0.9, label="total")
    for (name, row), marker in zip(rows.items(), MARKERS, strict=False):
        if np.any(row > 0):
            ax.plot(place, np.where(row > 0, row, np.nan), marker=marker, ms=3, color=parts[name][1], label=name)
    ax.set(xlim=(0, 1))
    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    if any(np.any(row > 0) for row in rows.values()):
        ax.set_yscale("log")
        label_decades(ax, "y", ax.get_ylim())


def style_of(model: int, faded: bool = False) -> tuple[str, str]:
    """Colour and marker of a model; grey if it is drawn for comparison only."""
    return TRUTH if faded else MODELS[model % len(MODELS)], MARKERS[model % len(MARKERS)]


def nu_text(dof: float) -> str:
    """Degrees of freedom with three significant digits."""
    return f"ν = {dof:.3g}"


def percent(fraction: float) -> str:
    """A fraction in percent with two significant digits."""
    return f"{100 * fraction:.2g} %"


def _log_limits(low: float, high: float) -> tuple[float, float]:
    room = max((high / low) ** 0.07, 1.08)
    return low / room, high * room


def _linear_limits(low: float, high: float) -> tuple[float, float]:
    room = 0.05 * (high - low) or max(abs(high), 1.0) * 0.05
    return low - room, high + room
