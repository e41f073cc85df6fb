"""Tables that programs write into pages of the documentation.

A table is between the lines ``<!-- NAME -->`` and ``<!-- end -->``, which stay.
"""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def filled(text: str, place: str, content: str) -> str:
    """Replace one table of a page."""
    parts = re.split(rf"(?<=<!-- {re.escape(place)} -->\n)(?:(?!<!--).)*(?=<!-- end -->)", text, flags=re.DOTALL)
    if len(parts) != 2:
        raise ValueError(f"the page must have one place for the table {place!r}, but has {len(parts) - 1}")
    return content.join(parts)


def fill(page: str, tables: dict[str, str]) -> None:
    """Replace tables of a page, by name."""
    path = DOCS / page
    text = path.read_text()
    for place, content in tables.items():
        text = filled(text, place, content)
    path.write_text(text)
