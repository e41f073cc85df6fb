"""Frames of extended xyz as text, in a form that ASE reads back."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
NOT_TEXT = frozenset({"t", "f", "true", "false", "nan", "inf", "infinity"})
"""Words that ASE reads as truth values or numbers."""


def frame_text(
    symbols: Iterable[str],
    positions: Float[np.ndarray, "N 3"],
    cell: Float[np.ndarray, "3 3"],
    columns: Mapping[str, Float[np.ndarray, "N _"]],
    words: Sequence[str],
    number: str,
) -> str:
    """One frame.

    Args:
        symbols: of the atoms.
        positions: [Å].
        cell: not written if it is zero.
        columns: more numbers of each atom, by their name.
        words: of the comment line, after cell and columns; :func:`periodic_word` is one that belongs there.
        number: format of numbers, such as ``%.12g``.
    """
    lattice = [f"Lattice={joined(cell, number)}"] if cell.any() else []
    shape = "".join(f":{name}:R:{values.shape[1]}" for name, values in columns.items())
    comment = " ".join([*lattice, f"Properties=species:S:1:pos:R:3{shape}", *words])
    values = np.hstack([positions, *columns.values()])
    row = " ".join([number] * values.shape[1])
    # One format for all rows is twice as fast as number by number.
    rows = "".join(f"{symbol} {row}\n" for symbol in symbols) % tuple(values.ravel().tolist())
    return f"{len(positions)}\n{comment}\n{rows}"


def periodic_word(pbc: Bool[np.ndarray, " 3"]) -> str:
    """The word of the comment line for periodic directions."""
    return 'pbc="' + " ".join("T" if periodic else "F" for periodic in pbc) + '"'


def joined(numbers: Float[np.ndarray, "*k"] | np.float64 | float, number: str) -> str:
    """One number, or several in quotes."""
    text = " ".join(number % value for value in np.ravel(numbers))
    return f'"{text}"' if " " in text else text


def is_plain_text(text: str) -> bool:
    """Whether ASE reads this text without quotes as the same text."""
    return TEXT.fullmatch(text) is not None and text.lower() not in NOT_TEXT


def text_word(text: str) -> str:
    """Text in a form that ASE reads back unchanged."""
    if is_plain_text(text):
        return text
    quoted = json.dumps(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"_JSON {quoted}"'
