"""What is written of a table: numbers, figures and the page."""

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
"""Numbers that differ by more are not the same result."""


@dataclass(frozen=True)
class Made:
    """What there is to look at, the page first."""

    table: Table
    text: str
    files: tuple[Path, ...]


def write_table(source: AbstractSource, size: AbstractSize, out: Path) -> Made:
    """Write all that the results of a data set say.

    Args:
        source: the data set.
        size: networks and steps; results of others are left out.
        out: folder of the results; files go into the folder of the data set in it.
    """
    table, folder, about = Table.collected(source, size, out), out / source.name, size.about
    if not table.rows:
        raise HuefieldError(f"there is no finished row in {folder}")
    seeds = max(len(table.seeds(row)) for row in table.rows)
    splits = f"{seeds} seed{'s' if seeds > 1 else ''} of the data split"
    text = (
        f"{table.title}, {table.tests[table.first_test]}; {splits}. {about} Energies (E) in eV, force components (F) "
        f"in eV/Å.\n\n{paper_table(table)}\nLess white noise:\n\n{comparison_table(table, table.first_test)}"
        + "".join(f"\n{warning}\n" for warning in table.warnings())
    )
    paths = [folder / name for name in ("report.html", "results.json", "table.md")]
    table.save(paths[1])
    write_bytes(paths[2], text.encode())
    figures = save_table_figures(table, folder / "figures")
    write_page(paths[0], table, figures, [f"{table.title}, {splits}.", about, *table.warnings()])
    return Made(table, text, (*paths, *figures))


@dataclass(frozen=True)
class Comparison:
    """With the numbers of another run."""

    text: str
    agrees: bool


def compared(table: Table, other: Table) -> Comparison:
    """How the numbers of the paper's table agree with those of another run."""
    found = deviation(table, other)
    agrees = found.largest <= TOLERANCE
    text = (
        f"numbers are {'as there' if agrees else 'NOT as there'}: the largest difference is {found.largest:.2g} "
        f"({found.where}), relative, but of likelihoods as it is"
    )
    alone = f". Not compared: {'; '.join(found.missing)}" if found.missing else ""
    return Comparison(text + alone, agrees)
