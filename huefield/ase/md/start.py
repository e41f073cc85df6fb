"""The start of molecular dynamics: checks of the structure, and its velocities."""

import numpy as np
from ase import Atoms, units
from jaxtyping import Float

from huefield.ase.md.config import MDConfig
from huefield.core.rigid import rigid_motions
from huefield.core.structure import stress_volumes
from huefield.support.errors import HuefieldError


def prepared(start: Atoms, config: MDConfig) -> Atoms:
    """Return a copy with velocities and without overall translation and rotation.

    Only molecules have an overall rotation. Atoms with constraints keep their overall motion.
    """
    _check_start(start, config)
    atoms = start.copy()
    if config.draw_velocities or not _moves(atoms):
        if config.temperature_kelvin is None:
            raise HuefieldError("the start has no velocities: set temperature_kelvin (--temperature) to draw them")
        atoms.set_momenta(drawn_momenta(atoms.get_masses(), config.temperature_kelvin, seed=config.seed))
    if not atoms.constraints:
        motions = rigid_motions(atoms.positions, atoms.get_masses(), with_rotations=not atoms.pbc.any())
        atoms.set_momenta(without(motions, atoms.get_momenta(), atoms.get_masses()))
    return atoms


def degrees_of_freedom(atoms: Atoms, config: MDConfig) -> int:
    """Number of degrees of freedom that share the kinetic energy; motions at rest do not count."""
    if atoms.constraints:
        return int(atoms.get_number_of_degrees_of_freedom())
    if config.engine.centre_moves:
        return 3 * len(atoms)
    without_rotation = not config.engine.rotates and not atoms.pbc.any()
    at_rest = rigid_motions(atoms.positions, atoms.get_masses(), with_rotations=without_rotation)
    return 3 * len(atoms) - at_rest.shape[1]


def drawn_momenta(masses: Float[np.ndarray, " N"], kelvin: float, *, seed: int) -> Float[np.ndarray, "N 3"]:
    """Draw momenta from the Maxwell-Boltzmann distribution, with the random numbers of step 0."""
    deviations = np.sqrt(masses * units.kB * kelvin)
    return deviations[:, None] * np.random.default_rng([seed, 0]).standard_normal((len(masses), 3))


def without(
    motions: Float[np.ndarray, "D r"], momenta: Float[np.ndarray, "N 3"], masses: Float[np.ndarray, " N"]
) -> Float[np.ndarray, "N 3"]:
    """Remove the components along some mass-weighted motions."""
    root = np.sqrt(masses)[:, None]
    weighted = (momenta / root).ravel()
    return root * (weighted - motions @ (motions.T @ weighted)).reshape(momenta.shape)


def _moves(atoms: Atoms) -> bool:
    return bool(atoms.has("momenta") and atoms.get_momenta().any())


def _check_start(start: Atoms, config: MDConfig) -> None:
    if len(start) < 2:
        raise HuefieldError(f"molecular dynamics needs at least two atoms, but the start has {len(start)}")
    if not (start.get_masses() > 0).all():
        raise HuefieldError("an atom of the start has no mass: set its mass, or remove the atom")
    momenta = start.get_momenta()
    if not np.isfinite(momenta).all():
        raise HuefieldError("a velocity of the start is NaN or infinite: draw new ones with --draw-velocities")
    if not config.engine.barostat:
        return
    volume = float(stress_volumes(np.array(start.cell, float), start.pbc))
    if not (start.pbc.all() and volume > 0):
        raise HuefieldError(
            f"{config.ensemble} needs a cell that is periodic in all directions, but pbc is {start.pbc.tolist()} and "
            f"the volume {volume:g} Å³: give the start a cell, or use nvt"
        )
    if start.constraints:
        raise HuefieldError(
            f"{config.ensemble} does not support constraints, but the start has some: remove them, or use nvt"
        )
