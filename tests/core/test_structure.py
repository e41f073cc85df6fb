from dataclasses import replace

import numpy as np
import pytest

from huefield.core.structure import TAG, BaselineResult, Block, Structure, joined, pack, stress_volumes
from huefield.data.batches.batching import make_batch


def random_structure(size: int, *, rng: np.random.Generator, labels: bool = True) -> Structure:
    return Structure(
        atomic_numbers=rng.integers(1, 100, size).astype(np.uint8),
        positions=rng.normal(size=(size, 3)),
        cell=rng.normal(size=(3, 3)),
        pbc=rng.integers(0, 2, 3).astype(bool),
        energy=float(rng.normal()) if labels else None,
        forces=rng.normal(size=(size, 3)) if labels else None,
        stress=rng.normal(size=(3, 3)) if labels else None,
        group=f"group {size}",
    )


def same(first: Structure, second: Structure) -> bool:
    """Equal in every field, labels that are missing included."""
    names = ("atomic_numbers", "positions", "cell", "pbc", "energy", "forces", "stress", "group")
    pairs = [(getattr(first, name), getattr(second, name)) for name in names]
    return all((a is None) == (b is None) and (a is None or np.array_equal(a, b)) for a, b in pairs)


@pytest.fixture
def structures() -> list[Structure]:
    rng = np.random.default_rng(0)
    return [random_structure(size, rng=rng, labels=size != 4) for size in (3, 1, 4, 7)]


@pytest.fixture
def block(structures: list[Structure]) -> Block:
    return pack(structures, np.arange(4), "here.xyz")


def test_what_is_packed_comes_out_again(structures: list[Structure], block: Block) -> None:
    assert len(block) == 4
    assert all(same(a, b) for a, b in zip(structures, block, strict=True))
    assert not same(structures[0], block[1])


def test_labels_that_are_missing_are_masked_and_hold_zeros(block: Block) -> None:
    np.testing.assert_array_equal(block.has_energy, [True, True, False, True])
    np.testing.assert_array_equal(block.has_forces, block.has_energy)
    np.testing.assert_array_equal(block.has_stress, block.has_energy)
    assert not block.forces[4:8].any()
    assert block.energy[2] == 0


def test_select_is_the_same_as_packing_fewer(structures: list[Structure], block: Block) -> None:
    fewer = block.select(np.array([True, False, False, True]))
    assert [len(s) for s in fewer] == [3, 7]
    assert same(fewer[0], structures[0])
    assert same(fewer[1], structures[3])
    np.testing.assert_array_equal(fewer.frames, [0, 3])
    assert fewer.source == "here.xyz"


def test_nothing_can_be_packed_and_selected(block: Block) -> None:
    assert len(pack([], np.arange(0), "nowhere")) == 0
    assert list(block.select(np.zeros(4, bool))) == []


@pytest.mark.parametrize("index", [-1, 4])
def test_index_out_of_range_says_how_many_there_are(block: Block, index: int) -> None:
    with pytest.raises(IndexError, match=f"structure {index} is out of range: the block of here.xyz has 4"):
        block[index]


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    ("name", "shape"), [("positions", (3, 3)), ("forces", (1, 3)), ("stress", (6,)), ("cell", (3,)), ("pbc", (1,))]
)
def test_structure_refuses_arrays_that_do_not_fit(name: str, shape: tuple[int, ...]) -> None:
    fields = {"atomic_numbers": np.array([1, 8], np.uint8), "positions": np.zeros((2, 3))}
    with pytest.raises(ValueError, match=f"{name} must have shape .* but has shape"):
        Structure(**{**fields, name: np.zeros(shape)})


@pytest.mark.usefixtures("as_users_run")
def test_block_names_the_array_that_does_not_fit(block: Block) -> None:
    fields = {**block.__dict__, "forces": np.zeros((3, 3))}
    fields.pop("starts", None)
    with pytest.raises(ValueError, match=r"forces of here.xyz must have shape \(15, 3\), but has shape \(3, 3\)"):
        Block(**fields)


BOX = np.diag([10.0, 11.0, 12.0])


@pytest.mark.parametrize(
    ("cell", "pbc", "volume"),
    [
        (BOX, (True, True, True), 1320.0),
        (BOX, (True, True, False), 1320.0),
        (BOX, (False, False, False), 0.0),
        (np.zeros((3, 3)), (False, False, False), 0.0),
        (np.diag([10.0, 11.0, 0.0]), (True, True, False), 0.0),
        (BOX[[0, 1, 1]], (True, True, False), 0.0),
        (-BOX, (True, True, True), 1320.0),
    ],
    ids=["crystal", "slab", "molecule in a box", "molecule", "slab without height", "flat cell", "left-handed"],
)
def test_the_rule_for_a_stress(cell: np.ndarray, pbc: tuple[bool, ...], volume: float) -> None:
    """One rule for arrays of cells and for graphs of batches."""
    assert stress_volumes(cell, np.array(pbc)) == pytest.approx(volume, rel=1e-12)
    structure = Structure(np.array([8], np.uint8), np.zeros((1, 3)), cell, np.array(pbc))
    assert float(make_batch([structure], 3.0, ()).graph.volumes()[0]) == pytest.approx(volume, rel=1e-6)


def _with_results() -> Block:
    methane, hydrogen = _atoms([6, 1, 1, 1, 1], energy=-3.0), _atoms([1, 1], energy=-2.0)
    results = [BaselineResult(-2.5, np.full((5, 3), 0.25), np.eye(3)), None]
    return pack([methane, hydrogen], np.arange(2), "a").with_baseline(results)


def _atoms(numbers: list[int], energy: float) -> Structure:
    count = len(numbers)
    return Structure(
        np.array(numbers, np.uint8), np.arange(3.0 * count).reshape(count, 3), energy=energy, forces=np.ones((count, 3))
    )


def test_results_of_a_baseline_follow_their_structures() -> None:
    block = _with_results()
    swapped = block.block(np.array([1, 0]))
    assert swapped[0].baseline is None
    found = swapped[1].baseline
    assert found is not None
    assert found.energy == -2.5
    np.testing.assert_array_equal(found.forces, np.full((5, 3), 0.25))
    again = pack(list(block), block.frames, "again")
    assert again.baseline is not None
    np.testing.assert_array_equal(again.baseline.known, [True, False])
    np.testing.assert_array_equal(again.baseline.has_stress, [True, False])


def test_blocks_with_and_without_a_baseline_are_joined() -> None:
    block = _with_results()
    plain = pack([_atoms([8], -1.0)], np.arange(1), "b")
    found = joined([plain, block], "both")
    assert found.baseline is not None
    np.testing.assert_array_equal(found.baseline.known, [False, True, False])
    assert found[1].baseline is not None
    assert joined([plain, plain], "plain").baseline is None


def test_labels_relative_to_a_baseline_are_its_errors() -> None:
    block = _with_results().block(np.array([0]))
    relative = block.relative_to_baseline()
    np.testing.assert_allclose(relative.energy, [-0.5])
    np.testing.assert_allclose(relative.forces, np.full((5, 3), 0.75))
    assert relative.baseline is None
    assert not relative.has_stress.any()
    with pytest.raises(ValueError, match="known for every structure"):
        _with_results().relative_to_baseline()


def test_structures_belong_to_one_data_set_unless_told() -> None:
    plain = pack([_atoms([8], -1.0)], np.arange(1), "b")
    tagged = replace(plain, tags=("pbe",))
    assert plain.tags == (TAG,)
    assert joined([plain, tagged], "both").block(np.array([1, 0])).tags == ("pbe", TAG)
    assert pack(list(tagged), tagged.frames, "again").tags == ("pbe",)
