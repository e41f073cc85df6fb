"""Removal of near-duplicates, and selection of diverse configurations."""

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from huefield.make_data.geometry import pair_distances


def spread_out(
    configurations: Float[np.ndarray, "n N 3"], num_frames: int, first: list[int], closest_angstrom: float
) -> Int[np.ndarray, " k"]:
    """Indices of diverse configurations by farthest point sampling.

    Starts with ``first``, then adds the configuration farthest from all selected ones, until there are ``num_frames``
    or all others are closer than ``closest_angstrom`` (root mean square over pair distances).
    """
    features = np.array([pair_distances(positions) for positions in configurations])
    nearest = np.full(len(features), np.inf)
    taken: list[int] = []

    def take(index: int) -> None:
        taken.append(index)
        nearest[:] = np.minimum(nearest, np.sqrt(((features - features[index]) ** 2).mean(1)))

    for index in first[:num_frames]:
        if nearest[index] >= closest_angstrom:
            take(index)
    while len(taken) < num_frames and nearest.max() >= closest_angstrom:
        take(int(nearest.argmax()))
    return np.array(taken, int)


def fingerprint(numbers: UInt8[np.ndarray, " N"], positions: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, " P"]:
    """Pair distances sorted within each pair of elements: invariant to permutations, shifts and rotations."""
    first, second = np.triu_indices(len(numbers), 1)
    low, high = np.minimum(numbers[first], numbers[second]), np.maximum(numbers[first], numbers[second])
    distances = pair_distances(positions)
    return distances[np.lexsort((distances, high, low))]


def distinct(
    numbers: list[UInt8[np.ndarray, " _"]], positions: list[Float[np.ndarray, "_ 3"]], closest_angstrom: float
) -> Bool[np.ndarray, " n"]:
    """Mask of configurations farther than ``closest_angstrom`` from every earlier one of the same formula."""
    keep = np.zeros(len(numbers), bool)
    seen: dict[tuple[int, ...], list[np.ndarray]] = {}
    for index, (elements, place) in enumerate(zip(numbers, positions, strict=True)):
        earlier = seen.setdefault(tuple(sorted(elements.tolist())), [])
        mine = fingerprint(elements, place)
        if not earlier or np.sqrt(((np.array(earlier) - mine) ** 2).mean(1)).min() >= closest_angstrom:
            keep[index] = True
            earlier.append(mine)
    return keep
