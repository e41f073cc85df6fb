"""A part of the data with the sizes and offsets of its structures, from which batches are made."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from huefield.core.structure import Block, strain_labels
from huefield.data.batches.batching import Batch, BatchShape, fitting_shape, make_batch
from huefield.data.batches.neighbours import most_neighbours
from huefield.data.dataset import Part


@dataclass(frozen=True, eq=False)
class Prepared:
    """Structures with their sizes, numbers of neighbours and energy offsets."""

    part: Part
    cutoff_angstrom: float
    sizes: Int[np.ndarray, " n"]
    neighbours: Int[np.ndarray, " n"]
    """The largest number of neighbours of an atom, for each structure."""
    offsets: Float[np.ndarray, " n"]
    """Energy of the isolated atoms of each structure [eV], which labels of batches are relative to."""
    stressed: Bool[np.ndarray, " n"] | None = None
    """Structures whose stress is known; None if there are none."""
    weights: Float[np.ndarray, " n"] | None = None
    """Weights of the structures in a loss; None for ones."""

    @classmethod
    def of(
        cls, part: Part, cutoff_angstrom: float, offsets_of: Callable[[Block], Float[np.ndarray, " n"]]
    ) -> "Prepared":
        """Go once through all structures.

        Args:
            part: the structures.
            cutoff_angstrom: pairs closer than this are neighbours.
            offsets_of: energies of the isolated atoms of each structure of a block [eV].
        """
        sizes, neighbours, offsets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
        stressed = [np.zeros(0, bool)]
        for block in part.blocks():
            sizes.append(block.sizes)
            neighbours.append(most_neighbours(block, cutoff_angstrom))
            offsets.append(offsets_of(block))
            stressed.append(strain_labels(block)[1])
        columns = (np.concatenate(found) for found in (sizes, neighbours, offsets, stressed))
        return cls(part, cutoff_angstrom, *columns)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def has_stress(self) -> bool:
        """Whether the stress of any structure is known: then all batches have a place for stresses."""
        return self.stressed is not None and bool(self.stressed.any())

    def batch(self, indices: Int[np.ndarray, " n"], shape: BatchShape) -> Batch:
        """A padded batch in the memory of the host."""
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return make_batch(
                self.part.block(indices),
                self.cutoff_angstrom,
                (shape,),
                energy_offset=self.offsets[indices],
                weights=None if self.weights is None else self.weights[indices],
                stress=self.has_stress,
            )

    def shape_for(self, batches: list[Int[np.ndarray, " _"]], shapes: tuple[BatchShape, ...]) -> BatchShape:
        """The cheapest shape that holds each of some batches."""
        return fitting_shape(
            shapes,
            max(len(indices) for indices in batches),
            max(int(self.sizes[indices].sum()) for indices in batches),
            max(int(self.neighbours[indices].max(initial=0)) for indices in batches),
        )
