"""Dynamics that any model survives: real ones through ASE at 300 K, but on springs.

Random weights would tear a molecule apart, each its own way. Here a model is asked for its forces in each step, and the
atoms then move on springs about where they began: the same way on both sides, as far as in a liquid at 300 K. The
springs are those of an Einstein crystal whose hydrogens vibrate at 520 and whose oxygens at 130 / cm, where water has
its librations and its translations. Steps between searches of neighbours are within a quarter of those of GFN2-xTB in
droplets of eight water molecules; molecules, whose bonds hold them together, need fewer searches than here.

Only numpy and ASE are needed, so that both environments can import this file.
"""

from typing import Protocol

import numpy as np
from ase import Atoms, units
from ase.build import molecule
from ase.md.verlet import VelocityVerlet
from cases import systems

STIFFNESS_EV_PER_ANGSTROM2 = 1.0
TEMPERATURE_K = 300.0
TIMESTEP_FS = 0.5


class HasForces(Protocol):
    """The interface of a calculator that dynamics need."""

    def get_forces(self, atoms: Atoms) -> np.ndarray:
        """Forces [eV/Å]."""


class Springs:
    """A calculator that runs a model, and returns the forces of springs."""

    def __init__(self, model: HasForces | None, rest: np.ndarray) -> None:
        self.model = model
        self.rest = rest

    def get_forces(self, atoms: Atoms) -> np.ndarray:
        """Forces of the springs [eV/Å]."""
        if self.model is not None:
            self.model.get_forces(atoms)
        return STIFFNESS_EV_PER_ANGSTROM2 * (self.rest - atoms.positions)


class Dynamics:
    """Velocity Verlet from a thermal state that is the same each time."""

    def __init__(self, system: str, model: HasForces | None) -> None:
        start = molecule("CH3CH2OH") if system == "ethanol" else systems(system)[0].atoms
        rng, thermal = np.random.default_rng(1), TEMPERATURE_K * units.kB
        rest = start.positions.copy()
        self.atoms = start
        self.atoms.positions += np.sqrt(thermal / STIFFNESS_EV_PER_ANGSTROM2) * rng.normal(size=rest.shape)
        self.atoms.set_momenta(np.sqrt(thermal * start.get_masses())[:, None] * rng.normal(size=rest.shape))
        self.atoms.calc = Springs(model, rest)
        self._engine = VelocityVerlet(self.atoms, TIMESTEP_FS * units.fs)

    def __call__(self, steps: int) -> None:
        """So many steps further."""
        self._engine.run(steps)

    @property
    def place(self) -> float:
        """A number that tells where the atoms are [Å]."""
        return float(np.abs(self.atoms.positions).sum())
