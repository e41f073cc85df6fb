"""Keep results of ``huefield reproduce table`` in the repository, and write the pages of docs/reproduction from them.

python benchmarks/reproduction.py take FOLDER     copy results of a folder to benchmarks/results, then draw
python benchmarks/reproduction.py restore FOLDER  copy kept results to a folder; ``huefield reproduce`` skips them
python benchmarks/reproduction.py draw            write pages and figures from benchmarks/results/reproduction
"""

import argparse
import json
from dataclasses import replace
from math import isfinite
from pathlib import Path

from pages import DOCS
from study import HERE, IMAGES

from huefield.evaluation.report.figures import DPI
from huefield.evaluation.report.tables import markdown_rows, number
from huefield.reproduce.figures import reliability_figure, rows_figure
from huefield.reproduce.plan import Job, MiniSize
from huefield.reproduce.rows import ROWS
from huefield.reproduce.sources import SMALL, source_named
from huefield.reproduce.table import (
    AFTER,
    METHODS,
    QUANTITIES,
    REFERENCE,
    ScoredQuantity,
    SeedMean,
    Table,
    comparison_table,
    paper_table,
)
from huefield.reproduce.work import RESULT
from huefield.support.files import alone_in, write_bytes
from huefield.support.plots import publication_style

RESULTS = HERE / "results" / "reproduction"
PAGES = DOCS / "reproduction"
COMPARED = ("none", "scale", "isotonic")
"""Calibrations in the table of matches."""
RIVALS = (REFERENCE, "white-pooled")
TIE = 0.005
"""Largest increase of an NLL that counts as a tie."""
ENCE_ALLOWED = 0.02
"""Largest increase of an ENCE that counts as a tie."""
DEFAULT_ROW = "local"
HEAD = """# {title}: all results

Generated from `benchmarks/results/reproduction/{source}.json` by `python benchmarks/reproduction.py draw`: do not edit.
[The findings](../reproduction.md) say what follows from these tables, [running it](running.md) how they were made.

E stands for energies (eV), F for force components (eV/Å). NLL is the negative log likelihood, RZV the standard
deviation of error/σ (ideally 1; above 1 the model is overconfident), ENCE the mean relative gap between predicted and
actual errors over bins (ideally 0), CV the relative spread of σ, RMV the root of the mean variance
([formulas](../evaluation.md#metrics)). Numbers are means over seeds of the data split ± half of the 95 % interval; a
row with a single seed has no interval. The rows `local` and `white, local` were trained later than the others, from
means of the same seeds and settings that differ by rounding, which training amplifies.

"""
COMPARISON = """## Compared with white noise

ΔNLL and ΔENCE are differences to white noise of the same seed; negative is better. The joint NLL is that of the energy
and all forces of a structure, in nats, with its differences to plain and to pooled white noise.{seed_0}

"""
CALIBRATION = """## Before and after calibration

Calibration uses the validation data. `one factor` multiplies all variances, `isotonic` maps them through a curve,
`conformal` makes ± σ cover 68 %, `coherent` has one factor for each part of the covariance and fits Student t tails
(rows that were trained before it existed do not have it), `γ only` rescales γ and does not change energies. With few
energies, `isotonic` is one factor for them.

"""
MATCHES = """## Rows that match white noise

Differences to white noise on the first test set. A row matches where its NLL is at most {tie} larger and its ENCE at
most {ence} larger, both for energies and for forces. The joint NLL is that of uncalibrated models.

"""


def page(table: Table) -> str:
    """Write all tables of a data set as one Markdown page."""
    first = table.tests[table.first_test]
    parts = [
        HEAD.format(title=table.title, source=table.source),
        f"## The paper's table\n\nTest set: {first}; rows of the paper below ours.\n\n{paper_table(table)}\n",
        f"![Reliability diagrams](../images/reproduction-reliability-{table.source}.png)\n\n",
        COMPARISON.format(seed_0=seed_0_of_default(table)),
        *(f"### {title}\n\n{comparison_table(table, test)}\n" for test, title in _capitalised(table)),
        f"![NLL of all rows minus white](../images/reproduction-rows-{table.source}.png)\n\n",
        CALIBRATION,
        *(f"### Calibrated: {title}\n\n{calibration_table(table, test)}\n" for test, title in table.tests.items()),
        MATCHES.format(tie=TIE, ence=ENCE_ALLOWED),
        match_table(table),
    ]
    return "".join(parts)


def _capitalised(table: Table) -> list[tuple[str, str]]:
    return [(test, title[0].upper() + title[1:]) for test, title in table.tests.items()]


def seed_0_of_default(table: Table) -> str:
    """Numbers of the default row with seed 0, with which rows of a single seed are to be compared."""
    if len(table.seeds(DEFAULT_ROW)) < 2 or 0 not in table.seeds(DEFAULT_ROW):
        return ""
    lines = [
        f"{title}: {', '.join(number(c, d) for c, d in zip(_seed_0_changes(table, test), (3, 3, 1), strict=True))}"
        for test, title in table.tests.items()
        if isfinite(table.value(DEFAULT_ROW, 0, test, "none", "forces", "nll"))
    ]
    return (
        f" Compare rows with a single seed, which is seed 0, with seed 0 of `{ROWS[DEFAULT_ROW].title}`: its "
        f"differences in energy NLL, force NLL and joint NLL are {'; '.join(lines)}."
    )


def _seed_0_changes(table: Table, test: str) -> list[float]:
    quantities: tuple[ScoredQuantity, ...] = (*QUANTITIES, "joint")
    values = [[table.value(row, 0, test, "none", q, "nll") for q in quantities] for row in (DEFAULT_ROW, REFERENCE)]
    return [ours - white for ours, white in zip(*values, strict=True)]


def calibration_table(table: Table, test: str) -> str:
    """NLL and ENCE of the main rows with each calibration method, and remarks on the fits."""
    lines = []
    for row in ("vanilla", "white", "white-pooled", "colored", "colored-atom"):
        for quantity in QUANTITIES:
            for metric in ("nll", "ence"):
                found = [table.mean(row, test, quantity, metric, method=m) for m in METHODS]
                if isfinite(found[0].mean):
                    lines.append([f"{ROWS[row].title}, {quantity} {metric.upper()}", *(each.text(2) for each in found)])
    remarks = "".join(f"\n{remark}\n" for remark in table.remarks()) if test == table.first_test else ""
    return markdown_rows([AFTER[method] for method in METHODS], lines) + remarks


def match_table(table: Table) -> str:
    """Differences of coherent rows to white noise in distribution, and whether they match plain and pooled white."""
    lines = []
    for row in (row for row in table.rows if ROWS[row].is_coherent):
        for method in COMPARED:
            plain, pooled = (changes(table, row, method, rival) for rival in RIVALS)
            joint = table.mean(row, table.first_test, "joint", "nll", method=method, less=RIVALS[1])
            verdicts = ["yes" if matches(each) else "–" for each in (plain, pooled)]
            title = f"{table.titled(row)}, {AFTER[method]}"
            lines.append([title, *(change.text(3) for change in plain), joint.text(2), *verdicts])
    heads = ["E: ΔNLL", "ΔENCE", "F: ΔNLL", "ΔENCE", "joint NLL minus pooled", "matches white", "matches pooled"]
    return markdown_rows(heads, lines)


def changes(table: Table, row: str, method: str, rival: str) -> list[SeedMean]:
    """Differences of NLL and ENCE to another row, for energies and forces in distribution."""
    return [
        table.mean(row, table.first_test, quantity, metric, method=method, less=rival)
        for quantity in QUANTITIES
        for metric in ("nll", "ence")
    ]


def matches(changes: list[SeedMean]) -> bool:
    """Whether no mean difference exceeds its tolerance; NLL and ENCE alternate."""
    return all(change.mean <= (ENCE_ALLOWED if place % 2 else TIE) for place, change in enumerate(changes))


def draw(table: Table) -> None:
    """Draw the figures of a page."""
    with publication_style():
        for kind, figure in (("reliability", reliability_figure(table)), ("rows", rows_figure(table))):
            if figure is not None:
                figure.savefig(IMAGES / f"reproduction-{kind}-{table.source}.png", dpi=DPI)


def take(folder: Path) -> None:
    """Copy the results of a folder, and keep those of other rows and seeds."""
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
    """Copy kept results to where ``huefield reproduce`` looks for them."""
    for table in kept_tables():
        for row, seeds in table.results.items():
            for seed, result in seeds.items():
                path = Job(source_named(table.source), seed, ROWS[row]).folder(folder) / RESULT
                path.parent.mkdir(parents=True, exist_ok=True)
                with alone_in(path.parent):
                    if not path.exists():
                        write_bytes(path, (json.dumps(result) + "\n").encode())


def kept_tables() -> list[Table]:
    """Tables of all data sets with kept results."""
    return [Table.load(path) for name in SMALL if (path := RESULTS / f"{name}.json").exists()]


def write() -> None:
    """Write the figures and pages."""
    for table in kept_tables():
        draw(table)
        (PAGES / f"{table.source}.md").write_text(page(table))


def main() -> None:
    """Run one of the commands."""
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
