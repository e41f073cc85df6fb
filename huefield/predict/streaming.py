"""Predictions of structures that come block by block and whose sizes nobody knows in advance, in constant memory.

Blocks are gathered into chunks of some thousand structures. Within a chunk structures are batched by their numbers of
neighbours; the order of the chunk is restored behind that. Shapes of batches are made as they are needed and used
again, so that a file of mixed sizes compiles a handful of programs.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from jaxtyping import Int

from huefield.core.structure import Block, joined
from huefield.data.batches.batching import BatchShape, prefetch
from huefield.data.batches.prepared import Prepared
from huefield.data.composition import symbol
from huefield.data.dataset import Part
from huefield.data.readers.base import BadFrameError, Fault
from huefield.model.forcefield import Ensemble
from huefield.predict.predicting import (
    ATOMS_AT_ONCE,
    NumberedBatch,
    foreign_atoms,
    predicted_moments,
    prepared,
)
from huefield.predict.predictions import Predictions

STRUCTURES_AT_ONCE = 256
CHUNK_STRUCTURES = 2048
CHUNK_ATOMS = 32_768
PREFETCHED_CHUNKS = 1
WASTE = 1.5
"""How much more work than its own shape a batch may be, to go without another compilation."""
STEPS = 4
"""Of sizes to a doubling."""
FEWEST_ATOMS = 32
"""In a shape: small files share one, which is compiled but once."""

OnFault = Callable[[Fault], None] | None


def predict_blocks(
    ensemble: Ensemble,
    blocks: Iterable[Block],
    name: str = "",
    *,
    stress: bool = False,
    members: bool = False,
    on_fault: OnFault = None,
    report: Callable[[int], None] = lambda done: None,
) -> Iterator[Predictions]:
    """Predict structures in the order in which they come, some thousand at a time.

    Blocks are taken when they are needed, at most a few chunks ahead of what is yielded.

    Args:
        ensemble: the model.
        blocks: the structures.
        name: of the model.
        stress: whether to predict the stress of structures that are periodic in three directions.
        members: whether to keep what each member says.
        on_fault: is told of each structure that the model cannot do, which is then left out; None to raise a
            :class:`~huefield.data.readers.base.BadFrameError` instead.
        report: is told how many structures are predicted.
    """
    tell = _refuse if on_fault is None else on_fault
    elements, shapes, done = ensemble.members.potential.atomic_config.elements, GrowingShapes(), 0
    known = (kept for block in blocks for kept in _with_known_elements(block, elements, tell))
    chunks = (prepared(ensemble, _part(chunk)) for chunk in chunks_of(known))
    with closing(prefetch(chunks, PREFETCHED_CHUNKS)) as ready:  # type: ignore[type-var]
        for data in ready:
            block = data.part.block(np.arange(len(data)))
            found = predicted_moments(
                ensemble,
                data,
                _batches(data, shapes),
                stress=stress and bool(block.pbc.all(1).any()),
                members=members,
                report=partial(_report_behind, report, done),
            )
            done += len(data)
            finite = found.finite(block.owners)
            for index in np.flatnonzero(~finite):
                tell(Fault(block.source, int(block.frames[index]), "what the model predicts is no finite number"))
            if finite.any():
                kept = block.select(finite)
                yield found.select(finite, block.owners).without_rounding(kept.owners).predictions(name, kept)


@dataclass(frozen=True, eq=False)
class GrowingShapes:
    """Shapes of batches, made when none that is there will do."""

    made: list[BatchShape] = field(default_factory=list)

    def fitting(self, atoms: int, slots: int) -> BatchShape:
        """A shape for so many atoms with so many neighbours.

        Small batches, which are what was left over, take any shape that holds them; others one that is not too large.
        """
        own = BatchShape(STRUCTURES_AT_ONCE, rung(max(atoms, FEWEST_ATOMS)), rung(slots))
        most = WASTE * own.cost if 2 * atoms > ATOMS_AT_ONCE else np.inf
        held = [shape for shape in self.made if shape.holds(0, atoms, slots) and shape.cost <= most]
        if not held:
            self.made.append(own)
        return min(held, key=lambda shape: shape.cost, default=own)


def rung(count: int) -> int:
    """The next of 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ...: at most a quarter above ``count``."""
    step = max(1, 2 ** (max(count - 1, 1).bit_length() - 1) // STEPS)
    return max(STEPS, -(-count // step) * step)


def chunks_of(blocks: Iterable[Block]) -> Iterator[Block]:
    """The same structures in the same order, in blocks of many structures but not too many atoms."""
    waiting: list[Block] = []
    for block in blocks:
        for piece in _pieces(block):
            waiting.append(piece)
            structures, atoms = sum(map(len, waiting)), sum(int(each.sizes.sum()) for each in waiting)
            if structures >= CHUNK_STRUCTURES or atoms >= CHUNK_ATOMS:
                yield _joined(waiting)
                waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(blocks: list[Block]) -> Block:
    first, last = blocks[0].source, blocks[-1].source
    return joined(blocks, first if first == last else f"{first} to {last}")


def _pieces(block: Block) -> Iterator[Block]:
    """A block cut where it has too many atoms for a chunk."""
    piece = block.starts[:-1] // CHUNK_ATOMS
    numbers = np.unique(piece)
    return iter([block]) if len(numbers) == 1 else (block.select(piece == number) for number in numbers)


def _part(block: Block) -> Part:
    return Part(block.source, block, np.arange(len(block)))


def _with_known_elements(block: Block, elements: tuple[str, ...], tell: Callable[[Fault], None]) -> Iterator[Block]:
    """The structures that a model was built for; what the others contain is told."""
    foreign = foreign_atoms(block, elements)
    if not foreign.any():
        yield block
        return
    bad = np.unique(block.owners[foreign])
    for index in bad:
        atoms = slice(block.starts[index], block.starts[index + 1])
        names = ", ".join(symbol(n) for n in np.unique(block.atomic_numbers[atoms][foreign[atoms]]).tolist())
        reason = f"it contains {names}, but the model was trained for {', '.join(elements)} only"
        tell(Fault(block.source, int(block.frames[index]), reason))
    if len(bad) < len(block):
        yield block.select(~np.isin(np.arange(len(block)), bad))


def _report_behind(report: Callable[[int], None], before: int, count: int) -> None:
    report(before + count)


def _refuse(fault: Fault) -> None:
    raise BadFrameError(str(fault))


def _batches(data: Prepared, shapes: GrowingShapes) -> Iterator[NumberedBatch]:
    """All structures once; those with many neighbours first, so that the rest finds shapes that hold it."""
    for indices in grouped(data.sizes, np.argsort(-data.neighbours, kind="stable")):
        shape = shapes.fitting(int(data.sizes[indices].sum()), int(data.neighbours[indices].max()))
        yield indices, data.batch(indices, shape)


def grouped(sizes: Int[np.ndarray, " n"], order: Int[np.ndarray, " n"]) -> Iterator[Int[np.ndarray, " m"]]:
    """Structures in this order, in groups that are neither too many structures nor, unless one is, too many atoms."""
    group: list[int] = []
    atoms = 0
    for index in order.tolist():
        if group and (atoms + sizes[index] > ATOMS_AT_ONCE or len(group) == STRUCTURES_AT_ONCE):
            yield np.array(group)
            group, atoms = [], 0
        group.append(index)
        atoms += int(sizes[index])
    if group:
        yield np.array(group)
