"""Pages of the documentation with tables that programs write.

A table stands between lines ``<!-- NAME -->`` and ``<!-- end -->``, which are left in place.
"""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def filled(text: str, place: str, content: str) -> str:
    """A page with a table in its place."""
    parts = re.split(rf"(?<=<!-- {re.escape(place)} -->\n)(?:(?!<!--).)*(?=<!-- end -->)", text, flags=re.DOTALL)
    if len(parts) != 2:
        raise ValueError(f"the page has {len(parts) - 1} places for the table {place!r}, not one")
    return content.join(parts)


def fill(page: str, tables: dict[str, str]) -> None:
    """Write tables, by their names, into a page."""
    path = DOCS / page
    text = path.read_text()
    for place, content in tables.items():
        text = filled(text, place, content)
    path.write_text(text)
