"""Shapes of batches whose sizes are not known in advance."""

import numpy as np

from huefield.data.batches.shapes import (
    ATOMS_AT_ONCE,
    COMPILATION,
    STRUCTURES_AT_ONCE,
    GrowingShapes,
    grouped,
    rung,
)


def test_sizes_that_nobody_knew_take_a_handful_of_shapes() -> None:
    """Molecules of 2 to 50 atoms in a row of chunks, as in ANI-1x."""
    rng, shapes = np.random.default_rng(0), GrowingShapes()
    work = needed = 0
    for _ in range(20):
        sizes = rng.integers(2, 51, 1000)
        slots = np.minimum(sizes - 1, 40 - rng.integers(0, 5, 1000))
        for indices in grouped(sizes, np.argsort(-slots, kind="stable")):
            atoms, most = int(sizes[indices].sum()), int(slots[indices].max())
            shape = shapes.fitting(atoms, most)
            assert shape.holds(len(indices), atoms, most)
            work, needed = work + shape.cost, needed + atoms * most
    assert len(shapes.made) <= 8
    assert work < 1.4 * needed


def test_what_is_left_over_needs_no_shape_of_its_own() -> None:
    shapes = GrowingShapes()
    full = shapes.fitting(990, 20)
    assert all(shapes.fitting(12, 3) is full for _ in range(COMPILATION // 1000))
    assert shapes.fitting(5000, 20).atoms >= 5000


def test_another_shape_is_made_when_the_waste_has_paid_for_it() -> None:
    shapes = GrowingShapes()
    full = shapes.fitting(990, 20)
    before = 0
    while (shape := shapes.fitting(990, 8)) is full:
        before += 1
    waste = full.cost - shape.cost
    assert COMPILATION - waste <= before * waste <= COMPILATION
    assert shapes.fitting(990, 8) is shape
    assert shapes.fitting(990, 20) is full


def test_groups_hold_every_structure_once_and_not_too_much() -> None:
    sizes = np.array([3] * 600 + [400, 700, 5000, 400])
    found = list(grouped(sizes, np.arange(len(sizes))[::-1]))
    assert np.concatenate(found).tolist() == list(range(604))[::-1]
    assert max(map(len, found)) == STRUCTURES_AT_ONCE
    assert [sizes[group].sum() for group in found if sizes[group].sum() > ATOMS_AT_ONCE] == [5000]


def test_rungs() -> None:
    assert [rung(n) for n in (0, 1, 4, 5, 8, 9, 11, 17, 1000, 1025)] == [4, 4, 4, 5, 8, 10, 12, 20, 1024, 1280]
    assert all(n <= rung(n) <= max(4, 1.25 * n) for n in range(1, 3000))
