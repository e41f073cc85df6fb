"""Batches: which structures, in which order, for which member."""

from itertools import islice

import jax
import numpy as np
import pytest

from huefield.core.structure import TAG
from huefield.data.batches.batching import Place
from huefield.data.batches.prepared import Prepared
from huefield.data.dataset import BundledData, open_part
from huefield.data.references import AtomicReferences
from huefield.training.feed import MANY_STEPS, Feed
from huefield.training.mesh import Layout, MeshConfig
from tests.training.helpers import write_waters

SIZE = 11
OFFSET = -1.0 - 2 * 0.5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    path = write_waters(tmp_path_factory.mktemp("data") / "waters.xyz", SIZE)
    part = open_part("train", [path])
    return Prepared.of(part, 3.0, AtomicReferences({TAG: {1: -0.5, 8: -1.0}}).of_block)


def feed(data: Prepared, members: int = 2, seed: int = 0) -> Feed:
    keys = [jax.random.fold_in(jax.random.key(seed), member) for member in range(members)]
    return Feed(data, Layout(members, MeshConfig()), 4, 1, keys)


def order(given: Feed, place: Place = Place(), count: int = 9) -> list[tuple[Place, list[list[int]]]]:  # noqa: B008
    return [(after, [b.tolist() for b in batches]) for after, batches in islice(given.indices(place), count)]


def test_the_order_depends_on_the_key_and_nothing_else(data: Prepared) -> None:
    assert order(feed(data)) == order(feed(data))
    assert order(feed(data)) != order(feed(data, seed=1))
    first, second = zip(*(batches for _, batches in order(feed(data))), strict=True)
    assert first != second


def test_a_member_has_the_same_order_alone(data: Prepared) -> None:
    alone = [(after, batches[:1]) for after, batches in order(feed(data))]
    assert order(feed(data, members=1)) == alone


def test_each_epoch_has_every_structure_once(data: Prepared) -> None:
    for epoch in range(3):
        batches = [batches for _, batches in order(feed(data))[3 * epoch : 3 * epoch + 3]]
        for member in range(2):
            assert sorted(index for batch in batches for index in batch[member]) == list(range(SIZE))


def test_from_any_place_it_goes_on_as_it_would_have(data: Prepared) -> None:
    whole = order(feed(data))
    for done, (after, _) in enumerate(whole[:-1], 1):
        assert order(feed(data), after, 9 - done) == whole[done:]


def test_batches_hold_what_indices_say_less_the_energies_of_single_atoms(data: Prepared) -> None:
    given = feed(data)
    for (_, batch), (_, indices) in zip(islice(given.start(Place()), 3), given.indices(Place()), strict=False):
        for member, chosen in enumerate(indices):
            energy = np.asarray(batch.labels.energy[member, 0])
            expected = data.part.block(chosen).energy - OFFSET
            np.testing.assert_allclose(energy[: len(chosen)], expected, rtol=1e-6)
            assert np.asarray(batch.structure_mask[member, 0]).sum() == len(chosen)


def test_a_batch_is_never_larger_than_the_data(data: Prepared) -> None:
    large = Feed(data, Layout(1, MeshConfig()), 64, 1, [jax.random.key(0)])
    _, (indices,) = next(large.indices(Place()))
    assert sorted(indices.tolist()) == list(range(SIZE))


def test_long_stages_are_not_padded_to_the_largest_batch_there_could_be() -> None:
    part = BundledData(train_limit=100).load()["train"]
    mixed = Prepared.of(part, 3.0, AtomicReferences({TAG: dict.fromkeys((1, 6, 7, 8), 0.0)}).of_block)
    arguments = (mixed, Layout(1, MeshConfig()), 8, 1, [jax.random.key(0)])
    short, long = Feed(*arguments), Feed(*arguments, steps=MANY_STEPS)
    usual, largest = long.shapes
    assert short.shapes == (largest,)
    assert mixed.sizes.mean() * 8 < usual.atoms < largest.atoms
    (_, padded), (_, tight) = next(short.start(Place())), next(long.start(Place()))
    assert (padded.graph.positions.shape[2], tight.graph.positions.shape[2]) == (largest.atoms, usual.atoms)
    assert padded.labels.energy.tolist() == tight.labels.energy.tolist()
