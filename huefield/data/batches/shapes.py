"""Shapes of batches for structures whose sizes are not known in advance, as in predictions.

Each shape compiles a program. A batch takes a compiled shape that holds it, until the work wasted on padding has paid
for another compilation. (Training knows its data and chooses shapes in advance:
:func:`huefield.data.batches.batching.choose_shapes`.)
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int

from huefield.data.batches.batching import BatchShape

ATOMS_AT_ONCE = 1000
STRUCTURES_AT_ONCE = 256
COMPILATION = 250_000
"""Slots of atoms that are predicted in the time of one compilation (5 members of 64 features on a CPU)."""
STEPS = 4
"""Sizes to a doubling."""
FEWEST_ATOMS = 32
"""Atoms of the smallest shape, which small files share."""


@dataclass(eq=False)
class GrowingShapes:
    """Shapes that are made when none fits, or when those made before have wasted more work than a compilation."""

    made: list[BatchShape] = field(default_factory=list)
    wasted: int = 0
    """Slots of padding since the last new shape."""

    def fitting(self, atoms: int, slots: int) -> BatchShape:
        """A shape for this many atoms with this many neighbours.

        Small batches, which are left over at the end, take any shape that holds them.
        """
        own = BatchShape(STRUCTURES_AT_ONCE, rung(max(atoms, FEWEST_ATOMS)), rung(slots))
        held = [shape for shape in self.made if shape.holds(0, atoms, slots)]
        best = min(held, key=lambda shape: shape.cost, default=None)
        if best is not None and 2 * atoms > ATOMS_AT_ONCE:
            self.wasted += max(best.cost - own.cost, 0)
        if best is not None and self.wasted < COMPILATION:
            return best
        self.made.append(own)
        self.wasted = 0
        return own


def rung(count: int) -> int:
    """The next of 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ...: at most a quarter above ``count``."""
    step = max(1, 2 ** (max(count - 1, 1).bit_length() - 1) // STEPS)
    return max(STEPS, -(-count // step) * step)


def grouped(sizes: Int[np.ndarray, " n"], order: Int[np.ndarray, " n"]) -> Iterator[Int[np.ndarray, " m"]]:
    """Structures in this order, in groups of limited numbers of structures and (except for single ones) of atoms."""
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
