"""Starting geometries: Cartesian coordinates from Z-matrices, bonds and fragments.

A row of a Z-matrix is ``symbol [reference distance [reference angle [reference dihedral]]]`` in Å and degrees;
references are numbers of earlier rows, counted from 1. The distance is to the first reference, the angle is between
the atom, the first and the second reference, and the dihedral adds the third.
"""

import numpy as np
from ase.data import atomic_numbers, covalent_radii
from jaxtyping import Bool, Float, UInt8
from scipy.sparse.csgraph import connected_components

from huefield.support.errors import HuefieldError

BONDED = 1.3
"""Atoms closer than this multiple of the sum of their covalent radii are bonded."""


def from_zmatrix(text: str) -> tuple[UInt8[np.ndarray, " N"], Float[np.ndarray, "N 3"]]:
    """Atomic numbers and positions of a Z-matrix; rows are separated by lines or semicolons."""
    rows = [row.split() for row in text.replace(";", "\n").splitlines() if row.strip()]
    positions: list[np.ndarray] = []
    for number, row in enumerate(rows, start=1):
        wanted = 1 + 2 * min(number - 1, 3)
        if row[0] not in atomic_numbers or len(row) != wanted:
            raise HuefieldError(f"row {number} of a Z-matrix must be an element and {wanted - 1} numbers, but is {row}")
        references, values = [int(r) - 1 for r in row[1::2]], [float(v) for v in row[2::2]]
        if any(not 0 <= r < number - 1 for r in references):
            raise HuefieldError(f"row {number} of a Z-matrix refers to a row that is not above it: {row}")
        positions.append(_placed([positions[r] for r in references], values))
    return np.array([atomic_numbers[row[0]] for row in rows], np.uint8), np.array(positions).reshape(-1, 3)


def _placed(references: list[np.ndarray], values: list[float]) -> np.ndarray:
    """Position of an atom from up to three references and (distance, angle, dihedral)."""
    if not references:
        return np.zeros(3)
    distance, angle, dihedral = [*values, *(0.0,) * (3 - len(values))]
    if len(references) == 1:
        return references[0] + np.array([0.0, 0.0, distance])
    axis = _unit(references[1] - references[0])
    beyond = references[2] - references[1] if len(references) == 3 else np.array([1.0, 0.0, 0.0])
    in_plane = _unit(beyond - (beyond @ axis) * axis)
    theta, phi = np.deg2rad([angle, dihedral])
    normal = np.cross(in_plane, axis)
    sideways = np.cos(phi) * in_plane + np.sin(phi) * normal
    return references[0] + distance * (np.cos(theta) * axis + np.sin(theta) * sideways)


def _unit(vector: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector)
    if length < 1e-6:
        raise HuefieldError("the references of a Z-matrix row are collinear or coincide; choose others")
    return vector / length


def pair_distances(positions: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, " P"]:
    """Distances of all pairs of atoms, which do not change when a molecule is moved or rotated."""
    first, second = np.triu_indices(len(positions), 1)
    return np.linalg.norm(positions[first] - positions[second], axis=1)


def bonds(
    numbers: UInt8[np.ndarray, " N"], positions: Float[np.ndarray, "N 3"], factor: float = BONDED
) -> Bool[np.ndarray, "N N"]:
    """Mask of pairs closer than ``factor`` times the sum of their covalent radii."""
    radii = covalent_radii[numbers]
    distances = np.linalg.norm(positions[:, None] - positions[None, :], axis=-1)
    return (distances < factor * (radii[:, None] + radii[None, :])) & ~np.eye(len(numbers), dtype=bool)


def num_fragments(numbers: UInt8[np.ndarray, " N"], positions: Float[np.ndarray, "N 3"], factor: float = BONDED) -> int:
    """Number of fragments, connected by bonds."""
    return int(connected_components(bonds(numbers, positions, factor), directed=False)[0])
