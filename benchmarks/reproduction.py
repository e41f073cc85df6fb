"""Puts results of ``huefield reproduce table`` into the repository: JSON, pictures, and tables of docs/reproduction.md.

python benchmarks/reproduction.py FOLDER     takes over what is in the folder
python benchmarks/reproduction.py            draws and writes the tables again from benchmarks/results/reproduction

Tables stand in the page between lines ``<!-- NAME -->`` and ``<!-- end -->``, which are left in place.
"""

import re
import sys
from pathlib import Path

from study import HERE, IMAGES

from huefield.apps.reproduce.figures import reliability_figure, rows_figure
from huefield.apps.reproduce.rows import ROWS
from huefield.apps.reproduce.sources import source_named
from huefield.apps.reproduce.table import AFTER, METHODS, QUANTITIES, Table, comparison_table, paper_table
from huefield.evaluation.figures import DPI
from huefield.evaluation.plots import publication_style
from huefield.evaluation.tables import markdown_rows

RESULTS = HERE / "results" / "reproduction"
PAGE = HERE.parent / "docs" / "reproduction.md"
SETS = ("bundled", "acac", "ani1x")


def calibration_table(table: Table) -> str:
    """NLL and ENCE of the rows of most interest with each method."""
    lines = []
    for row in ("vanilla", "white", "colored", "colored-atom"):
        for quantity in QUANTITIES:
            for metric in ("nll", "ence"):
                found = [table.estimate(row, table.first_test, quantity, metric, method=m) for m in METHODS]
                lines.append([f"{ROWS[row].title}, {quantity} {metric.upper()}", *(each.text(2) for each in found)])
    return markdown_rows([AFTER[method] for method in METHODS], lines)


def tables(table: Table) -> dict[str, str]:
    """By their names in the page."""
    made = {f"{table.source} paper": paper_table(table), f"{table.source} calibration": calibration_table(table)}
    return made | {f"{table.source} {test}": comparison_table(table, test) for test in table.tests}


def draw(table: Table) -> None:
    """The pictures of the page."""
    with publication_style():
        for kind, figure in (("reliability", reliability_figure(table)), ("rows", rows_figure(table))):
            if figure is not None:
                figure.savefig(IMAGES / f"reproduction-{kind}-{table.source}.png", dpi=DPI)


def filled(text: str, place: str, content: str) -> str:
    """The page with a table in its place."""
    parts = re.split(rf"(?<=<!-- {re.escape(place)} -->\n)(?:(?!<!--).)*(?=<!-- end -->)", text, flags=re.DOTALL)
    if len(parts) != 2:
        raise ValueError(f"{PAGE} has {len(parts) - 1} places for the table {place!r}, not one")
    return content.join(parts)


def main() -> None:
    """Take over, draw, write."""
    text = PAGE.read_text()
    for name in SETS:
        path = RESULTS / f"{name}.json"
        if len(sys.argv) > 1 and (Path(sys.argv[1]) / name).exists():
            Table.collected(source_named(name), Path(sys.argv[1])).save(path)
        if not path.exists():
            continue
        table = Table.load(path)
        draw(table)
        for place, content in tables(table).items():
            text = filled(text, place, content)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
