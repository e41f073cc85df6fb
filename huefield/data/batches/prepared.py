"""A part of the data with what batches need to know about its structures."""

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float, Int

from huefield.data.batches.batching import Batch, BatchShape, fitting_shape, make_batch
from huefield.data.batches.neighbours import most_neighbours
from huefield.data.dataset import Part
from huefield.data.references import AtomicReferences

TAG = "all"
"""Reference energies are those of one data set: what is trained on."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A part of the data with what batches need to know about all of its structures."""

    part: Part
    cutoff_angstrom: float
    sizes: Int[np.ndarray, " n"]
    neighbours: Int[np.ndarray, " n"]
    """The largest number of neighbours of an atom, for each structure."""
    offsets: Float[np.ndarray, " n"]
    """Energy of the single atoms of each structure, [eV]."""

    @classmethod
    def of(cls, part: Part, cutoff_angstrom: float, references: AtomicReferences) -> "Prepared":
        """Look once at every structure."""
        sizes, neighbours, offsets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
        for block in part.blocks():
            sizes.append(block.sizes)
            neighbours.append(most_neighbours(block, cutoff_angstrom))
            offsets.append(references.offsets(block.sizes, block.atomic_numbers, np.full(len(block), TAG)))
        return cls(part, cutoff_angstrom, *(np.concatenate(found) for found in (sizes, neighbours, offsets)))

    def __len__(self) -> int:
        return len(self.sizes)

    def batch(self, indices: Int[np.ndarray, " n"], shape: BatchShape) -> Batch:
        """A padded batch in the memory of the host."""
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return make_batch(
                self.part.block(indices), self.cutoff_angstrom, (shape,), energy_offset=self.offsets[indices]
            )

    def shape_for(self, batches: list[Int[np.ndarray, " _"]], shapes: tuple[BatchShape, ...]) -> BatchShape:
        """The cheapest shape that holds each of some batches."""
        return fitting_shape(
            shapes,
            max(len(indices) for indices in batches),
            max(int(self.sizes[indices].sum()) for indices in batches),
            max(int(self.neighbours[indices].max(initial=0)) for indices in batches),
        )
