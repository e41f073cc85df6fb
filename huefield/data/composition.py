"""What packed structures are made of and have in common: counts, formulas, groups and hashes, for millions at a time.

Shapes: n structures, A atoms of all of them together, one structure after the other (as in
:class:`huefield.core.structure.Block`), Z elements.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from ase.data import chemical_symbols
from jaxtyping import Bool, Float, Int, Int32, Int64, Shaped, UInt8, UInt64

from huefield.core.checks import require_finite, require_shape

RUN_ATOMS = 1_000_000
"""Atoms that are worked on at a time, so that temporary arrays stay small however many structures there are."""


def runs(sizes: Int[np.ndarray, " n"], atoms: int = RUN_ATOMS) -> Iterator[tuple[slice, slice]]:
    """Successive structures with at most ``atoms`` atoms (or one larger structure), with the rows of their atoms."""
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    first = 0
    while first < len(sizes):
        fitting = int(np.searchsorted(starts, starts[first] + atoms, side="right")) - 1
        last = max(fitting, first + 1)
        yield slice(first, last), slice(int(starts[first]), int(starts[last]))
        first = last


def require_packed(sizes: Int[np.ndarray, " n"], atomic_numbers: UInt8[np.ndarray, " A"]) -> None:
    """Raise unless the atoms are as many as the sizes say."""
    if len(sizes) and sizes.min() < 0:
        raise ValueError(f"sizes must not be negative, but structure {int(sizes.argmin())} has size {sizes.min()}")
    if int(sizes.sum()) != len(atomic_numbers):
        raise ValueError(
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
        raise ValueError(f"there is no element {number}: atomic numbers are 1 to {len(chemical_symbols) - 1}")
    return str(chemical_symbols[number])


def element_counts(
    sizes: Int[np.ndarray, " n"], atomic_numbers: UInt8[np.ndarray, " A"], elements: Sequence[int]
) -> Int32[np.ndarray, "n Z"]:
    """How many atoms of each element each structure has.

    Args:
        sizes: atoms of each structure.
        atomic_numbers: elements of all atoms, one structure after the other.
        elements: atomic numbers that the columns stand for; each element that occurs must be among them.
    """
    require_packed(sizes, atomic_numbers)
    names = [symbol(number) for number in elements]
    if len(set(names)) != len(names):
        raise ValueError(f"elements must be different from one another, but are {names}")
    column = np.full(256, -1, np.int64)
    column[list(elements)] = np.arange(len(names))
    counts = np.zeros((len(sizes), len(names)), np.int32)
    for structures, atoms in runs(sizes):
        columns = column[atomic_numbers[atoms]]
        owners = np.repeat(np.arange(structures.stop - structures.start), sizes[structures])
        if columns.size and columns.min() < 0:
            atom = int(columns.argmin())
            raise ValueError(
                f"structure {structures.start + int(owners[atom])} has element "
                f"{symbol(int(atomic_numbers[atoms][atom]))}, which is not among the elements {names}"
            )
        block = counts[structures]
        block += np.bincount(owners * len(names) + columns, minlength=block.size).reshape(block.shape).astype(np.int32)
    return counts


def formula_index(
    sizes: Int[np.ndarray, " n"], atomic_numbers: UInt8[np.ndarray, " A"]
) -> tuple[tuple[str, ...], Int64[np.ndarray, " n"]]:
    """The different formulas in alphabetical order, and which of them each structure has."""
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
    """The formula in Hill's order: C, H, then the alphabet; without carbon the alphabet alone. 1 is left out."""
    atoms = {symbol(number): count for number, count in counts.items() if count}
    first = [name for name in ("C", "H") if name in atoms] if "C" in atoms else []
    order = first + sorted(set(atoms) - set(first))
    return "".join(name + (str(atoms[name]) if atoms[name] > 1 else "") for name in order)


def _row_codes(counts: Int32[np.ndarray, "n Z"]) -> Int64[np.ndarray, " n"]:
    """A number for each row; equal rows have equal numbers, different rows different ones."""
    codes, kinds = np.zeros(len(counts), np.int64), 1
    for column in counts.T:
        values = int(column.max(initial=0)) + 1
        if kinds * values > np.iinfo(np.int64).max:
            different, codes = np.unique(codes, return_inverse=True)
            kinds = len(different)
        codes, kinds = codes * values + column, kinds * values
    return codes


def deal_groups(sizes: Int[np.ndarray, " G"], targets: Float[np.ndarray, " P"]) -> Int64[np.ndarray, " G"]:
    """Deal groups out whole: the part of each group, −1 for none.

    Small parts choose first; if the targets add to all there is, the last takes the rest.

    Args:
        sizes: structures of each of G groups, which are taken in this order.
        targets: structures that each of P parts should have.
    """
    owners = np.full(len(sizes), -1, np.int64)
    everything = targets.sum() > sizes.sum() * (1 - 1e-9)
    for later, part in zip(range(len(targets))[::-1], np.argsort(targets, kind="stable"), strict=True):
        free = np.flatnonzero(owners < 0)
        rest = everything and not later
        owners[free if rest else free[_fill(sizes[free], targets[part], len(free) - later)]] = part
    return owners


def _fill(sizes: Int[np.ndarray, " G"], target: float, at_most: int) -> Bool[np.ndarray, " G"]:
    """Groups that together have about ``target`` structures: one at least, ``at_most`` at most."""
    chosen, short = np.zeros(len(sizes), bool), target
    for index, size in enumerate(sizes.tolist()):
        if size <= short:
            chosen[index], short = True, short - size
    chosen[np.flatnonzero(chosen)[at_most:]] = False
    chosen[sizes.argmin()] |= not chosen.any()
    while (changed := _best_exchange(sizes, chosen, target - sizes[chosen].sum(), at_most)).size:
        chosen[changed] ^= True
    return chosen


def _best_exchange(
    sizes: Int[np.ndarray, " G"], chosen: Bool[np.ndarray, " G"], short: float, at_most: int
) -> Int64[np.ndarray, " _"]:
    """The group to take in, to leave out, or the two to exchange, so that least is ``short``; none if nothing helps."""
    inside, outside = np.flatnonzero(chosen), np.flatnonzero(~chosen)
    coming = outside[np.argsort(sizes[outside], kind="stable")]
    leaving = np.append(inside, -1) if len(inside) < at_most else inside
    coming = np.insert(coming, 0, -1) if len(inside) > 1 else coming
    if not len(coming):
        return coming
    sizes = np.append(sizes, 0)  # index −1 stands for no group
    wanted = short + sizes[leaving]
    above = np.searchsorted(sizes[coming], wanted).clip(max=len(coming) - 1)
    candidates = coming[np.stack([above, (above - 1).clip(min=0)])]
    missed = np.abs(wanted - sizes[candidates])
    side, best = np.unravel_index(missed.argmin(), missed.shape)
    changed = np.array([leaving[best], candidates[side, best]])
    return changed[(changed >= 0) & (missed[side, best] < abs(short) - 1e-9)]


def configuration_hashes(
    sizes: Int[np.ndarray, " n"],
    atomic_numbers: UInt8[np.ndarray, " A"],
    positions: Float[np.ndarray, "A 3"],
    cells: Float[np.ndarray, "n 3 3"],
    pbc: Bool[np.ndarray, "n 3"],
    resolution_angstrom: float = 1e-4,
) -> UInt64[np.ndarray, " n"]:
    """A number for each structure, the same for the same elements at the same rounded positions in the same cell.

    Nothing but rounding is forgiven: a structure that is shifted, turned, or has its atoms in another order has another
    hash. Lattice vectors count where the structure is periodic; labels do not count. Coordinates that differ by less
    than the resolution mostly, not always, round to the same number. Two different structures have the same hash with
    a chance of 2⁻⁶⁴.

    Args:
        sizes: atoms of each structure.
        atomic_numbers: elements of all atoms, one structure after the other.
        positions: of all atoms, [Å].
        cells: lattice vectors in rows, [Å].
        pbc: directions in which a structure repeats.
        resolution_angstrom: what coordinates are rounded to.
    """
    require_packed(sizes, atomic_numbers)
    hashes = np.empty(len(sizes), np.uint64)
    for structures, atoms in runs(sizes):
        count = sizes[structures]
        ends = np.cumsum(count)
        place = np.arange(atoms.stop - atoms.start) - np.repeat(ends - count, count)
        atom_hash = _mixed(place.astype(np.uint64) * np.uint64(256) + atomic_numbers[atoms])
        for coordinate in _rounded("positions", positions[atoms], resolution_angstrom).T:
            atom_hash = _mixed(atom_hash ^ coordinate)
        totals = np.concatenate([np.zeros(1, np.uint64), np.cumsum(atom_hash)])  # modulo 2⁶⁴, hence exact
        here = _mixed(totals[ends] - totals[ends - count])
        repeating = np.flatnonzero(pbc[structures].any(1))
        vectors = np.where(pbc[structures][repeating, :, None], cells[structures][repeating], 0.0)
        for coordinate in _rounded("cells", vectors, resolution_angstrom).reshape(-1, 9).T:
            here[repeating] = _mixed(here[repeating] ^ coordinate)
        hashes[structures] = here
    return hashes


def pairs_across(hashes: UInt64[np.ndarray, " n"], parts: Int[np.ndarray, " n"]) -> Int64[np.ndarray, "2 k"]:
    """Pairs (i, j) of structures with the same hash, where the part of j comes after that of i.

    Each j stands once, in order, with the first structure of the earliest part that has its hash; structures of part −1
    are left out.
    """
    require_shape("hashes", hashes, parts.shape)
    used = np.flatnonzero(parts >= 0)
    order = used[np.lexsort((parts[used], hashes[used]))]
    starts = np.append(True, hashes[order][1:] != hashes[order][:-1])[: len(order)]
    first = order[np.flatnonzero(starts)[np.cumsum(starts) - 1]]
    pairs = np.stack([first, order])[:, parts[first] != parts[order]]
    return pairs[:, np.argsort(pairs[1])]


def _rounded(name: str, lengths: Float[np.ndarray, "*shape"], resolution: float) -> UInt64[np.ndarray, "*shape"]:
    """Lengths in units of the resolution; −0 and 0 are one."""
    require_finite(name, lengths)
    steps = np.rint(lengths.astype(np.float64) / resolution)
    if np.abs(steps).max(initial=0.0) >= 2.0**62:
        raise ValueError(f"{name} reach {np.abs(lengths).max():g} Å, too far to count in steps of {resolution:g} Å")
    return steps.astype(np.int64).view(np.uint64)


def _mixed(values: UInt64[np.ndarray, " k"]) -> UInt64[np.ndarray, " k"]:
    """A permutation of the 64-bit numbers that looks random (the finaliser of SplitMix64, Steele et al. 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
