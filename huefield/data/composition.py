"""Element counts and formulas of packed structures, fast enough for millions of them.

Shapes: n structures, A atoms of all of them together, one structure after the other (as in
:class:`huefield.core.structure.Block`), Z elements.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from ase.data import chemical_symbols
from jaxtyping import Int, Int32, Int64, Shaped, UInt8

from huefield.support.errors import HuefieldError

RUN_ATOMS = 1_000_000
"""Atoms that are processed at a time, so that temporary arrays stay small."""


def runs(sizes: Int[np.ndarray, " n"], atoms: int = RUN_ATOMS) -> Iterator[tuple[slice, slice]]:
    """Slices of successive structures with at most ``atoms`` atoms (or one larger structure), and of their atoms."""
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    first = 0
    while first < len(sizes):
        fitting = int(np.searchsorted(starts, starts[first] + atoms, side="right")) - 1
        last = max(fitting, first + 1)
        yield slice(first, last), slice(int(starts[first]), int(starts[last]))
        first = last


def require_packed(sizes: Int[np.ndarray, " n"], atomic_numbers: UInt8[np.ndarray, " A"]) -> None:
    """Raise unless the sizes add up to the number of atoms."""
    if len(sizes) and sizes.min() < 0:
        raise HuefieldError(f"sizes must not be negative, but structure {int(sizes.argmin())} has size {sizes.min()}")
    if int(sizes.sum()) != len(atomic_numbers):
        raise HuefieldError(
            f"sizes of {len(sizes)} structures add to {int(sizes.sum())} atoms, but atomic_numbers has "
            f"{len(atomic_numbers)}: pass arrays of the same block"
        )


def present_elements(atomic_numbers: UInt8[np.ndarray, " A"]) -> tuple[int, ...]:
    """The atomic numbers that occur, in order."""
    pieces = (atomic_numbers[i : i + RUN_ATOMS] for i in range(0, len(atomic_numbers), RUN_ATOMS))
    occurrences = sum((np.bincount(piece, minlength=256) for piece in pieces), np.zeros(256, np.int64))
    return tuple(int(number) for number in np.flatnonzero(occurrences))


def symbol(number: int) -> str:
    """The symbol of an element."""
    if not 0 < number < len(chemical_symbols):
        raise HuefieldError(f"there is no element {number}: atomic numbers are 1 to {len(chemical_symbols) - 1}")
    return str(chemical_symbols[number])


def element_counts(
    sizes: Int[np.ndarray, " n"], atomic_numbers: UInt8[np.ndarray, " A"], elements: Sequence[int]
) -> Int32[np.ndarray, "n Z"]:
    """The number of atoms of each element in each structure.

    Args:
        sizes: atoms of each structure.
        atomic_numbers: elements of all atoms, one structure after the other.
        elements: atomic numbers of the columns; all elements of the structures must be among them.
    """
    require_packed(sizes, atomic_numbers)
    names = [symbol(number) for number in elements]
    if len(set(names)) != len(names):
        raise HuefieldError(f"elements must be different from one another, but are {names}")
    column = np.full(256, -1, np.int64)
    column[list(elements)] = np.arange(len(names))
    counts = np.zeros((len(sizes), len(names)), np.int32)
    for structures, atoms in runs(sizes):
        columns = column[atomic_numbers[atoms]]
        owners = np.repeat(np.arange(structures.stop - structures.start), sizes[structures])
        if columns.size and columns.min() < 0:
            atom = int(columns.argmin())
            raise HuefieldError(
                f"structure {structures.start + int(owners[atom])} has element "
                f"{symbol(int(atomic_numbers[atoms][atom]))}, which is not among the elements {names}"
            )
        block = counts[structures]
        block += np.bincount(owners * len(names) + columns, minlength=block.size).reshape(block.shape).astype(np.int32)
    return counts


def formula_index(
    sizes: Int[np.ndarray, " n"], atomic_numbers: UInt8[np.ndarray, " A"]
) -> tuple[tuple[str, ...], Int64[np.ndarray, " n"]]:
    """The distinct formulas in alphabetical order, and the index of each structure's formula."""
    elements = present_elements(atomic_numbers)
    counts = element_counts(sizes, atomic_numbers, elements)
    _, first, index = np.unique(_row_codes(counts), return_index=True, return_inverse=True)
    names = np.array([hill_formula(dict(zip(elements, row, strict=True))) for row in counts[first].tolist()], np.str_)
    order = np.argsort(names)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return tuple(names[order].tolist()), rank[index]


def formulas(sizes: Int[np.ndarray, " n"], atomic_numbers: UInt8[np.ndarray, " A"]) -> Shaped[np.ndarray, " n"]:
    """The formula of each structure, as an array of strings."""
    names, index = formula_index(sizes, atomic_numbers)
    return np.array(names, np.str_)[index]


def hill_formula(counts: Mapping[int, int]) -> str:
    """The formula in Hill's order: C, H, then alphabetical; all alphabetical without carbon; no counts of 1."""
    atoms = {symbol(number): count for number, count in counts.items() if count}
    first = [name for name in ("C", "H") if name in atoms] if "C" in atoms else []
    order = first + sorted(set(atoms) - set(first))
    return "".join(name + (str(atoms[name]) if atoms[name] > 1 else "") for name in order)


def _row_codes(counts: Int32[np.ndarray, "n Z"]) -> Int64[np.ndarray, " n"]:
    """A number for each row: equal for equal rows, different for different rows."""
    codes, kinds = np.zeros(len(counts), np.int64), 1
    for column in counts.T:
        values = int(column.max(initial=0)) + 1
        if kinds * values > np.iinfo(np.int64).max:
            different, codes = np.unique(codes, return_inverse=True)
            kinds = len(different)
        codes, kinds = codes * values + column, kinds * values
    return codes
