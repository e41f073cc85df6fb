"""Files of a table: numbers, Markdown, figures and the HTML page."""

from dataclasses import dataclass
from pathlib import Path

from huefield.reproduce.figures import save_table_figures
from huefield.reproduce.page import write_page
from huefield.reproduce.plan import AbstractSize
from huefield.reproduce.sources import AbstractSource
from huefield.reproduce.table import Table, comparison_table, deviation, paper_table
from huefield.support.errors import HuefieldError
from huefield.support.files import write_bytes

TOLERANCE = 0.1
"""Largest difference of two numbers that count as the same result."""


@dataclass(frozen=True)
class WrittenTable:
    """A table and the files that were written, the HTML page first."""

    table: Table
    text: str
    files: tuple[Path, ...]


def write_table(source: AbstractSource, size: AbstractSize, out: Path) -> WrittenTable:
    """Write the table, figures and page of all finished rows of a data set.

    Args:
        source: the data set.
        size: networks and steps; results of another size are ignored.
        out: folder of the results; files go into its subfolder of the data set.
    """
    table, folder, about = Table.collected(source, size, out), out / source.name, size.about
    if not table.rows:
        raise HuefieldError(f"{folder} has no finished row")
    seeds = max(len(table.seeds(row)) for row in table.rows)
    splits = f"{seeds} seed{'s' if seeds > 1 else ''} of the data split"
    text = (
        f"{table.title}, {table.tests[table.first_test]}; {splits}. {about} Energies (E) in eV, force components (F) "
        f"in eV/Å.\n\n{paper_table(table)}\nDifferences to white noise:\n\n{comparison_table(table, table.first_test)}"
        + "".join(f"\n{warning}\n" for warning in table.warnings())
    )
    paths = [folder / name for name in ("report.html", "results.json", "table.md")]
    table.save(paths[1])
    write_bytes(paths[2], text.encode())
    figures = save_table_figures(table, folder / "figures")
    write_page(paths[0], table, figures, [f"{table.title}, {splits}.", about, *table.warnings()])
    return WrittenTable(table, text, (*paths, *figures))


@dataclass(frozen=True)
class Comparison:
    """Whether the numbers of two runs agree, and a sentence about it."""

    text: str
    agrees: bool


def compared(table: Table, other: Table) -> Comparison:
    """Compare the numbers of two runs of a table."""
    found = deviation(table, other)
    agrees = found.largest <= TOLERANCE
    text = (
        f"the numbers {'agree' if agrees else 'do NOT agree'}: the largest difference is {found.largest:.2g} "
        f"({found.where}; relative, for NLL absolute)"
    )
    alone = f". Not compared: {'; '.join(found.missing)}" if found.missing else ""
    return Comparison(text + alone, agrees)
