"""Small molecules, and structures with the results of EMT, a fast calculator of ASE."""

import numpy as np
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.emt import EMT

from huefield.ase.calculator import structure_of
from huefield.baselines import AseBaseline
from huefield.core.structure import Structure


def shaken(name: str, *, seed: int = 0, size: float = 0.05) -> Structure:
    """A molecule of ASE with displaced atoms, or a single atom."""
    atoms = molecule(name) if len(name) > 2 or name in ("H2", "CO") else Atoms(name)
    atoms.rattle(size, seed=seed)
    return structure_of(atoms)


def copper(*, seed: int = 0) -> Structure:
    """A strained and shaken cell of copper."""
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=seed)
    strain = np.array([[0.02, 0.01, 0], [0.01, 0, 0], [0, 0, -0.01]])
    atoms.set_cell(atoms.cell @ (np.eye(3) + strain), scale_atoms=True)
    return structure_of(atoms)


def emt() -> AseBaseline:
    return AseBaseline(EMT(), "EMT")


def atoms_of(structure: Structure) -> Atoms:
    return Atoms(structure.atomic_numbers, structure.positions, cell=structure.cell, pbc=structure.pbc)
