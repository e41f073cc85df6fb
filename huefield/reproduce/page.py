"""HTML page of a table, with our rows beside the published ones."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from huefield.evaluation.report.markup import Cell, Part, Row, Rows, image, row_head
from huefield.evaluation.report.markup import table as html_table
from huefield.evaluation.report.page import page_of
from huefield.evaluation.report.tables import PAPER, UNKNOWN, number
from huefield.reproduce.published import METRICS, PUBLISHED
from huefield.reproduce.table import (
    AFTER,
    JOINT,
    METHODS,
    QUANTITIES,
    REFERENCE,
    SeedMean,
    Table,
    published_digits,
)
from huefield.support.files import write_bytes

TITLES = {"energy": "Energies (eV)", "forces": "Force components (eV/Å)"}
CAPTIONS = {
    "reliability": (
        "Reliability",
        "Root mean squared error (RMSE) against root mean variance (RMV) in bins of equal counts, one line per seed of "
        "the data split. On the dashed line the uncertainty equals the error; above it the model is overconfident.",
    ),
    "calibrated": ("The same after isotonic regression on validation data", ""),
    "rows": (
        "Negative log likelihood of all rows",
        "Difference to white noise, seed by seed, if white noise was trained: left of the grey line is better. One "
        "point per seed and a bar for their mean. A number at the edge is a value outside of the figure.",
    ),
}


def write_page(path: Path, table: Table, figures: Sequence[Path], notes: Sequence[str]) -> None:
    """Write the page atomically.

    Args:
        path: the HTML file.
        table: the results.
        figures: files that :func:`save_table_figures` wrote.
        notes: sentences below the title.
    """
    parts = [
        Part("paper", "The table of the paper", _paper(table)),
        Part("figures", "Figures", "\n".join(_figure(figure) for figure in figures if figure.suffix == ".png")),
        *(Part(test, f"Against white noise: {title}", _against(table, test)) for test, title in table.tests.items()),
        Part("calibration", "Before and after calibration", _calibrations(table)),
    ]
    title = f"Coherent energy and force uncertainty: {table.title}"
    write_bytes(path, page_of(title, notes, [part for part in parts if part.body]).encode())


def _figure(path: Path) -> str:
    return image(path, *CAPTIONS[path.stem.split("-")[0]])


def _cell(found: SeedMean, digits: int | None, *, first: bool = False) -> Cell:
    margin = f"± {number(found.margin, digits)}" if found.margin == found.margin else ""
    return Cell(number(found.mean, digits), margin, first=first)


def _paper(table: Table) -> str:
    """Our rows above the published ones, for energies and for forces."""
    bodies = []
    for quantity in QUANTITIES:
        ours: list[Row] = [
            [
                row_head(table.titled(row)),
                *(
                    _cell(table.mean(row, table.first_test, quantity, name), metric.digits)
                    for name, metric in zip(METRICS, PAPER, strict=True)
                ),
            ]
            for row in table.rows
        ]
        theirs: list[Row] = [
            [
                row_head(f"{row.data}: {row.row}"),
                *(
                    Cell(number(getattr(row, quantity)[name], published_digits(metric)))
                    for name, metric in zip(METRICS, PAPER, strict=True)
                ),
            ]
            for row in PUBLISHED
        ]
        bodies += [Rows(f"{TITLES[quantity]}: {table.title}", ours), Rows(f"{TITLES[quantity]}: the paper", theirs)]
    heads = [Cell("model", words=True), *(Cell(f"{m.heading} {m.better}".strip()) for m in PAPER)]
    return (
        "<p>Uncalibrated ensembles on the test set with the distribution of the training data. Means over seeds of the "
        "data split; small numbers are half widths of 95 % intervals over seeds.</p>" + html_table(heads, bodies)
    )


def _against(table: Table, test: str) -> str:
    """Differences of NLL and ENCE to white noise, seed by seed."""
    rows: list[Row] = [
        [
            row_head(table.titled(row)),
            *(
                _cell(table.mean(row, test, quantity, metric, less=REFERENCE), 3, first=metric == "nll")
                for quantity in QUANTITIES
                for metric in ("nll", "ence")
            ),
            *(
                _cell(table.mean(row, test, quantity, "rmse"), None, first=quantity == "energy")
                for quantity in QUANTITIES
            ),
            *(
                _cell(table.mean(row, test, "joint", "nll", less=other), 2, first=other is None)
                for other in JOINT.values()
            ),
        ]
        for row in table.rows
        if table.seeds(row)
    ]
    heads = [Cell("model", words=True), *(Cell(text) for text in ("NLL", "ENCE") * 2), Cell("energy"), Cell("force")]
    groups = [("", 1), ("energies, minus white", 2), ("forces, minus white", 2), ("RMSE", 2), ("joint NLL", 3)]
    joint = ["value" if other is None else name for name, other in JOINT.items()]
    return html_table([*heads, *map(Cell, joint)], [Rows("", rows)], groups)


def _calibrations(table: Table) -> str:
    """NLL and ENCE of each row with each calibration method."""
    bodies = []
    for quantity in QUANTITIES:
        for metric in ("nll", "ence"):
            rows: list[Row] = []
            for row in table.rows:
                found = [table.mean(row, table.first_test, quantity, metric, method=m) for m in METHODS]
                rows.append(
                    [row_head(table.titled(row)), *(_cell(e, 2) if e.mean == e.mean else Cell(UNKNOWN) for e in found)]
                )
            bodies.append(Rows(f"{TITLES[quantity]}: {metric.upper()}", rows))
    remarks = "".join(f"<p>{escape(remark)}</p>" for remark in table.remarks())
    return html_table([Cell("model", words=True), *(Cell(AFTER[m]) for m in METHODS)], bodies) + remarks
