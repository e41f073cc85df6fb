"""Neighbours of the atoms of a batch, as a matrix of atoms and slots that is differentiated without scatters.

Shapes: A atoms (padding included), K neighbour slots of an atom. Slot (i, k) has the flat number i K + k.

A list that holds each pair in both directions has a permutation P of its slots that turns each pair round; an empty
slot is its own reverse. P is an involution, P P = 1, and so symmetric, Pᵀ = P. With B = "give each slot the value of
its own atom", gathering the neighbours' values is P B and its transpose is Bᵀ P: permute, then sum over K. Neither this
nor any further derivative scatters; sums have a fixed order, so that results repeat on every device.

This is the container; :mod:`huefield.data.batches.neighbours` searches neighbours and builds it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8, Shaped

from huefield.support.checks import require_shape

EMPTY_SLOT_ANGSTROM = 100.0
"""Length of the vectors in empty slots: beyond every cutoff, and with finite derivatives of everything."""


class Neighbours(eqx.Module):
    """The neighbours of each atom of a batch, in both directions."""

    index: Int[Array, "A K"]
    """Row of the neighbour; in an empty slot the atom's own."""
    mask: Bool[Array, "A K"]
    """False for empty slots."""
    shifts: Int8[Array, "A K 3"]
    """Lattice vectors from the neighbour's position to its image next to the atom. Whole numbers: a strain acts on the
    positions and on the cell, and does not change them."""
    reverse: Int[Array, "A K"]
    """Flat number of the slot that holds the reversed pair; an empty slot has its own number."""
    cutoff_angstrom: float = eqx.field(static=True)
    """All pairs closer than this are included. Farther pairs may be, if neighbours are kept while atoms move."""

    def __check_init__(self) -> None:
        shape = self.index.shape
        require_shape("index of neighbours", self.index, (None, None))
        require_shape("mask of neighbours", self.mask, shape)
        require_shape("shifts of neighbours", self.shifts, (*shape, 3))
        require_shape("reverse of neighbours", self.reverse, shape)

    @property
    def num_slots(self) -> int:
        """Slots of each atom, K."""
        return self.index.shape[1]

    def swap(self, per_pair: Shaped[Array, " A K *rest"]) -> Shaped[Array, " A K *rest"]:
        """Give each pair the value of its reversed pair; empty slots keep theirs. Linear, and its own transpose."""

        def permute(values: Shaped[Array, " A K *rest"]) -> Shaped[Array, " A K *rest"]:
            flat = values.reshape(-1, *values.shape[2:])
            return flat.at[self.reverse].get(mode="promise_in_bounds")

        if not jnp.issubdtype(per_pair.dtype, jnp.inexact):
            return permute(per_pair)
        # Applying P solves P x = b, and JAX differentiates solutions of symmetric systems by solving again: forward,
        # backward, vectorised and to any order, with P for every derivative. The solution costs one permutation.
        return jax.lax.custom_linear_solve(permute, per_pair, lambda _, values: permute(values), symmetric=True)

    def gather(self, per_atom: Shaped[Array, " A *rest"]) -> Shaped[Array, " A K *rest"]:
        """Give each slot the value of the neighbour; an empty slot has the atom's own, for the caller to mask."""
        num_atoms, num_slots = self.index.shape
        return self.swap(jnp.broadcast_to(per_atom[:, None], (num_atoms, num_slots, *per_atom.shape[1:])))

    def vectors(
        self, positions: Float[Array, "A 3"], atom_cells: Float[Array, "A 3 3"] | None = None
    ) -> Float[Array, "A K 3"]:
        """Vectors from each atom to its neighbours, r_j + S·cell − r_i, in Å.

        Empty slots hold a constant vector of length ``EMPTY_SLOT_ANGSTROM``: norms and directions have finite
        derivatives there, and whatever a cutoff function multiplies vanishes by itself.

        Args:
            positions: of the atoms, in Å.
            atom_cells: the cell of each atom's structure, lattice vectors as rows; None where nothing is periodic.
        """
        vectors = self.gather(positions) - positions[:, None]
        if atom_cells is not None:
            vectors = vectors + jnp.einsum("aks,asx->akx", self.shifts.astype(positions.dtype), atom_cells)
        empty = jnp.array([EMPTY_SLOT_ANGSTROM, 0.0, 0.0], positions.dtype)
        return jnp.where(self.mask[..., None], vectors, empty)
