"""Charges and unpaired electrons, which no model takes as input."""

from collections.abc import Iterator, Sequence

import numpy as np
from ase import Atoms


def ignored_text(ignored: Sequence[str]) -> str:
    """A sentence about what :func:`ignored_by_models` finds."""
    return (
        f"the atoms have {' and '.join(ignored)}, which models do not take as input: structures that differ only in "
        "that have the same prediction"
    )


def ignored_by_models(atoms: Atoms) -> Iterator[str]:
    """Properties of the electrons that the atoms state and models ignore."""
    if _differs(atoms.info.get("charge"), 0) or _differs(atoms.arrays.get("initial_charges"), 0):
        yield "a charge"
    spin = any(_differs(atoms.info.get(key), 0, 1) for key in ("spin", "multiplicity"))
    if spin or _differs(atoms.arrays.get("initial_magmoms"), 0):
        yield "unpaired electrons"


def _differs(value: object, *usual: int) -> bool:
    """Whether a value is a number, or has numbers, other than the usual ones."""
    if value is None:
        return False
    array = np.asarray(value)
    return array.dtype.kind in "iuf" and not bool(np.isin(array, usual).all())
