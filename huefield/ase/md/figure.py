"""A run at a glance: uncertainty of forces, temperature and energy against time."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from huefield.ase.md.config import MDConfig
from huefield.ase.md.folder import FIGURE
from huefield.ase.md.watch import Levels
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


def save_md_figure(log: Path, config: MDConfig, levels: Levels) -> Path:
    """Draw a log into the folder that it is in; the file."""
    drawn, out = draw_md(read_log(log), config, levels), log.with_name(FIGURE)
    with replacing(out) as temporary:
        drawn.savefig(temporary, dpi=160)
    return out


def read_log(path: Path) -> Log:
    """The columns of a log; NaN where nothing is written. A last line that was cut off is left out."""
    with path.open(newline="") as file:
        head, *rows = list(csv.reader(line for line in file if line.endswith("\n"))) or [[]]
    table = np.array([[float(cell or "nan") for cell in row] for row in rows]).reshape(len(rows), len(head))
    return dict(zip(head, table.T, strict=True))


def draw_md(log: Log, config: MDConfig, levels: Levels) -> Figure:
    """Draw the columns of a log, with the thresholds of the run."""
    wanted = (
        ("uncertainty", config.uncertainty_every),
        ("temperature", True),
        ("energy", True),
        ("volume", "volume_angstrom3" in log),
    )
    names = [name for name, there in wanted if there]
    drawers: dict[str, Any] = {
        "uncertainty": _uncertainty,
        "temperature": _temperature,
        "energy": _energy,
        "volume": _volume,
    }
    with plots.publication_style():
        figure = Figure(figsize=(6.5, 0.9 + 1.5 * len(names)), layout="constrained")
        ratios = [1.7 if name == "uncertainty" else 1.0 for name in names]
        axes = figure.subplots(len(names), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
        for name, ax in zip(names, axes, strict=True):
            drawers[name](ax, log, config, levels)
        axes[-1].set(xlabel="time (ps)", xlim=(0, max(log["time_fs"].max(initial=0) / 1000, 1e-6)))
    return figure


def _uncertainty(ax: Axes, log: Log, config: MDConfig, levels: Levels) -> None:
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
        if name == config.part and levels.lower is not None:
            beyond = values > levels.lower
            ax.plot(times[beyond], values[beyond], "o", ms=2.5, color=plots.OBSERVED, zorder=4, clip_on=False)
    if levels.lower is not None:
        ax.axhline(levels.lower, color=plots.OBSERVED, ls="--", lw=1.0, label=f"threshold, {levels.lower:.3g}")
    if levels.upper is not None and (levels.lower is not None or largest > 0.2 * levels.upper):
        ax.axhline(levels.upper, color=REFUSED, ls=":", lw=1.2, label=f"refused above {levels.upper:.3g}")
    ax.set_ylabel(f"{'mean' if measure == 'mean' else 'largest'} uncertainty\nof forces (eV/Å)")
    if largest > 0:
        ax.set_yscale("log")
    if ax.get_legend_handles_labels()[1]:
        ax.legend(ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _temperature(ax: Axes, log: Log, config: MDConfig, levels: Levels) -> None:
    ax.plot(_ps(log), log["temperature_kelvin"], color=plots.EPISTEMIC, lw=0.8)
    if config.temperature_kelvin is not None and config.ensemble != "nve":
        ax.axhline(config.temperature_kelvin, color=plots.TRUTH, ls="--", lw=0.8)
    ax.set_ylabel("temperature (K)")
    ax.set_ylim(bottom=0)


def _energy(ax: Axes, log: Log, config: MDConfig, levels: Levels) -> None:
    total = log["total_energy"]
    ax.plot(_ps(log), 1e3 * (total - total[:1]), color=plots.MEAN, lw=0.8)
    ax.axhline(0.0, color=plots.TRUTH, lw=0.6, zorder=0)
    name = "drift of the" if config.ensemble == "nve" else "change of"
    ax.set_ylabel(f"{name}\ntotal energy (meV)")


def _volume(ax: Axes, log: Log, config: MDConfig, levels: Levels) -> None:
    ax.plot(_ps(log), log["volume_angstrom3"], color="#009E73", lw=0.8)
    ax.set_ylabel("volume (Å³)")


def _ps(log: Log) -> Float[np.ndarray, " n"]:
    return log["time_fs"] / 1000
