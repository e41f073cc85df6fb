"""Figure of a run: uncertainty of forces, temperature, energy and volume against time."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from huefield.ase.md.config import MDConfig
from huefield.ase.md.folder import FIGURE
from huefield.ase.md.watch import Limits
from huefield.support import plots
from huefield.support.files import replacing

Log = dict[str, Float[np.ndarray, " n"]]
PARTS = (
    ("total", "", plots.MEAN),
    ("aleatoric", "_aleatoric", plots.ALEATORIC),
    ("epistemic", "_epistemic", plots.EPISTEMIC),
)
"""Names, suffixes of columns, and colours."""
REFUSED = "#CC79A7"
Panel = Callable[[Axes, Log, MDConfig, Limits], None]


def save_md_figure(log: Path, config: MDConfig, limits: Limits) -> Path:
    """Draw a log into its folder, and return the file."""
    drawn, out = draw_md(read_log(log), config, limits), log.with_name(FIGURE)
    with replacing(out) as temporary:
        drawn.savefig(temporary, dpi=160)
    return out


def read_log(path: Path) -> Log:
    """Read the columns of a log; empty cells are NaN. An incomplete last line is left out."""
    with path.open(newline="") as file:
        head, *rows = list(csv.reader(line for line in file if line.endswith("\n"))) or [[]]
    table = np.array([[float(cell or "nan") for cell in row] for row in rows]).reshape(len(rows), len(head))
    return dict(zip(head, table.T, strict=True))


def draw_md(log: Log, config: MDConfig, limits: Limits) -> Figure:
    """Draw the columns of a log, with the limits of the run."""
    panels: list[Panel] = [_temperature, _energy]
    if config.uncertainty_every:
        panels.insert(0, _uncertainty)
    if "volume_angstrom3" in log:
        panels.append(_volume)
    with plots.publication_style():
        figure = Figure(figsize=(6.5, 0.9 + 1.5 * len(panels)), layout="constrained")
        ratios = [1.7 if panel is _uncertainty else 1.0 for panel in panels]
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
        for panel, ax in zip(panels, axes, strict=True):
            panel(ax, log, config, limits)
        axes[-1].set(xlabel="time (ps)", xlim=(0, max(log["time_fs"].max(initial=0) / 1000, 1e-6)))
        figure.align_ylabels(axes.tolist())
    return figure


def _uncertainty(ax: Axes, log: Log, config: MDConfig, limits: Limits) -> None:
    measure = "mean" if config.measure == "mean" else "max"
    known = np.isfinite(log[f"forces_uncertainty_{measure}"])
    times, largest = _ps(log)[known], 0.0
    for name, suffix, color in PARTS:
        values = log[f"forces_uncertainty{suffix}_{measure}"][known]
        if not (values > 0).any():
            continue
        largest = max(largest, values.max())
        ax.plot(
            times, np.where(values > 0, values, np.nan), color=color, lw=2.0 if name == "total" else 0.8, label=name
        )
        above = values > np.inf if limits.threshold is None else values > limits.threshold
        if name == config.part and above.any():  # an empty line without clipping would spoil the layout
            ax.plot(times[above], values[above], "o", ms=2.5, color=plots.OBSERVED, zorder=4, clip_on=False)
    if limits.threshold is not None:
        ax.axhline(limits.threshold, color=plots.OBSERVED, ls="--", lw=1.0, label=f"threshold {limits.threshold:.3g}")
    refuse = limits.refuse_above
    if refuse is not None and (limits.threshold is not None or largest > 0.2 * refuse):
        ax.axhline(refuse, color=REFUSED, ls=":", lw=1.2, label=f"exploded above {refuse:.3g}")
    ax.set_ylabel(f"{'mean' if measure == 'mean' else 'largest'} uncertainty\nof forces (eV/Å)")
    if largest > 0:
        ax.set_yscale("log")
    if ax.get_legend_handles_labels()[1]:
        ax.legend(ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _temperature(ax: Axes, log: Log, config: MDConfig, limits: Limits) -> None:
    ax.plot(_ps(log), log["temperature_kelvin"], color=plots.EPISTEMIC, lw=0.8)
    if config.temperature_kelvin is not None and config.engine.thermostat:
        ax.axhline(config.temperature_kelvin, color=plots.TRUTH, ls="--", lw=0.8)
    ax.set_ylabel("temperature (K)")
    ax.set_ylim(bottom=0)


def _energy(ax: Axes, log: Log, config: MDConfig, limits: Limits) -> None:
    total = log["total_energy"]
    ax.plot(_ps(log), 1e3 * (total - total[:1]), color=plots.MEAN, lw=0.8)
    ax.axhline(0.0, color=plots.TRUTH, lw=0.6, zorder=0)
    ax.set_ylabel(f"{'change' if config.engine.thermostat else 'drift'} of the\ntotal energy (meV)")


def _volume(ax: Axes, log: Log, config: MDConfig, limits: Limits) -> None:
    ax.plot(_ps(log), log["volume_angstrom3"], color="#009E73", lw=0.8)
    ax.set_ylabel("volume (Å³)")


def _ps(log: Log) -> Float[np.ndarray, " n"]:
    return log["time_fs"] / 1000
