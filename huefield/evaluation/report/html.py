"""HTML pages from blocks: Python has the content, the templates beside this file have the markup.

All text is escaped by the templates. Only style and scripts of this package are inserted literally.
"""

import base64
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

PIXELS_PER_DOT = 0.6
"""Width of a figure in a page relative to its file."""
BROAD = 760
"""Width in pixels from which on a figure counts as broad."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    small: str = ""
    """Small text below."""
    kind: Literal["number", "words", "row head", "show"] = "number"
    """Words are aligned to the left; ``show`` is a button for the structure with this number in the viewer."""
    first: bool = False
    """Whether a group of columns begins here."""

    @property
    def classes(self) -> str:
        """CSS classes of the cell."""
        return " ".join(name for name, on in (("words", self.kind == "words"), ("first", self.first)) if on)


@dataclass(frozen=True)
class RowGroup:
    """Rows of a table with a common title."""

    title: str
    """Title above the rows; empty for none."""
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph."""

    text: str
    kind: ClassVar[str] = "paragraph"


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str
    kind: ClassVar[str] = "heading"


@dataclass(frozen=True)
class HtmlTable:
    """A table, which scrolls if it is wider than the page."""

    heads: Sequence[Cell]
    parts: Sequence[RowGroup]
    groups: Sequence[tuple[str, int]] = ()
    """Titles above groups of columns, each with its number of columns."""
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Picture:
    """A figure with its caption; the PNG file becomes part of the page."""

    png: Path
    title: str
    text: str
    kind: ClassVar[str] = "picture"

    @cached_property
    def _content(self) -> bytes:
        return self.png.read_bytes()

    @property
    def base64(self) -> str:
        """The file in base64."""
        return base64.b64encode(self._content).decode()

    @property
    def width(self) -> int:
        """Width in the page, in pixels; bytes 16 to 20 of a PNG file are its width."""
        return int(int.from_bytes(self._content[16:20], "big") * PIXELS_PER_DOT)

    @property
    def broad(self) -> bool:
        """Whether the figure needs more room on small screens."""
        return self.width > BROAD


@dataclass(frozen=True)
class RemarkList:
    """A list of remarks."""

    texts: Sequence[str]
    kind: ClassVar[str] = "remarks"


@dataclass(frozen=True)
class Folded:
    """Blocks that a click unfolds."""

    title: str
    blocks: "Sequence[PageBlock]"
    kind: ClassVar[str] = "folded"


@dataclass(frozen=True)
class ViewerPanels:
    """Panels of the structure viewer."""

    name: str
    """Name of the model."""
    description: str
    """Which structures are shown."""
    kind: ClassVar[str] = "viewer"


PageBlock = Paragraph | Heading | HtmlTable | Picture | RemarkList | Folded | ViewerPanels


@dataclass(frozen=True)
class Section:
    """A section of a page; sections without blocks are not shown."""

    name: str
    """Anchor of links."""
    title: str
    blocks: Sequence[PageBlock]


@dataclass(frozen=True)
class ViewerScripts:
    """Program and data of the structure viewer."""

    program: str
    """gzip and base64, see :func:`packed`."""
    data: str
    """gzip and base64, see :func:`packed`."""
    notices: str
    """Licences of the program."""
    script: Markup
    """Starts the viewer."""

    @classmethod
    def of(cls, program: str, data: str, notices: str) -> "ViewerScripts":
        """Pack program and data. Two hyphens would end the comment that the licences are in."""
        return cls(packed(program), packed(data), notices.replace("--", "- -"), _resource("viewer.js"))


def page_of(title: str, notes: Sequence[str], sections: Sequence[Section], viewer: ViewerScripts | None = None) -> str:
    """A self-contained page.

    Args:
        title: title of the page.
        notes: sentences below the title.
        sections: the content.
        viewer: scripts of a structure viewer, for sections that have :class:`ViewerPanels`.
    """
    shown = [section for section in sections if section.blocks]
    template = _environment().get_template("page.html")
    return template.render(title=title, notes=notes, sections=shown, viewer=viewer, style=_resource("report.css"))


def fragment_of(blocks: Sequence[PageBlock]) -> str:
    """HTML of blocks, for a notebook."""
    return _environment().get_template("fragment.html").render(blocks=blocks)


def packed(text: str) -> str:
    """Text as gzip in base64, a third of its size; ``unpacked`` in assets/viewer.js reads it."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("huefield.evaluation.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _resource(name: str) -> Markup:
    """A style sheet or script of this package, which must not be escaped."""
    return Markup(files("huefield.evaluation.report").joinpath("assets", name).read_text(encoding="utf-8"))  # noqa: S704
