"""Puts results of ``huefield reproduce table`` into the repository: JSON, pictures, and tables of docs/reproduction.md.

python benchmarks/reproduction.py take FOLDER     takes over what is in the folder, then draws
python benchmarks/reproduction.py restore FOLDER  puts them there: ``huefield reproduce`` trains only others
python benchmarks/reproduction.py draw            pictures and tables again, from benchmarks/results/reproduction
"""

import argparse
import json
from dataclasses import replace
from math import isfinite
from pathlib import Path

from pages import fill
from study import HERE, IMAGES

from huefield.evaluation.report.figures import DPI
from huefield.evaluation.report.tables import markdown_rows
from huefield.reproduce.figures import reliability_figure, rows_figure
from huefield.reproduce.plan import Job, MiniSize
from huefield.reproduce.rows import ROWS
from huefield.reproduce.sources import SMALL, source_named
from huefield.reproduce.table import (
    AFTER,
    METHODS,
    QUANTITIES,
    REFERENCE,
    SeedMean,
    Table,
    comparison_table,
    paper_table,
)
from huefield.reproduce.work import RESULT
from huefield.support.files import alone_in, write_bytes
from huefield.support.plots import publication_style

RESULTS = HERE / "results" / "reproduction"
PAGE = "reproduction.md"
COMPARED = ("none", "scale", "isotonic")
"""Calibrations of the table on the claim."""
RIVALS = (REFERENCE, "white-pooled")
TIE = 0.005
"""How much worse an NLL may be to be called not worse; the page says so."""
ENCE_ALLOWED = 0.02
"""How much worse the ENCE may be."""


def calibration_table(table: Table, test: str) -> str:
    """NLL and ENCE of the rows of most interest with each method, and what to know about the fits."""
    lines = []
    for row in ("vanilla", "white", "white-pooled", "colored", "colored-atom"):
        for quantity in QUANTITIES:
            for metric in ("nll", "ence"):
                found = [table.mean(row, test, quantity, metric, method=m) for m in METHODS]
                if isfinite(found[0].mean):
                    lines.append([f"{ROWS[row].title}, {quantity} {metric.upper()}", *(each.text(2) for each in found)])
    remarks = "".join(f"\n{remark}\n" for remark in table.remarks()) if test == table.first_test else ""
    return markdown_rows([AFTER[method] for method in METHODS], lines) + remarks


def claim_table(found: list[Table]) -> str:
    """Coherent rows less white noise in distribution, and whether they match it, plain and pooled."""
    lines = []
    for table in found:
        for row in (row for row in table.rows if ROWS[row].is_coherent):
            for method in COMPARED:
                plain, pooled = (changes(table, row, method, rival) for rival in RIVALS)
                joint = table.mean(row, table.first_test, "joint", "nll", method=method, less=RIVALS[1])
                verdicts = ["yes" if matches(each) else "–" for each in (plain, pooled)]
                title = f"{table.title}: {table.titled(row)}, {AFTER[method]}"
                lines.append([title, *(change.text(3) for change in plain), joint.text(2), *verdicts])
    heads = ["E: ΔNLL", "ΔENCE", "F: ΔNLL", "ΔENCE", "joint NLL less pooled", "matches white", "matches pooled"]
    return markdown_rows(heads, lines)


def changes(table: Table, row: str, method: str, rival: str) -> list[SeedMean]:
    """Of NLL and ENCE, of energies and forces in distribution, less those of another row."""
    return [
        table.mean(row, table.first_test, quantity, metric, method=method, less=rival)
        for quantity in QUANTITIES
        for metric in ("nll", "ence")
    ]


def matches(changes: list[SeedMean]) -> bool:
    """Whether NLL is not worse and ENCE hardly, in the mean over seeds; changes of NLL and ENCE take turns."""
    return all(change.mean <= (ENCE_ALLOWED if place % 2 else TIE) for place, change in enumerate(changes))


def tables(table: Table) -> dict[str, str]:
    """By their names in the page."""
    made = {f"{table.source} paper": paper_table(table)}
    for test in table.tests:
        made[f"{table.source} {test}"] = comparison_table(table, test)
        made[f"{table.source} {test} calibration"] = calibration_table(table, test)
    return made


def draw(table: Table) -> None:
    """The pictures of the page."""
    with publication_style():
        for kind, figure in (("reliability", reliability_figure(table)), ("rows", rows_figure(table))):
            if figure is not None:
                figure.savefig(IMAGES / f"reproduction-{kind}-{table.source}.png", dpi=DPI)


def take(folder: Path) -> None:
    """Keep the results of a folder, beside those of other rows and seeds."""
    before = {table.source: table for table in kept_tables()}
    for name in SMALL:
        if (folder / name).exists():
            table = Table.collected(source_named(name), MiniSize(), folder)
            kept = before[name].results if name in before else {}
            for warning in table.warnings():
                print(warning)
            results = {row: {**kept.get(row, {}), **table.results.get(row, {})} for row in ROWS}
            taken = replace(table, results={row: seeds for row, seeds in results.items() if seeds})
            taken.save(RESULTS / f"{name}.json")


def restore(folder: Path) -> None:
    """Put kept results where ``huefield reproduce`` looks for them."""
    for table in kept_tables():
        for row, seeds in table.results.items():
            for seed, result in seeds.items():
                path = Job(source_named(table.source), seed, ROWS[row]).folder(folder) / RESULT
                path.parent.mkdir(parents=True, exist_ok=True)
                with alone_in(path.parent):
                    if not path.exists():
                        write_bytes(path, (json.dumps(result) + "\n").encode())


def kept_tables() -> list[Table]:
    """Of the data sets that there are results of."""
    return [Table.load(path) for name in SMALL if (path := RESULTS / f"{name}.json").exists()]


def write() -> None:
    """Pictures and the page."""
    found = kept_tables()
    for table in found:
        draw(table)
        fill(PAGE, tables(table))
    fill(PAGE, {"claim": claim_table(found)})


def main() -> None:
    """Take over or restore, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("take", "restore"):
        commands.add_parser(name).add_argument("folder", type=Path)
    commands.add_parser("draw")
    chosen = parser.parse_args()
    if chosen.command == "restore":
        restore(chosen.folder)
        return
    if chosen.command == "take":
        take(chosen.folder)
    write()


if __name__ == "__main__":
    main()
