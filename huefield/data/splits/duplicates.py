"""Duplicate configurations: a hash of each structure, and pairs of equal hashes in different parts.

Shapes: n structures, A atoms of all of them together, one structure after the other.
"""

import numpy as np
from jaxtyping import Bool, Float, Int, Int64, UInt8, UInt64

from huefield.core.structure import Block
from huefield.data.composition import require_packed, runs
from huefield.support.checks import require_finite, require_shape
from huefield.support.errors import HuefieldError


def configuration_hashes(
    sizes: Int[np.ndarray, " n"],
    atomic_numbers: UInt8[np.ndarray, " A"],
    positions: Float[np.ndarray, "A 3"],
    cells: Float[np.ndarray, "n 3 3"],
    pbc: Bool[np.ndarray, "n 3"],
    resolution_angstrom: float = 1e-4,
) -> UInt64[np.ndarray, " n"]:
    """A hash of each structure: equal for the same elements at the same rounded positions in the same cell.

    A structure that is shifted, rotated or reordered has another hash. Lattice vectors count in periodic directions;
    labels do not count. Coordinates that differ by less than the resolution round to the same number in most cases,
    not in all. Two different structures have the same hash with a probability of 2⁻⁶⁴.

    Args:
        sizes: atoms of each structure.
        atomic_numbers: elements of all atoms, one structure after the other.
        positions: of all atoms, [Å].
        cells: lattice vectors in rows, [Å].
        pbc: periodic directions of each structure.
        resolution_angstrom: step to which coordinates are rounded.
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
        totals = np.concatenate([np.zeros(1, np.uint64), np.cumsum(atom_hash)])  # modulo 2⁶⁴, so differences are exact
        here = _mixed(totals[ends] - totals[ends - count])
        repeating = np.flatnonzero(pbc[structures].any(1))
        vectors = np.where(pbc[structures][repeating, :, None], cells[structures][repeating], 0.0)
        for coordinate in _rounded("cells", vectors, resolution_angstrom).reshape(-1, 9).T:
            here[repeating] = _mixed(here[repeating] ^ coordinate)
        hashes[structures] = here
    return hashes


def block_hashes(block: Block) -> UInt64[np.ndarray, " n"]:
    """The :func:`configuration_hashes` of a block."""
    return configuration_hashes(block.sizes, block.atomic_numbers, block.positions, block.cells, block.pbc)


def pairs_across(hashes: UInt64[np.ndarray, " n"], parts: Int[np.ndarray, " n"]) -> Int64[np.ndarray, "2 k"]:
    """Pairs (i, j) of structures with the same hash, in which the part of j comes after the part of i.

    Each j appears once, in order, with the first structure of the earliest part that has its hash. Structures of part
    −1 are ignored.
    """
    require_shape("hashes", hashes, parts.shape)
    used = np.flatnonzero(parts >= 0)
    order = used[np.lexsort((parts[used], hashes[used]))]
    starts = np.append(True, hashes[order][1:] != hashes[order][:-1])[: len(order)]
    first = order[np.flatnonzero(starts)[np.cumsum(starts) - 1]]
    pairs = np.stack([first, order])[:, parts[first] != parts[order]]
    return pairs[:, np.argsort(pairs[1])]


def _rounded(name: str, lengths: Float[np.ndarray, "*shape"], resolution: float) -> UInt64[np.ndarray, "*shape"]:
    """Lengths in units of the resolution, as integers; −0 equals 0."""
    require_finite(name, lengths)
    steps = np.rint(lengths.astype(np.float64) / resolution)
    if np.abs(steps).max(initial=0.0) >= 2.0**62:
        raise HuefieldError(f"{name} reach {np.abs(lengths).max():g} Å, too far to count in steps of {resolution:g} Å")
    return steps.astype(np.int64).view(np.uint64)


def _mixed(values: UInt64[np.ndarray, " k"]) -> UInt64[np.ndarray, " k"]:
    """A pseudo-random permutation of the 64-bit numbers (the finaliser of SplitMix64, Steele et al. 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
