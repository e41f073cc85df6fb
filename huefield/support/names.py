"""Names that people chose, made safe for Markdown, LaTeX and file names."""

import re
import unicodedata
from collections.abc import Iterable

LONGEST_FILE_NAME = 80
"""Characters of a name that become part of a file name."""
_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
}


def one_line(text: str) -> str:
    """The text with line breaks and control characters replaced by single spaces."""
    return re.sub(r"\s+", " ", "".join(" " if unicodedata.category(c) == "Cc" else c for c in text)).strip()


def markdown_text(text: str) -> str:
    """The text for a Markdown table: no cell, code, link or HTML can begin or end in it."""
    return re.sub(r"([\\`*|<>\[\]])", r"\\\1", one_line(text))


def latex_text(text: str) -> str:
    """The text for LaTeX, with all special characters escaped."""
    return "".join(_LATEX.get(letter, letter) for letter in one_line(text))


def file_stems(names: Iterable[str]) -> list[str]:
    """A different safe part of a file name for each name: letters, digits and ``._+=() -`` only."""
    found: list[str] = []
    for name in names:
        safe = re.sub(r"[^\w.+=() -]+", "-", one_line(name)).strip(" .-")[:LONGEST_FILE_NAME] or "unnamed"
        stem, number = safe, 2
        while stem.casefold() in (each.casefold() for each in found):
            stem, number = f"{safe} ({number})", number + 1
        found.append(stem)
    return found
