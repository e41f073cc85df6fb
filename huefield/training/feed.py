"""Batches for all members, divided over the devices of a :class:`~huefield.training.mesh.Layout`.

Each member has its own order of structures. The batches of one step have one shape, the cheapest that holds all of
them. It follows from sizes that every process knows, so processes need not communicate to agree on it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Array, Float, Int, Key

from huefield.data.batches.batching import Batch, BatchOrder, Place, choose_shapes, slot_buckets
from huefield.data.batches.prepared import Prepared
from huefield.data.dataset import Part
from huefield.data.references import AtomicReferences
from huefield.training.mesh import Layout, own_share, shared

MANY_STEPS = 5000
"""Number of steps from which a second program for batches of usual size pays: its steps can take half the time."""


def prepare(
    part: Part, cutoff_angstrom: float, references: AtomicReferences, weights: Mapping[str, float] = {}
) -> Prepared:
    """Prepare a part of the data; each process of a job counts neighbours in its share and sends them to the others.

    Args:
        part: the structures.
        cutoff_angstrom: pairs closer than this are neighbours.
        references: energies of isolated atoms of each data set.
        weights: of data sets in the loss, where they differ from 1.
    """
    own = Prepared.of(part.share(own_share(len(part))), cutoff_angstrom, references.of_block)
    stressed = np.zeros(len(own), bool) if own.stressed is None else own.stressed
    columns = (shared(column, len(part)) for column in (own.sizes, own.neighbours, own.offsets, stressed))
    return replace(Prepared(part, cutoff_angstrom, *columns), weights=_weights_of(part, weights))


def _weights_of(part: Part, weights: Mapping[str, float]) -> Float[np.ndarray, " n"] | None:
    """Weight of each structure; None if all are 1, so that nothing is computed with them."""
    if all(weight == 1.0 for weight in weights.values()):
        return None
    return part.of_each_dataset({tag: weights.get(tag, 1.0) for tag in part.datasets})


class AbstractFeed(ABC):
    """An endless sequence of batches that can start at any place."""

    @abstractmethod
    def indices(self, place: Place) -> Iterator[tuple[Place, list[Int[np.ndarray, " _"]]]]:
        """The structures of each member's batch, and the place after them."""

    @abstractmethod
    def start(self, place: Place) -> Iterator[tuple[Place, Batch]]:
        """Batches with leading axes for members and devices, and the place after each."""


class Feed(AbstractFeed):
    """Batches of the training structures."""

    def __init__(
        self,
        data: Prepared,
        layout: Layout,
        batch_size: int,
        num_buckets: int,
        keys: list[Key[Array, ""]],
        *,
        steps: int = 0,
    ) -> None:
        buckets = slot_buckets(data.sizes, data.neighbours, num_buckets)
        self.data, self.layout = data, layout
        self.orders = [BatchOrder(buckets, min(batch_size, len(data)), key) for key in keys]
        per_device = -(-min(batch_size, len(data)) // layout.data_parts)
        shapes = choose_shapes(data.sizes, data.neighbours, buckets, per_device)
        pays = num_buckets > 1 or steps >= MANY_STEPS
        self.shapes = shapes if pays else shapes[-1:]  # each shape compiles a program of its own

    def indices(self, place: Place) -> Iterator[tuple[Place, list[Int[np.ndarray, " _"]]]]:
        """The structures of each member's batch, and the place after them."""
        for steps in zip(*(order.start(place) for order in self.orders), strict=True):
            yield steps[0][0], [indices for _, indices in steps]

    def start(self, place: Place) -> Iterator[tuple[Place, Batch]]:
        """Batches with leading axes for members and devices, and the place after each."""
        for after, members in self.indices(place):
            parts = [np.array_split(indices, self.layout.data_parts) for indices in members]
            shape = self.data.shape_for([part for member in parts for part in member], self.shapes)
            cells = {(m, d): self.data.batch(parts[m][d], shape) for m, d in self.layout.cells(self.layout.batches)}
            yield after, self.layout.stack(cells, self.layout.batches)


def validation_batches(data: Prepared, layout: Layout, batch_size: int) -> list[Batch]:
    """Batches with every structure of a part once, in order; all members share them."""
    step = batch_size * layout.data_parts
    shape = choose_shapes(data.sizes, data.neighbours, np.zeros(len(data), np.int64), batch_size)[-1]
    batches = []
    for first in range(0, len(data), step):
        parts = np.array_split(np.arange(first, min(first + step, len(data))), layout.data_parts)
        cells = {(0, d): data.batch(parts[d], shape) for _, d in layout.cells(layout.shared)}
        batches.append(layout.stack(cells, layout.shared))
    return batches
