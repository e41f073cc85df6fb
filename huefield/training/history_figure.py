"""Figure of the history of a run."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from huefield.support import plots
from huefield.support.errors import HuefieldError
from huefield.support.files import replacing
from huefield.training.history import read_history

Events = list[dict[str, Any]]


class HistoryCurve(NamedTuple):
    """A value of an event, and its colour, label and unit."""

    name: str
    color: str
    label: str = ""
    unit: float = 1.0


class Panel(NamedTuple):
    """Curves that share axes."""

    event: str
    label: str
    scale: str
    curves: tuple[HistoryCurve, ...]


def _both(metric: str, unit: float = 1.0) -> tuple[HistoryCurve, ...]:
    return (
        HistoryCurve(f"energy_{metric}", plots.EPISTEMIC, "energy", unit),
        HistoryCurve(f"force_{metric}", plots.OBSERVED, "forces", unit),
    )


RIGHT_AT_ONE = _both("rzv")
PANELS = (
    Panel("steps", "loss", "symlog", (HistoryCurve("loss", plots.MEAN),)),
    Panel("steps", "norm of the gradient", "log", (HistoryCurve("gradient_norm", plots.MEAN),)),
    Panel("steps", "γ (Å⁻²)", "log", (HistoryCurve("gamma", plots.ALEATORIC),)),
    Panel("validation", "validation RMSE (meV, meV/Å)", "log", _both("rmse", 1e3)),
    Panel("validation", "validation NLL", "linear", _both("nll")),
    Panel("validation", "validation RZV", "log", RIGHT_AT_ONE),
)
KINDS = {"squared_error": "squared error", "beta_nll": "β-NLL", "nll": "NLL"}
UNTRAINED = {"gamma": "squared_error"}
"""Values that do not change in a kind of stage."""
LETTER = 0.02
"""Width of a letter of a stage's name, relative to the axes."""
LEVEL = 0.055
"""Distance of two lines of stages' names, relative to the axes."""


def save_history_figure(run: Path, path: Path | None = None) -> Path:
    """Draw the history of a run into a file, by default ``history.png`` in its folder; returns the file."""
    out = path or run / "history.png"
    drawn = draw_history(read_history(run / "history.jsonl"))
    with replacing(out) as temporary:
        drawn.savefig(temporary, dpi=160)
    return out


def draw_history(events: Events) -> Figure:
    """Losses, gradient norms, γ and validation scores against the steps of all stages, with stages marked.

    A line is the mean of the members, the band reaches from the lowest to the highest. Steps that were taken back are
    left out.
    """
    kept = without_taken_back(events)
    if not any(event["event"] == "steps" for event in kept):
        raise HuefieldError("the run has no step to draw yet")
    last = max(event["total_steps"] for event in kept)
    with plots.publication_style():
        figure = Figure(figsize=(9.0, 4.8), layout="constrained")
        for number, (ax, panel) in enumerate(zip(figure.subplots(2, 3).flat, PANELS, strict=True)):
            ax.set(ylabel=panel.label, xlabel="step" if number > 2 else None, xlim=(0, max(last, 1)))
            _draw_panel(ax, panel, [event for event in kept if event["event"] == panel.event])
            _mark_stages(ax, kept, last)
    return figure


def without_taken_back(events: Events) -> Events:
    """Events without those that a rollback undid."""
    kept: Events = []
    for event in events:
        if event["event"] == "rollback":
            to = (event["stage"], event["to_step"])
            kept = [earlier for earlier in kept if (earlier["stage"], earlier["step"]) <= to]
        else:
            kept.append(event)
    return kept


def _draw_panel(ax: Axes, panel: Panel, events: Events) -> None:
    for curve in panel.curves:
        found = [e for e in events if curve.name in e and UNTRAINED.get(curve.name) != e["kind"]]
        found = [e for e in found if np.isfinite(np.asarray(e[curve.name], float)).any()]
        for number, stage in enumerate(sorted({e["stage"] for e in found})):
            inside = [e for e in found if e["stage"] == stage]
            _draw_curve(ax, curve, inside, curve.label if number == 0 else "")
    if not ax.lines:
        ax.text(0.5, 0.5, "no noise is trained" if events else "nothing yet", ha="center", transform=ax.transAxes)
        ax.set_yticks([])
        return
    _set_scale(ax, panel.scale)
    if panel.curves == RIGHT_AT_ONE:
        ax.axhline(1.0, color=plots.TRUTH, lw=0.6, zorder=0)
    if any(curve.label for curve in panel.curves):
        ax.legend()


def _draw_curve(ax: Axes, curve: HistoryCurve, events: Events, label: str) -> None:
    """Curves of one stage; members are skipped where they have no value."""
    steps = np.array([e["total_steps"] for e in events])
    values = curve.unit * np.array([e[curve.name] for e in events], float)
    values = np.where(np.isfinite(values), values, np.nan)
    ax.fill_between(steps, np.nanmin(values, 1), np.nanmax(values, 1), color=curve.color, alpha=0.25, lw=0)
    marker = "." if len(steps) == 1 else ""
    ax.plot(steps, np.nanmean(values, 1), color=curve.color, label=label or None, marker=marker)


def _set_scale(ax: Axes, scale: str) -> None:
    if scale == "symlog":
        ax.set_yscale("symlog", linthresh=1.0)
    elif scale == "log":
        ax.set_yscale("log")
        _label_within_decades(ax)


def _label_within_decades(ax: Axes) -> None:
    """Label more than powers of ten if there are too few of them to read values."""
    low, high = ax.get_ylim()
    ax.yaxis.set_minor_formatter(NullFormatter())
    if high < 30 * low:
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 3 * low else (1, 1.2, 1.5, 2, 3, 4, 5, 6, 8)))
        ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))


def _mark_stages(ax: Axes, events: Events, last: int) -> None:
    """A line at the start of each stage with its name above, raised where names would overlap."""
    ends: list[float] = []
    for name, begin in _stages(events):
        place = begin / max(last, 1)
        level = next((i for i, end in enumerate(ends) if end <= place), len(ends))
        ends[level : level + 1] = [place + LETTER * (len(name) + 1)]
        if begin:
            ax.axvline(begin, color=plots.TRUTH, lw=0.6, ls=":")
        ax.text(place, 1.02 + LEVEL * level, name, fontsize=6, color=plots.TRUTH, va="bottom", transform=ax.transAxes)


def _stages(events: Events) -> list[tuple[str, int]]:
    """Names of the stages, and their first steps."""
    found: dict[int, tuple[str, int]] = {}
    for event in events:
        if event["event"] == "steps" and event["stage"] not in found:
            found[event["stage"]] = (KINDS.get(event["kind"], str(event["kind"])), event["total_steps"] - event["step"])
    return list(found.values())
