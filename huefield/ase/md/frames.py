"""Text of a run: frames of extended xyz and rows of the log."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ase import Atoms
from ase.stress import voigt_6_to_full_3x3_stress
from jaxtyping import Float

from huefield.data.xyz_text import frame_text, joined, periodic_word

NUMBER = "%.12g"
SUFFIXES = ("", "_aleatoric", "_epistemic")

Entry = str | int | float | Float[np.ndarray, "*k"]
Entries = dict[str, Entry]


def structure_text(atoms: Atoms, entries: Entries, columns: dict[str, Float[np.ndarray, "N 3"]]) -> str:
    """Format a frame of extended xyz."""
    words = [*(f"{name}={_word(value)}" for name, value in entries.items()), periodic_word(atoms.pbc)]
    return frame_text(atoms.symbols, atoms.positions, np.array(atoms.cell), columns, words, NUMBER)


def predicted(results: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Select results of the calculator by name; missing ones are left out.

    The stress becomes a 3 × 3 matrix, as ASE reads it; its uncertainties stay ASE's six components.
    """
    found = {name: results[name] for name in names if name in results}
    return found | ({"stress": voigt_6_to_full_3x3_stress(found["stress"])} if "stress" in found else {})


def with_uncertainty(*quantities: str) -> tuple[str, ...]:
    """Names of the total, aleatoric and epistemic uncertainties of some quantities."""
    return tuple(f"{quantity}_uncertainty{suffix}" for quantity in quantities for suffix in SUFFIXES)


def table_row(values: Mapping[str, float | None], columns: tuple[str, ...]) -> str:
    """Format a line of comma-separated values; unknown ones are empty."""
    return ",".join("" if values.get(name) is None else NUMBER % values[name] for name in columns) + "\n"


def _word(value: Entry) -> str:
    return f'"{value}"' if isinstance(value, str) else joined(value, NUMBER)
