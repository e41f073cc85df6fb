"""Pieces of a page: tables, figures and packed data as HTML."""

import base64
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

PIXELS_PER_DOT = 0.6
"""Width of a figure in a page, relative to that of its file."""


@dataclass(frozen=True)
class Cell:
    """Of a table."""

    text: str
    small: str = ""
    """Under the text."""
    words: bool = False
    """Whether it is read, not compared: such cells are aligned to the left."""
    first: bool = False
    """Whether a group of columns begins here."""

    def html(self, tag: str = "td") -> str:
        """As a cell of the body or, with ``th``, of the head."""
        names = [name for name, on in (("words", self.words), ("first", self.first)) if on]
        kind = f' class="{" ".join(names)}"' if names else ""
        below = f"<small>{escape(self.small)}</small>" if self.small else ""
        return f"<{tag}{kind}>{escape(self.text)}{below}</{tag}>"


@dataclass(frozen=True)
class Part:
    """A section of the page; one without a body is left out."""

    name: str
    """In links."""
    title: str
    body: str

    def html(self) -> str:
        """The section."""
        return f'<section id="{self.name}">\n<h2>{escape(self.title)}</h2>\n{self.body}\n</section>\n'


Row = Sequence[Cell | str]
"""Strings are cells in HTML already."""


@dataclass(frozen=True)
class Rows:
    """Rows of a table that belong together."""

    title: str
    """Above them; none where it is empty."""
    rows: Sequence[Row]

    def html(self, columns: int) -> str:
        """A body of the table."""
        above = f'<tr class="part"><th colspan="{columns}">{escape(self.title)}</th></tr>\n' if self.title else ""
        lines = ("".join(cell if isinstance(cell, str) else cell.html() for cell in row) for row in self.rows)
        return f"<tbody>\n{above}" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</tbody>"


def table(heads: Sequence[Cell], parts: Sequence[Rows], groups: Sequence[tuple[str, int]] = ()) -> str:
    """A table that scrolls by itself where it is wider than the page.

    Args:
        heads: Of the columns.
        parts: One below the other.
        groups: Titles above the columns and how many columns each is above.
    """
    above = "".join(
        f'<th{" class=group" if title else ""} colspan="{span}">{escape(title)}</th>' for title, span in groups
    )
    head = (f"<tr>{above}</tr>" if above else "") + f"<tr>{''.join(cell.html('th') for cell in heads)}</tr>"
    body = "".join(part.html(len(heads)) for part in parts)
    return f'<div class="wide"><table><thead>{head}</thead>{body}</table></div>'


def row_head(text: str) -> str:
    """The first cell of a row, which says what the row is about."""
    return f'<th scope="row">{escape(text)}</th>'


def image(png: Path, title: str, text: str) -> str:
    """A figure with its caption, the picture inside."""
    content = png.read_bytes()
    width = int(int.from_bytes(content[16:20], "big") * PIXELS_PER_DOT)  # a PNG begins with its size
    source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    broad = ' class="broad"' if width > 760 else ""
    return (
        f'<figure><div class="sheet"><img{broad} width="{width}" alt="{escape(title)}" src="{source}"></div>\n'
        f"<figcaption><strong>{escape(title)}.</strong> {escape(text)}</figcaption></figure>"
    )


def remarks(texts: Iterable[str]) -> str:
    """A list of things to know; nothing where there are none."""
    items = "".join(f"<li>{escape(text)}</li>" for text in dict.fromkeys(texts))
    return f'<ul class="remarks">{items}</ul>' if items else ""


def folded(title: str, body: str) -> str:
    """Something that opens when it is wanted."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>" if body else ""


def packed(name: str, text: str) -> str:
    """Text that a script of the page unpacks, a third of its size: ``unpacked(name)`` in page/viewer.js."""
    content = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    return f'<script type="text/plain" id="{name}">{content}</script>\n'
