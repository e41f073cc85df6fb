"""Compare local noise with white noise that starts from the same means: docs/reproduction/local-noise.md.

huefield reproduce table --data acac --only local --only white --only white-pooled --seeds 3 --out FOLDER   (and others)
python benchmarks/local_noise.py FOLDER    copy the results of these rows to benchmarks/results, then write the tables
python benchmarks/local_noise.py           write the tables
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from pathlib import Path

from pages import fill
from reproduction import RIVALS
from study import HERE

from huefield.evaluation.report.tables import markdown_rows
from huefield.reproduce.plan import MiniSize
from huefield.reproduce.rows import ROWS
from huefield.reproduce.sources import SMALL, source_named
from huefield.reproduce.table import QUANTITIES, ScoredQuantity, Table

ROW = "local"
RESULTS = HERE / "results" / "local-noise"
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


def take(folder: Path) -> None:
    """Copy the results of the rows that are compared."""
    for name in SMALL:
        if (folder / name).exists():
            table = Table.collected(source_named(name), MiniSize(), folder)
            rows = {row: table.results.get(row, {}) for row in (ROW, *RIVALS)}
            whole = set.intersection(*(set(seeds) for seeds in rows.values()))
            rows = {row: {seed: seeds[seed] for seed in sorted(whole)} for row, seeds in rows.items() if whole}
            if not rows:
                continue
            replace(table, results=rows).save(RESULTS / f"{name}.json")


def paired_tables() -> list[Table]:
    """Tables of all data sets, whose rows of a seed started from one mean."""
    return [Table.load(path) for name in SMALL if (path := RESULTS / f"{name}.json").exists()]


def tables_of_page() -> dict[str, str]:
    """All tables by their places."""
    tables = paired_tables()
    return {"paired": compared(tables), "calibrated": calibrated(tables)}


def main() -> None:
    """Take results if a folder is named, and fill the tables."""
    if len(sys.argv) > 1:
        take(Path(sys.argv[1]))
    fill("reproduction/local-noise.md", tables_of_page())


if __name__ == "__main__":
    main()
