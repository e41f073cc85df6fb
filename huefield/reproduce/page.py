"""HTML page of a table, with our rows beside the published ones."""

from collections.abc import Sequence
from pathlib import Path

from huefield.evaluation.report.html import Cell, HtmlTable, PageBlock, Paragraph, Picture, RowGroup, Section, page_of
from huefield.evaluation.report.tables import PAPER_METRICS, UNKNOWN, number
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
    sections = [
        Section("paper", "The table of the paper", _paper(table)),
        Section("figures", "Figures", [_figure(figure) for figure in figures if figure.suffix == ".png"]),
        *(Section(test, f"Against white noise: {title}", _against(table, test)) for test, title in table.tests.items()),
        Section("calibration", "Before and after calibration", _calibrations(table)),
    ]
    title = f"Coherent energy and force uncertainty: {table.title}"
    write_bytes(path, page_of(title, notes, sections).encode())


def _figure(path: Path) -> Picture:
    return Picture(path, *CAPTIONS[path.stem.split("-")[0]])


def _cell(found: SeedMean, digits: int | None, *, first: bool = False) -> Cell:
    margin = f"± {number(found.margin, digits)}" if found.margin == found.margin else ""
    return Cell(number(found.mean, digits), margin, first=first)


def _row_head(text: str) -> Cell:
    return Cell(text, kind="row head")


def _paper(table: Table) -> list[PageBlock]:
    """Our rows above the published ones, for energies and for forces."""
    bodies = []
    for quantity in QUANTITIES:
        ours: list[list[Cell]] = [
            [
                _row_head(table.titled(row)),
                *(
                    _cell(table.mean(row, table.first_test, quantity, name), metric.digits)
                    for name, metric in zip(METRICS, PAPER_METRICS, strict=True)
                ),
            ]
            for row in table.rows
        ]
        theirs: list[list[Cell]] = [
            [
                _row_head(f"{row.data}: {row.row}"),
                *(
                    Cell(number(getattr(row, quantity)[name], published_digits(metric)))
                    for name, metric in zip(METRICS, PAPER_METRICS, strict=True)
                ),
            ]
            for row in PUBLISHED
        ]
        bodies += [
            RowGroup(f"{TITLES[quantity]}: {table.title}", ours),
            RowGroup(f"{TITLES[quantity]}: the paper", theirs),
        ]
    heads = [Cell("model", kind="words"), *(Cell(f"{m.heading} {m.better}".strip()) for m in PAPER_METRICS)]
    explained = Paragraph(
        "Uncalibrated ensembles on the test set with the distribution of the training data. Means over seeds of the "
        "data split; small numbers are half widths of 95 % intervals over seeds."
    )
    return [explained, HtmlTable(heads, bodies)]


def _against(table: Table, test: str) -> list[PageBlock]:
    """Differences of NLL and ENCE to white noise, seed by seed."""
    rows: list[list[Cell]] = [
        [
            _row_head(table.titled(row)),
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
    heads = [Cell("model", kind="words"), *(Cell(text) for text in ("NLL", "ENCE") * 2), Cell("energy"), Cell("force")]
    groups = [("", 1), ("energies, minus white", 2), ("forces, minus white", 2), ("RMSE", 2), ("joint NLL", 3)]
    joint = ["value" if other is None else name for name, other in JOINT.items()]
    return [HtmlTable([*heads, *map(Cell, joint)], [RowGroup("", rows)], groups)]


def _calibrations(table: Table) -> list[PageBlock]:
    """NLL and ENCE of each row with each calibration method."""
    bodies = []
    for quantity in QUANTITIES:
        for metric in ("nll", "ence"):
            rows: list[list[Cell]] = []
            for row in table.rows:
                found = [table.mean(row, table.first_test, quantity, metric, method=m) for m in METHODS]
                rows.append(
                    [_row_head(table.titled(row)), *(_cell(e, 2) if e.mean == e.mean else Cell(UNKNOWN) for e in found)]
                )
            bodies.append(RowGroup(f"{TITLES[quantity]}: {metric.upper()}", rows))
    heads = [Cell("model", kind="words"), *(Cell(AFTER[m]) for m in METHODS)]
    return [HtmlTable(heads, bodies), *map(Paragraph, table.remarks())]
