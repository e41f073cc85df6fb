"""Padded batches in few shapes, in an order that a key determines, built in advance.

Each shape of a batch compiles the training step anew, so a training set should need few. Shapes are chosen from
the distribution of sizes and neighbour counts (:func:`choose_shapes`); a batch takes the cheapest one that holds it.

Shapes: n structures of a data set or of a batch before padding; S, A and K include padding.
"""

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from numpy.typing import DTypeLike

from huefield.core import Graph, Labels, Partition
from huefield.core.structure import Block, Structure, pack, strain_labels
from huefield.data.batches.neighbours import block_pairs, near_origin, neighbour_matrix
from huefield.support.checks import require_finite, require_shape
from huefield.support.errors import HuefieldError

SLOT_STEP = 2
"""Slots come in multiples of this."""
SPREAD = 2.0
"""The usual shape of a bucket holds batches up to this many standard deviations above the mean number of atoms."""

Item = TypeVar("Item")


class BatchShape(NamedTuple):
    """Sizes that a batch is padded to."""

    structures: int
    atoms: int
    slots: int

    @property
    def cost(self) -> int:
        """Work for a potential, roughly: the number of slots of all atoms."""
        return self.atoms * self.slots

    def holds(self, structures: int, atoms: int, slots: int) -> bool:
        """Whether a batch of these sizes fits."""
        return structures <= self.structures and atoms <= self.atoms and slots <= self.slots


class Batch(eqx.Module):
    """A padded batch. Padding structures have no atoms and no labels; padding atoms have atomic number 0."""

    graph: Graph
    labels: Labels
    structure_mask: Bool[Array, " S"]
    """False for padding structures."""


def make_batch(
    structures: Sequence[Structure] | Block,
    cutoff_angstrom: float,
    shapes: Sequence[BatchShape],
    *,
    energy_offset: Float[np.ndarray, " n"] | None = None,
    weights: Float[np.ndarray, " n"] | None = None,
    stress: bool | None = None,
) -> Batch:
    """Pack structures into the cheapest shape that holds them.

    A batch that no shape holds gets a shape of its own, rounded up, at the cost of a compilation.
    Atoms are moved next to the origin (:func:`~huefield.data.batches.neighbours.near_origin`), which changes no energy
    or force. Boxes around structures without periodic directions have no meaning and are dropped.

    Args:
        structures: the structures, in this order.
        cutoff_angstrom: pairs closer than this are neighbours.
        shapes: to choose from; see :func:`choose_shapes`.
        energy_offset: subtracted from each energy [eV] in float64, before the energy is rounded to the precision of
            the batch: usually energies of isolated atoms. None for zero.
        weights: of the structures in a loss; None for ones.
        stress: whether the labels have a place for stresses, which then are predicted, too: the same for all batches of
            a data set, since it changes the compiled program. None for those of the structures that have one.
    """
    block = structures if isinstance(structures, Block) else pack(list(structures), np.arange(len(structures)), "batch")
    block = replace(block, positions=near_origin(block))
    pairs, atoms = block_pairs(block, cutoff_angstrom), len(block.positions)
    slots = int(np.bincount(pairs.first).max(initial=0))
    shape = fitting_shape(shapes, len(block), atoms, slots)
    # Rounded, padded and masked on the host: on the device each small operation would compile for each shape.
    dtype, owner = jnp.result_type(float), block.owners
    offset = np.zeros(len(block)) if energy_offset is None else energy_offset
    require_shape("energy_offset", offset, (len(block),))
    energy = block.energy - offset
    for name, labels in (("energy", energy), ("forces", block.forces)):
        require_finite(f"{name} labels", labels, hint="leave such structures out")
    periodic = np.asarray(block.pbc.any(1))[:, None, None]
    arrays = (
        _padded(block.positions, shape.atoms, dtype),
        _padded(block.atomic_numbers, shape.atoms, np.int32),
        _padded(owner, shape.atoms, np.int32, fill=shape.structures),
        _padded(np.where(periodic, block.cells, 0.0), shape.structures, dtype),
        _padded(np.where(block.has_energy, energy, 0.0), shape.structures, dtype),
        _padded(np.where(block.has_forces[owner, None], block.forces, 0.0), shape.atoms, dtype),
        _padded(block.has_energy, shape.structures, bool),
        _padded(block.has_forces[owner], shape.atoms, bool),
        _padded(np.ones(len(block)), shape.structures, bool),
    )
    positions, numbers, index, cells, energy, forces, has_energy, has_forces, present = jax.device_put(arrays)
    neighbours = neighbour_matrix(pairs, shape.atoms, shape.slots)
    graph = Graph(positions, numbers, Partition(index, shape.structures), neighbours, cells)
    strain, has_strain = jax.device_put(_padded_strain(block, shape.structures, dtype, stress))
    weight = None if weights is None else jax.device_put(_padded(weights, shape.structures, dtype))
    return Batch(graph, Labels(energy, forces, has_energy, has_forces, strain, has_strain, weight), present)


def _padded_strain(
    block: Block, structures: int, dtype: DTypeLike, wanted: bool | None
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Strain derivatives of the energy and their mask; None for both if they are not wanted."""
    strain, known = strain_labels(block)
    require_finite("stress labels", strain, hint="leave such structures out")
    if not (known.any() if wanted is None else wanted):
        return None, None
    return _padded(strain, structures, dtype), _padded(known, structures, bool)


def fitting_shape(shapes: Sequence[BatchShape], structures: int, atoms: int, slots: int) -> BatchShape:
    """The cheapest shape that holds a batch; if none does, the batch's own shape, rounded up."""
    fitting = [shape for shape in shapes if shape.holds(structures, atoms, slots)]
    own = BatchShape(max([structures, *(s.structures for s in shapes)]), rounded_up(atoms), slots_up(slots))
    return min(fitting, key=lambda shape: shape.cost, default=own)


def choose_shapes(
    sizes: Int[np.ndarray, " n"], neighbours: Int[np.ndarray, " n"], buckets: Int[np.ndarray, " n"], structures: int
) -> tuple[BatchShape, ...]:
    """Shapes for batches of a data set: for each bucket, and for the rest, one for usual batches and one for any batch.

    Args:
        sizes: atoms of each structure.
        neighbours: the largest number of neighbours of an atom, for each structure.
        buckets: the bucket of each structure, from :func:`slot_buckets`; zeros for one bucket.
        structures: structures in a batch.
    """
    chosen = set()
    for members in [*(buckets == bucket for bucket in np.unique(buckets)), np.ones(len(sizes), bool)]:
        inside = np.sort(sizes[members])[::-1]
        slots = slots_up(int(neighbours[members].max()))
        count = min(structures, len(inside))
        largest = int(inside[:count].sum())
        usual = int(np.ceil(inside.mean() * count + SPREAD * inside.std() * np.sqrt(count)))
        chosen |= {BatchShape(structures, rounded_up(atoms), slots) for atoms in (min(usual, largest), largest)}
    return tuple(sorted(chosen, key=lambda shape: shape.cost))


def slot_buckets(sizes: Int[np.ndarray, " n"], neighbours: Int[np.ndarray, " n"], count: int) -> Int[np.ndarray, " n"]:
    """Sort structures into buckets of similar neighbour counts, so that the total number of slots is smallest.

    Args:
        sizes: atoms of each structure.
        neighbours: the largest number of neighbours of an atom, for each structure.
        count: largest number of buckets.
    """
    slots = -(-neighbours // SLOT_STEP)
    counts, kind = np.unique(slots, return_inverse=True)
    atoms = np.concatenate([[0], np.cumsum(np.bincount(kind, weights=sizes))])
    # best[j]: least cost of the first j slot counts, with the borders of its buckets; one more bucket in each round.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for _ in range(count):
        step = dict(best)
        for end in range(1, len(counts) + 1):
            for begin, (cost, borders) in best.items():
                total = cost + float((atoms[end] - atoms[begin]) * counts[end - 1])
                if begin < end and (end not in step or total < step[end][0]):
                    step[end] = (total, (*borders, end))
        best = step
    return np.searchsorted(np.array(best[len(counts)][1]), kind, side="right")


def rounded_up(count: int) -> int:
    """The next of 8, 9, ... 16, 18, ... 32, 36, ...: eight steps to a doubling, at most one eighth above ``count``."""
    step = max(1, 2 ** (max(count - 1, 1).bit_length() - 4))
    return max(8, -(-count // step) * step)


def slots_up(count: int) -> int:
    """The next multiple of the slot step, and at least one."""
    return max(1, -(-count // SLOT_STEP)) * SLOT_STEP


class Place(NamedTuple):
    """Position in the training data: the epoch, and the next batch in it."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True, eq=False)
class BatchOrder:
    """The structures of each batch of each epoch, determined by the fields alone.

    Within an epoch every structure comes once. Batches hold structures of one bucket; the rest of all
    buckets is batched together. One of these batches may be smaller, and may come anywhere in the epoch.
    """

    buckets: Int[np.ndarray, " n"]
    """The bucket of each structure; zeros for batches drawn from all."""
    structures: int
    """Structures in a batch."""
    key: Key[Array, ""]

    def __post_init__(self) -> None:
        if self.structures < 1 or not len(self.buckets):
            found = f"{self.structures} structures in a batch, of {len(self.buckets)} in all"
            raise HuefieldError(f"batches need at least one structure, but found {found}")

    def __len__(self) -> int:
        """Batches in an epoch."""
        counts = np.bincount(self.buckets)
        return int((counts // self.structures).sum() + -(-(counts % self.structures).sum() // self.structures))

    def epoch(self, epoch: int) -> list[Int[np.ndarray, " b"]]:
        """The batches of an epoch, as indices of structures."""
        rng = np.random.default_rng([*np.asarray(jax.random.key_data(self.key)).ravel().tolist(), epoch])
        shuffled = rng.permutation(len(self.buckets))
        members = [shuffled[self.buckets[shuffled] == bucket] for bucket in np.unique(self.buckets)]
        full = [len(m) // self.structures * self.structures for m in members]
        rest = rng.permutation(np.concatenate([m[f:] for m, f in zip(members, full, strict=True)]))
        rows = [*(m[:f] for m, f in zip(members, full, strict=True)), rest]
        batches = [row[i : i + self.structures] for row in rows for i in range(0, len(row), self.structures)]
        return [batches[i] for i in rng.permutation(len(batches))]

    def start(self, place: Place) -> Iterator[tuple[Place, Int[np.ndarray, " b"]]]:
        """Batches from a place on, without end, each with the place after it, which a checkpoint stores."""
        if place.epoch < 0 or not 0 <= place.position <= len(self):
            raise HuefieldError(
                f"{place} does not exist: an epoch has {len(self)} batches; is the checkpoint of another data set?"
            )
        epoch, position = place
        while True:
            batches = self.epoch(epoch)
            for index in range(position, len(batches)):
                last = index + 1 == len(batches)
                yield Place(epoch + 1, 0) if last else Place(epoch, index + 1), batches[index]
            epoch, position = epoch + 1, 0


def prefetch(items: Iterable[Item], depth: int) -> Iterator[Item]:
    """Take items in a background thread, so that up to ``depth`` of them are ready before they are asked for.

    An exception of the thread is raised here, after the items before it. Closing the iterator ends the thread.
    """
    if depth < 1:
        raise HuefieldError(f"depth must be at least 1, but is {depth}")
    return _prefetched(items, depth)


class _End(NamedTuple):
    error: BaseException | None


def _prefetched(items: Iterable[Item], depth: int) -> Iterator[Item]:
    ready: queue.Queue[Any] = queue.Queue(depth)
    stop = threading.Event()
    double = jnp.result_type(float) == jnp.float64  # a new thread has the default precision
    source = iter(items)

    def produce() -> None:
        error: BaseException | None = None
        try:
            with jax.enable_x64(double):
                for item in source:
                    ready.put(item)
                    if stop.is_set():
                        break
        except BaseException as raised:
            error = raised
        finally:
            getattr(source, "close", lambda: None)()
        if not stop.is_set():
            ready.put(_End(error))

    thread = threading.Thread(target=produce, name="prefetch", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
        while thread.is_alive():
            with contextlib.suppress(queue.Empty):
                ready.get_nowait()  # the thread may wait for room
            thread.join(0.01)


def _padded(values: np.ndarray, length: int, dtype: DTypeLike, fill: int = 0) -> np.ndarray:
    padded = np.full((length, *values.shape[1:]), fill, dtype)
    padded[: len(values)] = values
    return padded
