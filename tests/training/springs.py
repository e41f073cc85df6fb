"""Small crystals held together by springs, with energies, forces and stresses in closed form."""

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

CELL = np.array([[3.1, 0.2, 0.0], [0.3, 2.9, -0.2], [0.1, 0.4, 3.3]])
PLACES = np.array([[0.1, 0.0, 0.2], [1.6, 1.4, 1.5]])
CUTOFF = 3.0
STIFF, REST = 30.0, 2.2


def crystals(count: int, *, seed: int = 0) -> list[Atoms]:
    """Two atoms in strained cells."""
    rng = np.random.default_rng(seed)
    return [with_labels(_crystal(rng)) for _ in range(count)]


def _crystal(rng: np.random.Generator) -> Atoms:
    strain = rng.normal(scale=0.02, size=(3, 3))
    move = np.eye(3) + 0.5 * (strain + strain.T)
    places = PLACES + rng.normal(scale=0.05, size=PLACES.shape)
    return Atoms("CO", places @ move, cell=CELL @ move, pbc=True)


def with_labels(atoms: Atoms) -> Atoms:
    """E = ½ Σ_ij ½ k (r_ij − r₀)² s(r_ij), with a switch s that vanishes at the cutoff."""
    energy, forces, virial = 0.0, np.zeros((2, 3)), np.zeros((3, 3))
    shifts = np.array(np.meshgrid(*[range(-2, 3)] * 3)).reshape(3, -1).T @ np.array(atoms.cell)
    for i in range(2):
        for j in range(2):
            vectors = atoms.positions[j] + shifts - atoms.positions[i]
            lengths = np.linalg.norm(vectors, axis=1)
            near = (lengths > 1e-9) & (lengths < CUTOFF)
            r, unit = lengths[near], vectors[near] / lengths[near, None]
            switch = (1 - (r / CUTOFF) ** 2) ** 2
            slope = -4 * r / CUTOFF**2 * (1 - (r / CUTOFF) ** 2)
            energy += 0.25 * STIFF * np.sum((r - REST) ** 2 * switch)
            pull = 0.25 * STIFF * (2 * (r - REST) * switch + (r - REST) ** 2 * slope)
            forces[i] += 2 * (pull[:, None] * unit).sum(0)
            virial += np.einsum("n,nx,ny->xy", pull, unit, vectors[near])
    atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces, stress=virial / atoms.get_volume())
    return atoms
