"""Write the tables of docs/reproduction/local-noise.md from the kept results of ``huefield reproduce table``.

python benchmarks/local_noise.py
"""

from collections.abc import Iterator
from math import isfinite

from pages import fill
from reproduction import RIVALS, kept_tables

from huefield.evaluation.report.tables import markdown_rows
from huefield.reproduce.rows import ROWS
from huefield.reproduce.table import QUANTITIES, ScoredQuantity, Table

ROW = "local"
DIGITS: dict[ScoredQuantity, int] = {"energy": 3, "forces": 3, "joint": 1}
COVERAGES = ("0.68", "0.95", "0.99")


def differences(table: Table, test: str, rival: str) -> list[str]:
    """NLL of energies, forces and both together, as trained, minus that of a rival."""
    return [table.mean(ROW, test, q, "nll", less=rival).text(digits) for q, digits in DIGITS.items()]


def compared(tables: list[Table]) -> str:
    """The differences to both rivals on all tests."""
    heads = [f"{name}, minus {ROWS[rival].title}" for rival in RIVALS for name in ("E", "F", "joint")]
    rows = {
        f"{table.title}, {title}": [cell for rival in RIVALS for cell in differences(table, test, rival)]
        for table in tables
        for test, title in table.tests.items()
    }
    return markdown_rows(heads, [[name, *cells] for name, cells in rows.items()], "test")


def coverage(table: Table, test: str, method: str, quantity: str) -> str:
    """Observed coverage of 68, 95 and 99 % intervals in percent, as the mean over seeds."""
    found = []
    for nominal in COVERAGES:
        values = [
            table.results[ROW][seed]["tests"][test][method][quantity]["coverage"][nominal] for seed in table.seeds(ROW)
        ]
        found.append(f"{100 * sum(values) / len(values):.0f}")
    return "/".join(found)


def calibrated_rows(table: Table) -> Iterator[list[str]]:
    """NLL, RZV and coverage of each test, as trained and calibrated."""
    for test, title in table.tests.items():
        for method, label in (("none", "as trained"), ("isotonic", "isotonic"), ("coherent", "coherent")):
            cells = []
            for quantity in QUANTITIES:
                nll, rzv = (table.mean(ROW, test, quantity, name, method=method) for name in ("nll", "rzv"))
                known = isfinite(nll.mean)
                cells += [nll.text(3), rzv.text(2), coverage(table, test, method, quantity) if known else "–"]
            yield [f"{table.title}, {title}: {label}", *cells]


def calibrated(tables: list[Table]) -> str:
    """The table of calibrations."""
    heads = [f"{name}: {metric}" for name in ("E", "F") for metric in ("NLL", "RZV", "68/95/99 % hold")]
    return markdown_rows(heads, [row for table in tables for row in calibrated_rows(table)], "test")


def tables_of_page() -> dict[str, str]:
    """All tables by their places."""
    tables = [table for table in kept_tables() if ROW in table.results]
    return {"compared": compared(tables), "calibrated": calibrated(tables)}


def main() -> None:
    """Fill the tables."""
    fill("reproduction/local-noise.md", tables_of_page())


if __name__ == "__main__":
    main()
