"""Structures of a run as text: extended xyz and rows of a table."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ase import Atoms
from jaxtyping import Float

NUMBER = "%.12g"
SUFFIXES = ("", "_aleatoric", "_epistemic")

Entry = str | int | float | Float[np.ndarray, "3 3"]
Entries = dict[str, Entry]


def frame_text(atoms: Atoms, entries: Entries, columns: dict[str, Float[np.ndarray, "N 3"]]) -> str:
    """A frame of extended xyz, as ASE reads it."""
    words = [f"Properties=species:S:1:pos:R:3{''.join(f':{name}:R:3' for name in columns)}"]
    if atoms.cell.any():
        words.insert(0, f'Lattice="{_joined(np.array(atoms.cell))}"')
    words += [f"{name}={_word(value)}" for name, value in entries.items()]
    words.append('pbc="' + " ".join("T" if periodic else "F" for periodic in atoms.pbc) + '"')
    values = np.hstack([atoms.positions, *columns.values()])
    row = " ".join([NUMBER] * values.shape[1])
    rows = "".join(f"{symbol} {row}\n" for symbol in atoms.symbols) % tuple(values.ravel().tolist())
    return f"{len(atoms)}\n{' '.join(words)}\n{rows}"


def predicted(results: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Results of the calculator under their own names, of those that there are; stress as a matrix."""
    found = {name: results[name] for name in names if name in results}
    return {name: _matrix(value) if name.startswith("stress") else value for name, value in found.items()}


def with_uncertainty(*quantities: str) -> tuple[str, ...]:
    """The names of the uncertainties of some quantities."""
    return tuple(f"{quantity}_uncertainty{suffix}" for quantity in quantities for suffix in SUFFIXES)


def table_row(values: Mapping[str, float | None], columns: tuple[str, ...]) -> str:
    """A line of comma-separated values; what is unknown is left empty."""
    return ",".join("" if values.get(name) is None else NUMBER % values[name] for name in columns) + "\n"


def _matrix(voigt: Float[np.ndarray, " 6"]) -> Float[np.ndarray, "3 3"]:
    xx, yy, zz, yz, xz, xy = voigt
    return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])


def _joined(matrix: Float[np.ndarray, "3 3"]) -> str:
    return " ".join(NUMBER % value for value in matrix.ravel())


def _word(value: Entry) -> str:
    if isinstance(value, np.ndarray):
        return f'"{_joined(value)}"'
    return f'"{value}"' if isinstance(value, str) else NUMBER % value
