"""Checks of the two ends of a reaction path."""

import numpy as np
from ase import Atoms
from ase.mep.neb import interpolate

from huefield.ase.calculator import structure_of
from huefield.core.superposition import superpose
from huefield.support.errors import HuefieldError

SAME_ANGSTROM = 0.05
"""Distance in configuration space below which two structures are the same."""


def require_same_atoms(reactant: Atoms, product: Atoms, name: str = "product") -> None:
    """Raise unless two structures have the same atoms in the same order, in the same cell.

    Args:
        reactant: one end.
        product: the other end, or an image.
        name: name of the latter in messages.
    """
    if len(reactant) != len(product) or (reactant.numbers != product.numbers).any():
        raise HuefieldError(
            f"reactant ({reactant.get_chemical_formula()}) and {name} ({product.get_chemical_formula()}) must have "
            "the same atoms in the same order, because a path moves each atom from one to the other"
        )
    if (reactant.pbc != product.pbc).any() or (reactant.pbc.any() and not np.allclose(reactant.cell, product.cell)):
        raise HuefieldError(f"reactant and {name} must be in the same cell, periodic in the same directions")


def require_different(reactant: Atoms, product: Atoms, verb: str) -> None:
    """Raise if both ends are the same structure, with each atom in its place.

    A path may well exchange equal atoms, or lead to the mirror image, as in the inversion of ammonia.
    """
    first, last = superpose([structure_of(reactant), structure_of(product)], match=False, reflect=False).positions
    apart = float(np.linalg.norm(first - last))
    if apart < SAME_ANGSTROM:
        raise HuefieldError(
            f"reactant and product {verb} the same structure ({apart:.2g} Å apart in configuration space), so there is "
            "no path between them: give another product, or other starts to relax"
        )


def require_same_constraints(reactant: Atoms, product: Atoms) -> None:
    """Raise if the positions of fixed atoms differ between the ends."""
    try:
        interpolate([reactant.copy(), reactant.copy(), product.copy()], mic=bool(reactant.pbc.any()))
    except RuntimeError as error:
        raise HuefieldError(
            "fixed atoms must have the same positions in reactant and product: move them, or remove the constraints"
        ) from error
