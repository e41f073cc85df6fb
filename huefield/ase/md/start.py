"""Where dynamics begin: a structure that makes sense, and velocities for it."""

import numpy as np
from ase import Atoms, units
from jaxtyping import Float

from huefield.ase.md.config import MDConfig
from huefield.core.rigid import rigid_motions
from huefield.support.errors import HuefieldError


def prepared(start: Atoms, config: MDConfig) -> Atoms:
    """A copy that is ready to move: with velocities, and without motion or rotation as a whole.

    Without a periodic direction there is a rotation to remove. Where atoms are held fast, nothing is.
    """
    _require_sense(start, config)
    atoms = start.copy()
    if config.draw_velocities or not _moves(atoms):
        if config.temperature_kelvin is None:
            raise HuefieldError("the start has no velocities to go on with: give a temperature to draw them from")
        atoms.set_momenta(drawn_momenta(atoms.get_masses(), config.temperature_kelvin, seed=config.seed))
    if not atoms.constraints:
        motions = rigid_motions(atoms.positions, atoms.get_masses(), with_rotations=not atoms.pbc.any())
        atoms.set_momenta(without(motions, atoms.get_momenta(), atoms.get_masses()))
    return atoms


def degrees_of_freedom(atoms: Atoms, config: MDConfig) -> int:
    """What the kinetic energy is shared by: not the motions that stay at rest."""
    if atoms.constraints:
        return int(atoms.get_number_of_degrees_of_freedom())
    if config.ensemble == "npt":
        return 3 * len(atoms)
    rotations = config.ensemble == "nve" and not atoms.pbc.any()
    still = rigid_motions(atoms.positions, atoms.get_masses(), with_rotations=rotations)
    return 3 * len(atoms) - still.shape[1]


def drawn_momenta(masses: Float[np.ndarray, " N"], kelvin: float, *, seed: int) -> Float[np.ndarray, "N 3"]:
    """Of the Maxwell-Boltzmann distribution; the random numbers are those of step 0."""
    deviations = np.sqrt(masses * units.kB * kelvin)
    return deviations[:, None] * np.random.default_rng([seed, 0]).standard_normal((len(masses), 3))


def without(
    motions: Float[np.ndarray, "D r"], momenta: Float[np.ndarray, "N 3"], masses: Float[np.ndarray, " N"]
) -> Float[np.ndarray, "N 3"]:
    """Momenta with the part along some motions taken off."""
    root = np.sqrt(masses)[:, None]
    weighted = (momenta / root).ravel()
    return root * (weighted - motions @ (motions.T @ weighted)).reshape(momenta.shape)


def _moves(atoms: Atoms) -> bool:
    return bool(atoms.has("momenta") and atoms.get_momenta().any())


def _require_sense(start: Atoms, config: MDConfig) -> None:
    if len(start) < 2:
        raise HuefieldError(f"dynamics need two atoms at least, but the start has {len(start)}")
    if not (start.get_masses() > 0).all():
        raise HuefieldError("an atom of the start has no mass: give it one, or leave it out")
    momenta = start.get_momenta()
    if not np.isfinite(momenta).all():
        raise HuefieldError("a velocity of the start is NaN or infinite: draw new ones with draw_velocities")
    if config.ensemble == "npt":
        if not (start.pbc.all() and abs(np.linalg.det(start.cell)) > 0):
            raise HuefieldError(
                f"npt changes the volume of a cell that is periodic in all directions, but pbc is "
                f"{start.pbc.tolist()} and the volume {abs(np.linalg.det(start.cell)):g} Å³: give the start a cell, or "
                "take nvt"
            )
        if start.constraints:
            raise HuefieldError("npt cannot hold atoms fast, but the start does: remove its constraints, or take nvt")
