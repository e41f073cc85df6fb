"""Shifts and rotations of a body, and the motions that remain without them."""

import numpy as np
from jaxtyping import Float

SAME = 1e-6
"""Relative tolerance below which a motion counts as a linear combination of others."""


def shifts(num_atoms: int) -> Float[np.ndarray, "3 N 3"]:
    """A unit vector on every atom, for each axis."""
    return np.broadcast_to(np.eye(3)[:, None], (3, num_atoms, 3))


def rotations(positions: Float[np.ndarray, "N 3"], centre: Float[np.ndarray, " 3"]) -> Float[np.ndarray, "3 N 3"]:
    """Around each axis e, e × (r_i − r_0) with a centre r_0; Σ_i of its product with forces is their torque."""
    return np.stack([np.cross(axis, positions - centre) for axis in np.eye(3)])


def rigid_motions(
    positions: Float[np.ndarray, "N 3"], masses: Float[np.ndarray, " N"], *, with_rotations: bool, same: float = SAME
) -> Float[np.ndarray, "D r"]:
    """Orthonormal motions of a body as a whole, in coordinates √m r.

    These are √m_i times shifts and rotations around the centre of mass; a linear molecule has two rotations and a
    single atom none.
    """
    fields = [shifts(len(positions))]
    if with_rotations:
        fields.append(rotations(positions, masses @ positions / masses.sum()))
    motions = np.concatenate(fields) * np.sqrt(masses)[:, None]
    weighted = motions.reshape(len(motions), -1).T
    weighted = weighted / max(np.linalg.norm(weighted, axis=0).max(), 1e-300)
    left, sizes, _ = np.linalg.svd(weighted, full_matrices=False)
    return left[:, sizes > same * sizes.max()]


def internal_motions(positions: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, "D v"]:
    """An orthonormal basis of all displacements of a molecule except shifts and rotations."""
    rigid = rigid_motions(positions, np.ones(len(positions)), with_rotations=True)
    return np.linalg.qr(rigid, mode="complete")[0][:, rigid.shape[1] :]


def rotation_onto(
    positions: Float[np.ndarray, "N 3"], target: Float[np.ndarray, "N 3"], *, handed: int = 1
) -> Float[np.ndarray, "3 3"]:
    """The rotation R that brings ``positions @ R`` closest to the target, both about the origin (Kabsch).

    Args:
        positions: of the atoms.
        target: their places.
        handed: 1 for a proper rotation, −1 for one with a reflection.
    """
    left, _, right = np.linalg.svd(positions.T @ target)
    left[:, -1] *= handed * np.sign(np.linalg.det(left @ right))
    return left @ right
