"""The systems that both sides are timed on, made from a seed: the same on every machine, and no data to fetch.

Only numpy and ASE are needed, so that both environments can import this file.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from ase import Atoms, units
from ase.neighborlist import neighbor_list

CUTOFF_ANGSTROM = 5.0
ELEMENTS = ("H", "C", "O")
_FRACTIONS = (0.5, 0.35, 0.15)
_BOND_ANGSTROM = (0.95, 1.5)
_APART_ANGSTROM = 1.5
"""Atoms that are not bonded are no closer."""
_RADIUS_ANGSTROM = 1.28
"""Radius of a molecule of one atom; it grows with the third root of their number. Chosen for 98 % of all pairs within
the cutoff in molecules of 15 atoms."""
_WATER_G_PER_CM3 = 0.997
_WATER_CONTACT_ANGSTROM = 1.5
"""Atoms of different water molecules are no closer."""


@dataclass(frozen=True, eq=False)
class System:
    """A structure with random labels: their values take no time."""

    atoms: Atoms
    energy: float
    forces: np.ndarray


@dataclass(frozen=True, eq=False)
class Pairs:
    """All directed pairs within the cutoff of structures that follow one another."""

    first: np.ndarray
    second: np.ndarray
    offsets: np.ndarray
    """From the second atom's position to its image next to the first atom [Å]."""


def systems(name: str) -> list[System]:
    """The structures of a case.

    Args:
        name: ``molecules`` (64 of 15 atoms), ``molecule`` (one of 27 atoms), or ``water-N`` with N repetitions of a
            periodic box of 64 molecules along each lattice vector.
    """
    rng = np.random.default_rng(0)
    if name == "molecules":
        return [_labelled(molecule(15, rng=rng), rng=rng) for _ in range(64)]
    if name == "molecule":
        return [_labelled(molecule(27, rng=rng), rng=rng)]
    kind, _, repetitions = name.partition("-")
    if kind != "water" or not repetitions.isdigit():
        raise ValueError(f"{name!r} is no case: it must be 'molecules', 'molecule' or 'water-N' with a whole number N")
    return [_labelled(water(4, rng=rng).repeat(int(repetitions)), rng=rng)]


def molecule(num_atoms: int, *, rng: np.random.Generator) -> Atoms:
    """A compact random molecule: atoms are put next to one another inside a sphere until there are enough."""
    radius, positions = _RADIUS_ANGSTROM * num_atoms ** (1 / 3), np.zeros((1, 3))
    while len(positions) < num_atoms:
        place = positions[rng.integers(len(positions))] + rng.uniform(*_BOND_ANGSTROM) * _direction(rng)
        distances = np.sort(np.linalg.norm(positions - place, axis=1))
        if (
            distances[0] > _BOND_ANGSTROM[0] - 1e-9
            and (distances[1:] > _APART_ANGSTROM).all()
            and np.linalg.norm(place) < radius
        ):
            positions = np.concatenate([positions, place[None]])
    return Atoms(rng.choice(ELEMENTS, num_atoms, p=_FRACTIONS), positions)


def water(per_side: int, *, rng: np.random.Generator) -> Atoms:
    """A cubic box of water: molecules on a jittered lattice, each turned until it touches no other."""
    grams = 18.015 * per_side**3 / units.mol
    length = (grams / _WATER_G_PER_CM3) ** (1 / 3) * 1e8
    box = Atoms(cell=[length] * 3, pbc=True)
    for site in np.argwhere(np.ones([per_side] * 3)):
        center = (site + rng.uniform(-0.05, 0.05, 3)) * length / per_side
        box += next(
            m for m in _turned_waters(center, rng) if not len(box) or _contact(box, m) > _WATER_CONTACT_ANGSTROM
        )
    return box


def pairs(structures: list[System]) -> Pairs:
    """Pairs of all structures, numbered through."""
    found, start = [], 0
    for system in structures:
        i, j, shifts = neighbor_list("ijS", system.atoms, CUTOFF_ANGSTROM)
        found.append((i + start, j + start, shifts @ np.array(system.atoms.cell)))
        start += len(system.atoms)
    return Pairs(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _labelled(atoms: Atoms, *, rng: np.random.Generator) -> System:
    return System(atoms, float(rng.normal()), rng.normal(size=(len(atoms), 3)))


def _direction(rng: np.random.Generator) -> np.ndarray:
    vector = rng.normal(size=3)
    return vector / np.linalg.norm(vector)


def _turned_waters(center: np.ndarray, rng: np.random.Generator) -> Iterator[Atoms]:
    """One water molecule in ever new orientations."""
    half, bond = np.deg2rad(104.5) / 2, 0.957
    while True:
        axis, other = _direction(rng), _direction(rng)
        side = np.cross(axis, other) / np.linalg.norm(np.cross(axis, other))
        arms = bond * (np.cos(half) * axis + np.sin(half) * np.array([[1.0], [-1.0]]) * side)
        yield Atoms("OHH", np.concatenate([center[None], center + arms]))


def _contact(box: Atoms, added: Atoms) -> float:
    """The shortest distance between two sets of atoms, through the walls of the box."""
    length = box.cell[0, 0]
    vectors = box.positions[:, None] - added.positions[None]
    vectors -= length * np.round(vectors / length)
    return float(np.linalg.norm(vectors, axis=-1).min())
