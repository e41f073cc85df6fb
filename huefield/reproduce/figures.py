"""Figures of a table: the paper's reliability diagrams, and the NLL of all rows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from huefield.evaluation.curves import Reliability
from huefield.evaluation.report import curve_plots as draw
from huefield.evaluation.report.figures import saved_figure
from huefield.evaluation.report.tables import number
from huefield.reproduce.rows import ROWS
from huefield.reproduce.table import QUANTITIES, REFERENCE, ScoredQuantity, Table
from huefield.support.plots import MODELS

UNITS = {"energy": "eV", "forces": "eV/Å"}
TITLE_WIDTH = 24
"""Characters per line of a panel's title."""
IN_DIAGRAMS = ("vanilla", "white", "colored", "colored-atom")


def save_table_figures(table: Table, folder: Path) -> list[Path]:
    """Draw all figures for which there are results; returns the files, PNG before PDF."""
    figures: dict[str, Callable[[], Figure | None]] = {
        "reliability": lambda: reliability_figure(table),
        "calibrated": lambda: reliability_figure(table, method="isotonic"),
        "rows": lambda: rows_figure(table),
    }
    return [path for name, make in figures.items() for path in saved_figure(make, folder / f"{name}-{table.source}")]


def reliability_figure(table: Table, *, method: str = "none") -> Figure | None:
    """[J23] Figs. 2 and 3: RMSE against RMV in bins of equal counts; one column per model, one line per seed.

    Args:
        table: the results; the first test set is drawn.
        method: calibration method.
    """
    rows = [row for row in IN_DIAGRAMS if table.seeds(row)]
    if not rows:
        return None
    figure = Figure(figsize=(0.3 + 1.8 * len(rows), 3.9), layout="constrained")
    axes = figure.subplots(len(QUANTITIES), len(rows), squeeze=False)
    for quantity, line in zip(QUANTITIES, axes, strict=True):
        curves = {row: _curves(table, row, quantity, method) for row in rows}
        shown = [values for found in curves.values() for curve in found for values in (curve.rmv, curve.rmse)]
        for column, (row, ax) in enumerate(zip(rows, line, strict=True)):
            if quantity == QUANTITIES[0]:
                ax.set_title(ROWS[row].title)
            if not any(len(curve.rmv) for curve in curves[row]):
                ax.set_axis_off()
                ax.text(0.5, 0.5, "too few data for a diagram", ha="center", va="center", transform=ax.transAxes)
                continue
            draw.draw_diagonal(ax, *shown)
            for curve in curves[row]:
                draw.draw_reliability(ax, curve, model=column)
            _say_scores(ax, table, row, quantity, method)
            ax.set(xlabel=f"RMV ({UNITS[quantity]})")
        line[0].set_ylabel(f"{'energy' if quantity == 'energy' else 'force'} RMSE ({UNITS[quantity]})")
    return figure


def _curves(table: Table, row: str, quantity: ScoredQuantity, method: str) -> list[Reliability]:
    found = (table.results[row][seed]["tests"][table.first_test].get(method) for seed in table.seeds(row))
    curves = [scores[quantity]["reliability"] for scores in found if scores and scores[quantity]]
    return [
        Reliability(np.zeros(len(c["rmv"]), np.int64), np.array(c["rmv"], float), np.array(c["rmse"], float))
        for c in curves
    ]


def _say_scores(ax: Axes, table: Table, row: str, quantity: ScoredQuantity, method: str) -> None:
    ence, rzv = (table.mean(row, table.first_test, quantity, m, method=method).mean for m in ("ence", "rzv"))
    text = f"ENCE {number(ence, 2)}\nRZV {number(rzv, 2)}"
    ax.text(0.96, 0.05, text, ha="right", va="bottom", fontsize=6.5, transform=ax.transAxes)


def rows_figure(table: Table) -> Figure | None:
    """Difference of the NLL to white noise for all rows and test sets: one point per seed, a bar for the mean.

    Differences are taken seed by seed, as seeds differ more than rows do; without a white row the NLL itself is drawn.
    A value far outside of the others, as vanilla's often is, becomes a number at the edge.
    """
    rows = [row for row in table.rows if table.seeds(row)][::-1]
    panels = [(q, test) for q in QUANTITIES for test in table.tests if _known(table, rows, test, q)]
    if not rows or not panels:
        return None
    columns = max(sum(q == quantity for quantity, _ in panels) for q in QUANTITIES)
    figure = Figure(figsize=(2.6 + 1.75 * columns, max(2.8, 1.1 + 2 * 0.19 * len(rows))), layout="constrained")
    axes = figure.subplots(len(QUANTITIES), columns, squeeze=False, sharey=True)
    for quantity, line in zip(QUANTITIES, axes, strict=True):
        tests = [test for q, test in panels if q == quantity]
        for ax in line[len(tests) :]:
            ax.set_axis_off()
        for test, ax in zip(tests, line, strict=False):
            _draw_rows(ax, table, rows, test, quantity)
            what = f"{'energy' if quantity == 'energy' else 'force'} NLL"
            ax.set_xlabel(f"{what} − that of white" if table.seeds(REFERENCE) else what)
            if quantity == QUANTITIES[0]:
                ax.set_title(fill(table.tests[test].replace(", energies only", ""), TITLE_WIDTH))
        line[0].set_yticks(range(len(rows)), [ROWS[row].title for row in rows])
    return figure


def _known(table: Table, rows: Sequence[str], test: str, quantity: ScoredQuantity) -> bool:
    return any(np.isfinite(table.mean(row, test, quantity, "nll").mean) for row in rows)


def _draw_rows(ax: Axes, table: Table, rows: Sequence[str], test: str, quantity: ScoredQuantity) -> None:
    less = REFERENCE if table.seeds(REFERENCE) else None
    values = {row: table.values(row, test, quantity, "nll", less=less) for row in rows}
    noisy = np.concatenate([found for row, found in values.items() if row != "vanilla"] or list(values.values()))
    if not noisy.size:
        return
    low, high = float(np.nanmin(noisy)), float(np.nanmax(noisy))
    margin = 0.12 * max(high - low, 0.1)
    limits = (low - margin, high + 2 * margin)
    for place, (row, found) in enumerate(values.items()):
        if not found:
            continue
        mean, color = float(np.mean(found)), MODELS[1 if ROWS[row].is_coherent else 0 if row.startswith("white") else 6]
        if mean > limits[1] or mean < limits[0]:
            edge, side = (limits[1], "right") if mean > limits[1] else (limits[0], "left")
            ax.text(edge, place, f"{number(mean, 1)} ▸" if side == "right" else f"◂ {number(mean, 1)}", ha=side,
                    va="center", fontsize=6.5, color=color)  # fmt: skip
            continue
        ax.plot(found, [place] * len(found), "o", ms=2.5, color=color, alpha=0.5, mew=0)
        ax.plot([mean], [place], "|", ms=8, mew=1.6, color=color)
    if table.seeds(REFERENCE):
        ax.axvline(0.0, color="0.6", lw=0.7, zorder=0)
    ax.set(xlim=limits, ylim=(-0.6, len(rows) - 0.4))
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.grid(axis="y", lw=0.3, alpha=0.5)
