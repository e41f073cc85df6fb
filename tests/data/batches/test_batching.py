"""Batches: what is in them, the shapes they take, the order they come in, and their building ahead of time."""

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase.io import iread

from huefield.core.structure import Structure, pack
from huefield.data.batches.batching import (
    Batch,
    BatchOrder,
    BatchShape,
    Place,
    choose_shapes,
    fitting_shape,
    make_batch,
    prefetch,
    rounded_up,
    slot_buckets,
    slots_up,
)
from huefield.data.batches.neighbours import most_neighbours
from tests.paths import SHARED as DATA

CUTOFF = 3.0
SHAPE = BatchShape(4, 24, 28)


def structure(atoms: int, seed: int, *, periodic: bool = False, **labels: object) -> Structure:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(1, 9, atoms).astype(np.uint8)
    cell, pbc = (
        (np.diag([4.0, 5, 6]), np.array([True, True, False])) if periodic else (np.zeros((3, 3)), np.zeros(3, bool))
    )
    return Structure(numbers, rng.uniform(0, 4, (atoms, 3)) + 50, cell, pbc, **labels)  # type: ignore[arg-type]


def examples() -> list[Structure]:
    """With everything, with an energy only, with nothing."""
    return [
        structure(5, 0, energy=-1.5, forces=np.random.default_rng(9).normal(size=(5, 3))),
        structure(4, 1, periodic=True, energy=2.0),
        structure(1, 2),
    ]


@eqx.filter_jit
def pair_energy(batch: Batch) -> jax.Array:
    """Something that depends on all distances and elements, for each structure."""
    graph = batch.graph
    assert graph.neighbours is not None
    lengths = jnp.linalg.norm(graph.vectors(), axis=-1)
    numbers = graph.atomic_numbers.astype(float)
    terms = jnp.where(graph.neighbours.mask, jnp.exp(-lengths) * graph.neighbours.gather(numbers), 0.0)
    return graph.partition.sum(numbers * (1.0 + terms.sum(1)))


class TestBatch:
    def test_it_has_the_shape_asked_for(self) -> None:
        batch = make_batch(examples(), CUTOFF, [SHAPE])
        assert batch.graph.neighbours is not None
        assert batch.graph.neighbours.index.shape == (24, 28)
        assert batch.labels.energy.shape == batch.structure_mask.shape == (4,)

    def test_what_is_padding_and_what_was_not_observed_is_masked(self) -> None:
        batch = make_batch(examples(), CUTOFF, [SHAPE])
        assert batch.structure_mask.tolist() == [True, True, True, False]
        assert batch.labels.energy_mask.tolist() == [True, True, False, False]
        assert batch.labels.forces_mask.tolist() == [True] * 5 + [False] * 19
        assert batch.graph.partition.atom_mask.tolist() == [True] * 10 + [False] * 14
        assert batch.graph.atomic_numbers[10:].tolist() == [0] * 14

    def test_labels_and_cells_are_those_of_the_structures(self, x64: None) -> None:
        given = examples()
        batch = make_batch(given, CUTOFF, [SHAPE])
        assert batch.labels.energy.tolist() == [-1.5, 2.0, 0.0, 0.0]
        np.testing.assert_array_equal(batch.labels.forces[:5], given[0].forces)
        np.testing.assert_array_equal(batch.labels.forces[5:], 0)
        assert batch.graph.cells is not None
        np.testing.assert_array_equal(batch.graph.cells[:3], [s.cell for s in given])

    def test_stresses_become_strain_derivatives_of_crystals_alone(self, x64: None) -> None:
        """Stress times volume, symmetric; a molecule in a box has none, whatever its label says."""
        stress = np.array([[1.0, 0.2, 0.0], [0.4, 2.0, 0.1], [0.0, 0.1, 3.0]])
        boxed = structure(2, 3, energy=0.0, stress=stress)
        boxed = replace(boxed, cell=np.diag([9.0, 9, 9]))
        labels = make_batch([structure(4, 1, periodic=True, stress=stress), boxed], CUTOFF, [SHAPE]).labels
        assert labels.strain is not None
        assert labels.strain_mask.tolist() == [True, False, False, False]
        np.testing.assert_allclose(labels.strain[0], 120 * 0.5 * (stress + stress.T), rtol=1e-12)
        assert not labels.strain[1:].any()

    def test_batches_of_one_data_set_agree_on_having_stresses(self) -> None:
        labelled = structure(4, 1, periodic=True, stress=np.eye(3))
        assert make_batch([labelled], CUTOFF, [SHAPE]).labels.strain is not None
        assert make_batch([labelled], CUTOFF, [SHAPE], stress=False).labels.strain is None
        assert make_batch(examples(), CUTOFF, [SHAPE]).labels.strain is None
        empty = make_batch(examples(), CUTOFF, [SHAPE], stress=True).labels
        assert empty.strain_mask is not None
        assert not empty.strain_mask.any()

    def test_stresses_that_are_not_numbers_are_refused(self) -> None:
        broken = structure(4, 1, periodic=True, stress=np.full((3, 3), np.nan))
        with pytest.raises(ValueError, match=r"stress labels must be finite, but is nan.*leave such structures out"):
            make_batch([broken], CUTOFF, [SHAPE])

    def test_a_structure_is_the_same_alone_and_among_others(self, precision: str) -> None:
        together = pair_energy(make_batch(examples(), CUTOFF, [SHAPE]))
        alone = [float(pair_energy(make_batch([s], CUTOFF, [BatchShape(1, 9, 32)]))[0]) for s in examples()]
        np.testing.assert_allclose(together[:3], alone, rtol=1e-12 if precision == "float64" else 1e-5)
        assert together[3] == 0
        assert together.dtype == precision

    def test_a_block_gives_the_batch_of_its_structures(self) -> None:
        block = pack(examples(), np.arange(3), "test")
        both = make_batch(block, CUTOFF, [SHAPE]), make_batch(examples(), CUTOFF, [SHAPE])
        assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), *both))

    def test_atoms_far_from_the_origin_keep_their_digits(self) -> None:
        near = structure(4, 1, periodic=True)
        far = Structure(near.atomic_numbers, near.positions + np.array([4e6, 0, 0]), near.cell, near.pbc)
        energies = [float(pair_energy(make_batch([s], CUTOFF, [SHAPE]))[0]) for s in (near, far)]
        assert energies[0] == pytest.approx(energies[1], rel=1e-6)

    def test_offsets_are_subtracted_before_energies_are_rounded(self) -> None:
        given = structure(2, 0, energy=-123456.789012)
        batch = make_batch([given], CUTOFF, [SHAPE], energy_offset=np.array([-123456.0]))
        assert batch.labels.energy.dtype == jnp.float32
        assert float(batch.labels.energy[0]) == pytest.approx(-0.789012, abs=1e-7)

    def test_an_offset_without_an_energy_is_no_label(self) -> None:
        batch = make_batch([structure(2, 0)], CUTOFF, [SHAPE], energy_offset=np.array([5.0]))
        assert not batch.labels.energy_mask.any()
        assert not batch.labels.energy.any()

    def test_a_batch_of_nothing_is_padding(self) -> None:
        assert not make_batch([], CUTOFF, [SHAPE]).structure_mask.any()

    def test_offsets_of_another_length_are_refused(self, as_users_run: None) -> None:
        with pytest.raises(ValueError, match=r"energy_offset must have shape \(3\), but has shape \(1,\)"):
            make_batch(examples(), CUTOFF, [SHAPE], energy_offset=np.ones(1))

    def test_labels_that_are_not_numbers_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"forces labels must be finite, but is nan.*leave such structures out"):
            make_batch([structure(2, 0, forces=np.full((2, 3), np.nan))], CUTOFF, [SHAPE])


class TestShapes:
    def test_rounding_takes_eight_steps_to_a_doubling(self) -> None:
        rounded = [rounded_up(n) for n in range(2000)]
        assert sorted({r for r in rounded if 64 < r <= 128}) == list(range(72, 129, 8))
        assert all(n <= r <= max(8, n * 9 / 8) for n, r in enumerate(rounded))

    def test_slots_come_in_pairs(self) -> None:
        assert [slots_up(n) for n in (0, 1, 4, 5, 37)] == [2, 2, 4, 6, 38]

    def test_the_cheapest_shape_that_holds_the_batch_is_taken(self) -> None:
        shapes = [BatchShape(8, 100, 40), BatchShape(8, 200, 8), BatchShape(8, 100, 12)]
        assert fitting_shape(shapes, 8, 90, 8) == BatchShape(8, 100, 12)
        assert fitting_shape(shapes, 8, 110, 8) == BatchShape(8, 200, 8)

    def test_a_batch_that_fits_nowhere_gets_its_own_shape(self) -> None:
        assert fitting_shape([BatchShape(8, 100, 40)], 3, 130, 41) == BatchShape(8, 144, 42)

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_buckets_cost_as_little_as_the_best_borders(self, count: int) -> None:
        rng = np.random.default_rng(0)
        sizes, neighbours = rng.integers(3, 40, 200), rng.integers(1, 30, 200)
        levels = np.arange(1, 16)

        def cost(borders: tuple[int, ...]) -> int:
            slots = [min(b for b in borders if 2 * b >= n) for n in neighbours]
            return int((sizes * slots).sum())

        best = min(cost((*b, 15)) for b in itertools.combinations(levels, count - 1))
        buckets = slot_buckets(sizes, neighbours, count)
        members = [buckets == bucket for bucket in set(buckets)]
        assert sum(sizes[m].sum() * (slots_up(int(neighbours[m].max())) // 2) for m in members) == best
        assert set(buckets) == set(range(count))

    def test_every_batch_fits_in_the_chosen_shapes(self) -> None:
        rng = np.random.default_rng(1)
        sizes = rng.integers(2, 60, 300)
        neighbours = np.minimum(sizes - 1, rng.integers(1, 40, 300))
        buckets = slot_buckets(sizes, neighbours, 3)
        shapes = choose_shapes(sizes, neighbours, buckets, 16)
        assert len(shapes) <= 8
        for epoch in range(20):
            for members in BatchOrder(buckets, 16, jax.random.key(0)).epoch(epoch):
                shape = fitting_shape(shapes, len(members), int(sizes[members].sum()), int(neighbours[members].max()))
                assert shape in shapes

    def test_molecules_of_one_size_need_one_shape_without_padding(self) -> None:
        sizes = np.full(500, 15)
        assert choose_shapes(sizes, sizes - 1, np.zeros(500, int), 64) == (BatchShape(64, 960, 14),)

    @pytest.mark.skipif(not DATA.exists(), reason="the real data of HUEFIELD_DATA are not here")
    def test_molecules_of_ani1x_need_a_handful_of_shapes_that_are_half_full(self) -> None:
        frames = [Structure(a.numbers.astype(np.uint8), a.positions) for a in iread(DATA / "ani1x" / "ani1x_800.xyz")]
        block = pack(frames, np.arange(len(frames)), "ani1x_800.xyz")
        most = most_neighbours(block, 5.0)
        buckets = slot_buckets(block.sizes, most, 3)
        shapes = choose_shapes(block.sizes, most, buckets, 32)
        batches = [
            make_batch([frames[i] for i in members], 5.0, shapes)
            for members in BatchOrder(buckets, 32, jax.random.key(0)).epoch(0)
        ]
        masks = [b.graph.neighbours.mask for b in batches if b.graph.neighbours is not None]
        assert len({m.shape for m in masks}) <= 6
        assert sum(int(m.sum()) for m in masks) > 0.45 * sum(m.size for m in masks)
        assert sum(int(b.structure_mask.sum()) for b in batches) == len(frames)


class TestOrder:
    order = BatchOrder(np.repeat([0, 1, 2], [50, 33, 20]), 8, jax.random.key(7))

    def test_every_structure_comes_once_in_an_epoch(self) -> None:
        for epoch in range(3):
            np.testing.assert_array_equal(np.sort(np.concatenate(self.order.epoch(epoch))), np.arange(103))

    def test_batches_are_full_but_for_one_and_as_many_as_stated(self) -> None:
        sizes = sorted(len(batch) for batch in self.order.epoch(0))
        assert sizes == [7] + [8] * 12
        assert len(self.order) == len(sizes)

    def test_batches_hold_one_bucket_but_for_what_is_left_over(self) -> None:
        mixed = [len(set(self.order.buckets[batch])) > 1 for batch in self.order.epoch(0)]
        assert 0 < sum(mixed) <= 1

    def test_epochs_and_keys_differ_and_repeat(self) -> None:
        def flat(order: BatchOrder, epoch: int) -> list[int]:
            return np.concatenate(order.epoch(epoch)).tolist()

        again = BatchOrder(self.order.buckets, 8, jax.random.key(7))
        other = BatchOrder(self.order.buckets, 8, jax.random.key(8))
        assert flat(self.order, 3) == flat(again, 3)
        assert len({tuple(flat(o, e)) for o in (again, other) for e in range(3)}) == 6

    def test_the_order_is_the_one_that_older_runs_had(self) -> None:
        order = BatchOrder(np.zeros(6, int), 4, jax.random.key(1))
        assert [batch.tolist() for batch in order.epoch(2)] == [[2, 3], [5, 1, 4, 0]]

    @pytest.mark.parametrize("steps", [0, 5, 12, 13, 30])
    def test_going_on_from_a_saved_place_gives_what_would_have_come(self, steps: int) -> None:
        whole = list(itertools.islice(self.order.start(Place()), steps + 20))
        saved = whole[steps - 1][0] if steps else Place()
        rest = list(itertools.islice(self.order.start(saved), 20))
        assert [place for place, _ in rest] == [place for place, _ in whole[steps:]]
        for (_, found), (_, expected) in zip(rest, whole[steps:], strict=True):
            np.testing.assert_array_equal(found, expected)

    def test_places_of_another_data_set_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"position=14\) does not exist: an epoch has 13 batches"):
            next(self.order.start(Place(0, 14)))

    @pytest.mark.parametrize(("structures", "total"), [(0, 3), (2, 0)])
    def test_batches_of_nothing_are_refused(self, structures: int, total: int) -> None:
        found = f"found {structures} structures in a batch, of {total} in all"
        with pytest.raises(ValueError, match=f"batches need at least one structure, but {found}"):
            BatchOrder(np.zeros(total, int), structures, jax.random.key(0))


def no_prefetch_thread() -> bool:
    return not any(thread.name == "prefetch" for thread in threading.enumerate())


class TestPrefetch:
    def test_items_come_in_order_and_the_thread_ends(self) -> None:
        assert list(prefetch(range(20), 3)) == list(range(20))
        assert no_prefetch_thread()

    def test_items_are_made_ahead_but_not_too_far(self) -> None:
        made: list[int] = []
        ahead = prefetch((made.append(i) or i for i in range(50)), 3)  # type: ignore[func-returns-value]
        assert next(ahead) == 0
        deadline = time.monotonic() + 10
        while len(made) < 5 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)
        assert len(made) == 5  # one taken, three in the queue, one in hand
        assert list(ahead) == list(range(1, 50))

    def test_an_error_comes_behind_the_items_before_it(self) -> None:
        def failing() -> Iterator[int]:
            yield 1
            raise OSError("the disk is gone")

        ahead = prefetch(failing(), 2)
        assert next(ahead) == 1
        with pytest.raises(OSError, match="the disk is gone"):
            next(ahead)
        assert no_prefetch_thread()

    def test_stopping_early_ends_the_thread_and_closes_the_source(self) -> None:
        closed = threading.Event()

        def endless() -> Iterator[int]:
            try:
                yield from itertools.count()
            finally:
                closed.set()

        ahead = prefetch(endless(), 2)
        assert [next(ahead), next(ahead)] == [0, 1]
        ahead.close()  # type: ignore[attr-defined]
        assert closed.is_set()
        assert no_prefetch_thread()

    def test_batches_have_the_precision_of_whoever_asks(self, precision: str) -> None:
        (batch,) = prefetch((make_batch(examples(), CUTOFF, [SHAPE]) for _ in range(1)), 1)
        assert batch.graph.positions.dtype == batch.labels.energy.dtype == precision

    def test_a_depth_of_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match="depth must be at least 1, but is 0"):
            prefetch([], 0)
