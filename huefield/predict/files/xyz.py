"""Frames of extended xyz of the plain kind, which most programs write, read several times as fast as by ASE.

Whatever is out of the ordinary (brackets, escapes, truth values, atoms by number) is left to ASE, so that both give the
same.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from ase.data import atomic_numbers
from jaxtyping import Shaped

from huefield.core.structure import Structure
from huefield.support.errors import HuefieldError

ENTRY = re.compile(r'\s*([^\s="]+)=(?:"([^"]*)"|([^\s"=]+))(?=\s|$)')
UNUSUAL = re.compile(r"[\\'{}\[\]]")
"""Characters with a meaning of their own in the comment."""
TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
NOT_TEXT = frozenset({"t", "f", "true", "false", "nan", "inf", "infinity"})
"""What looks like text, but is taken for a truth value or a number."""
TRUTH = {"T": True, "F": False}
SPECIAL = frozenset({"stress", "virial"})
"""What ASE puts into another form."""


@dataclass(frozen=True, eq=False)
class PlainFrame:
    """Atoms, the values that were wanted, and the names of everything."""

    atoms: Structure
    values: dict[str, Shaped[np.ndarray, "..."]]
    names: frozenset[str]


def is_plain_text(text: str) -> bool:
    """Whether ASE reads this text without quotes as the same text."""
    return TEXT.fullmatch(text) is not None and text.lower() not in NOT_TEXT


def parse_plain(lines: Sequence[str], wanted: frozenset[str]) -> PlainFrame | None:
    """A frame from its lines; None where it is not of the plain kind, or damaged."""
    comment = lines[1].strip()
    if UNUSUAL.search(comment) or len(lines) != int(lines[0]) + 2 or SPECIAL & wanted:
        return None
    entries = _entries(comment)
    columns = None if entries is None else _columns(entries.pop("Properties", ""))
    if entries is None or columns is None or entries.keys() & columns.keys():
        return None
    try:
        return _frame(lines[2:], entries, columns, wanted)
    except (ValueError, KeyError, IndexError):
        return None


def _entries(comment: str) -> dict[str, str] | None:
    """Names and values of a comment; None if it has anything else, or a name twice."""
    entries: dict[str, str] = {}
    end = 0
    while end < len(comment):
        match = ENTRY.match(comment, end)
        if match is None or match[1] in entries:
            return None
        entries[match[1]] = match[2] if match[3] is None else match[3]
        end = match.end()
    return entries


@lru_cache(maxsize=64)
def _columns(properties: str) -> MappingProxyType[str, slice] | None:
    """Where the columns are; None unless elements and positions are among them under their usual names."""
    parts = properties.split(":")
    if len(parts) % 3 or not {"species", "pos"} <= set(parts[::3]) or {"Z", "symbols", "positions"} & set(parts[::3]):
        return None
    columns, first = {}, 0
    for name, width in zip(parts[::3], parts[2::3], strict=True):
        columns[name] = slice(first, first + int(width))
        first += int(width)
    return MappingProxyType(columns)


def _frame(
    lines: Sequence[str], entries: dict[str, str], columns: MappingProxyType[str, slice], wanted: frozenset[str]
) -> PlainFrame:
    rows = [line.split() for line in lines]
    if {len(row) for row in rows} != {max(column.stop for column in columns.values())}:
        raise HuefieldError("a line has another number of columns")
    periodic = "Lattice" in entries
    cell = _numbers(entries.pop("Lattice", "0 0 0 0 0 0 0 0 0")).reshape(3, 3)
    pbc = [TRUTH[word] for word in entries.pop("pbc", "T T T" if periodic else "F F F").split()]
    symbols = [atomic_numbers[row[columns["species"].start].capitalize()] for row in rows]
    if 0 in symbols:
        raise HuefieldError("an atom is of no element")
    vectors = _vectors(rows, {name: columns[name] for name in columns if name == "pos" or name in wanted})
    structure = Structure(np.array(symbols, np.uint8), vectors.pop("pos"), cell, np.array(pbc, bool))
    values = {name: _value(entries[name]) for name in wanted & entries.keys()}
    names = frozenset((entries.keys() | columns.keys()) - {"species", "pos"})
    return PlainFrame(structure, values | vectors, names)


def _vectors(rows: list[list[str]], columns: dict[str, slice]) -> dict[str, Shaped[np.ndarray, "N ..."]]:
    """Columns of numbers; they are converted together with what stands between them, which is faster."""
    first, last = min(c.start for c in columns.values()), max(c.stop for c in columns.values())
    table = np.array([list(map(float, row[first:last])) for row in rows])
    found = {name: table[:, c.start - first : c.stop - first] for name, c in columns.items()}
    return {name: value[:, 0] if value.shape[1] == 1 else value for name, value in found.items()}


def _value(text: str) -> Shaped[np.ndarray, "..."]:
    """Text, a number or several."""
    if is_plain_text(text):
        return np.asarray(text)
    numbers = _numbers(text)
    if numbers.size == 1 and not set(text) & set(".eEnN"):
        return np.asarray(int(text))
    return numbers.reshape(()) if numbers.size == 1 else numbers


def _numbers(text: str) -> Shaped[np.ndarray, " n"]:
    return np.array([float(word) for word in text.replace(",", " ").split()])
