"""Copies of a structure are found, whatever was done to it that does not change its energy."""

from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from scipy.spatial.transform import Rotation

from huefield.core.copies import SAME_ANGSTROM, lattice_operations
from huefield.core.structure import Structure
from huefield.core.superposition import Superposed, superpose


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def structure_of(atoms: Atoms) -> Structure:
    return Structure(atoms.numbers.astype(np.uint8), atoms.positions.astype(float), np.array(atoms.cell), atoms.pbc)


def rattled(atoms: Atoms, rng: np.random.Generator) -> Structure:
    given = structure_of(atoms)
    return replace(given, positions=given.positions + 0.1 * rng.normal(size=given.positions.shape))


def shuffled(structure: Structure, rng: np.random.Generator) -> Structure:
    order = rng.permutation(len(structure))
    return replace(structure, atomic_numbers=structure.atomic_numbers[order], positions=structure.positions[order])


def moved(structure: Structure, matrix: np.ndarray, rng: np.random.Generator) -> Structure:
    return replace(structure, positions=structure.positions @ matrix + rng.normal(size=3))


def require_copy(first: Structure, second: Structure, laid: Superposed) -> None:
    np.testing.assert_array_equal(laid.original, [0, 0])
    np.testing.assert_allclose(laid.positions[0], laid.positions[1], atol=1e-5)  # symmetric to five decimals
    elements = (s.atomic_numbers[order] for s, order in zip((first, second), laid.order, strict=True))
    np.testing.assert_array_equal(*elements)


@pytest.mark.parametrize("reflected", [1, -1])
@pytest.mark.parametrize("name", ["CH4", "C6H6", "CO2", "H2", "NH3", "C2H6", "H", "CH3CH2OH"])
def test_symmetric_molecules_in_any_orientation_and_order(name: str, reflected: int, rng: np.random.Generator) -> None:
    first = structure_of(molecule(name))
    for seed in range(5):
        matrix = reflected * Rotation.random(random_state=seed).as_matrix()
        second = shuffled(moved(first, matrix, rng), rng)
        require_copy(first, second, superpose([first, second]))


def test_the_tolerance_is_that_of_coordinates_with_three_decimals(rng: np.random.Generator) -> None:
    first = rattled(molecule("CH3CH2OH"), rng)
    second = shuffled(moved(first, -Rotation.random(random_state=1).as_matrix(), rng), rng)
    written = [replace(s, positions=np.round(s.positions, 3)) for s in (first, second)]
    np.testing.assert_array_equal(superpose(written).original, [0, 0])
    bent = first.positions.copy()
    bent[0] += [0.0, 2 * SAME_ANGSTROM, 0.0]
    np.testing.assert_array_equal(superpose([first, replace(first, positions=bent)]).original, [0, 1])


def test_each_structure_belongs_to_one_group() -> None:
    """Neighbours in a row of small steps are copies up to the tolerance; the ends are not."""
    start, step = molecule("H2O").positions, np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]]) * 0.9 * SAME_ANGSTROM
    row = [structure_of(Atoms("OHH", start + index * step)) for index in range(6)]
    original = superpose(row).original
    assert len(set(original)) > 1
    np.testing.assert_array_equal(original[original], original)


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        (np.eye(3), 48),
        (np.diag([4.0, 5.0, 6.0]), 8),
        (np.array(bulk("Cu").cell), 48),
        (np.array(bulk("Mg").cell), 24),
        (np.array([[4.0, 0.0, 0.0], [1.0, 5.0, 0.0], [0.3, 0.5, 6.0]]), 2),
        (np.diag([4.0, 4.0, 0.0]), 16),
        (np.diag([4.0, 0.0, 0.0]), 8),
    ],
    ids=["cubic", "orthorhombic", "fcc", "hexagonal", "triclinic", "slab", "wire"],
)
def test_lattices_have_as_many_operations_as_their_point_groups(cell: np.ndarray, count: int) -> None:
    found = lattice_operations(cell)
    assert len(found) == count
    np.testing.assert_allclose(found[0], np.eye(3), atol=1e-12)
    for operation in found:
        np.testing.assert_allclose(operation @ operation.T, np.eye(3), atol=1e-6)
        steps = cell @ operation @ np.linalg.pinv(cell)
        np.testing.assert_allclose(steps, np.round(steps), atol=1e-6)


SALT = bulk("NaCl", "rocksalt", a=5.6, cubic=True)
SLAB = fcc111("Al", (2, 2, 2), vacuum=5.0)
TRICLINIC = Atoms("OOCCC", np.arange(15).reshape(5, 3) ** 1.5 % 6, cell=[[6, 0, 0], [1, 7, 0], [0.3, 0.5, 8]], pbc=True)


@pytest.mark.parametrize("atoms", [SALT, SLAB, TRICLINIC], ids=["salt", "slab", "triclinic"])
def test_crystals_that_are_shifted_reflected_and_shuffled(atoms: Atoms, rng: np.random.Generator) -> None:
    first = rattled(atoms, rng)
    lattice = np.where(first.pbc[:, None], first.cell, 0.0)
    for operation in lattice_operations(lattice)[:: 5 if len(atoms) > 5 else 1]:
        second = moved(first, operation, rng)
        images = rng.integers(-1, 2, (len(first), 3)) @ lattice
        second = shuffled(replace(second, positions=second.positions + images), rng)
        require_copy(first, second, superpose([first, second]))
    other = rattled(atoms, rng)
    np.testing.assert_array_equal(superpose([first, other]).original, [0, 1])


def test_along_a_path_crystals_are_only_shifted() -> None:
    """Hydrogen may go from one site to another that a rotation of the lattice maps it to."""
    cell = np.eye(3) * 4.0
    ends = [Atoms("PdH", [[0, 0, 0], site], cell=cell, pbc=True) for site in ([2.0, 0, 0], [0, 2.0, 0])]
    found = [superpose([structure_of(e) for e in ends], match=False, reflect=r).original[1] for r in (True, False)]
    assert found == [0, 1]


def test_without_exchange_atoms_keep_their_numbers(rng: np.random.Generator) -> None:
    first = rattled(molecule("CH3CH2OH"), rng)
    order = np.arange(9)
    hydrogens = np.flatnonzero(first.atomic_numbers == 1)
    order[hydrogens] = np.roll(hydrogens, 1)
    swapped = replace(first, positions=first.positions[order])
    assert superpose([first, swapped]).original[1] == 0
    assert superpose([first, swapped], match=False).original[1] == 1
