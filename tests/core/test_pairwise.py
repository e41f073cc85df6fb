"""Blocked sums over neighbours and their derivatives against plain gathers, in a crystal with images of an atom."""

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PyTree

from huefield.core import pairwise
from huefield.core.neighbours import Neighbours
from huefield.core.pairwise import sum_over_neighbours
from huefield.core.structure import Structure
from huefield.data.batches.neighbours import neighbour_matrix, neighbour_pairs

pytestmark = pytest.mark.usefixtures("x64")

ATOMS, SLOTS, FEATURES, CUTOFF = 8, 24, 3, 3.0
CELL = np.array([[2.6, 0.0, 0.0], [0.7, 2.9, 0.0], [0.2, -0.6, 3.1]])
FRACTIONAL = np.random.default_rng(0).uniform(size=(3, 3)) / 5 + [[0, 0, 0], [0.4, 0.5, 0.4], [0.7, 0.0, 0.6]]
Inputs = tuple[Array, dict[str, Array], dict[str, Array]]
Sum = Callable[..., PyTree]
BLOCKS = {"one block": 1000, "ragged": 3 * SLOTS, "even": 5 * SLOTS - 1, "rows": 1}
"""Most slots in a block; 8 atoms are one block, 3 + 3 + 2, 4 + 4, and 8 blocks of one."""


def crystal() -> Neighbours:
    """Three atoms in a cell shorter than the cutoff, five padding atoms, and empty slots."""
    structure = Structure(np.ones(3, np.uint8), FRACTIONAL @ CELL, CELL, np.ones(3, bool))
    pairs = neighbour_pairs(structure, CUTOFF)
    assert np.any(pairs.first == pairs.second)
    return neighbour_matrix(pairs, ATOMS, SLOTS)


NEIGHBOURS = crystal()


def inputs() -> Inputs:
    rng = np.random.default_rng(1)
    positions = np.zeros((ATOMS, 3))
    positions[:3] = FRACTIONAL @ CELL
    atoms = {"x": rng.normal(size=(ATOMS, FEATURES)), "y": rng.normal(size=(ATOMS, 3, FEATURES))}
    weights = {"a": rng.normal(size=(2, FEATURES)), "b": rng.normal(size=FEATURES)}
    return jax.tree.map(jnp.asarray, (positions, atoms, weights))


def pair(own: PyTree, other: PyTree, even: PyTree, odd: PyTree, weights: PyTree) -> PyTree:
    """Nonlinear in everything, different in both directions, and zero where ``even`` is."""
    filters = jnp.sin(even @ weights["a"])
    mixed = jnp.tanh(own["x"] * other["x"] ** 2 + weights["b"] * own["x"])
    along = jnp.sum(odd[..., None] * (own["y"] + other["y"] ** 2), axis=-2)
    scalar = filters * mixed * (1.0 + along**2 + along)
    vector = (filters * jnp.cos(other["x"] + 2 * own["x"]))[..., None, :] * (
        odd[..., None] * (1.0 + mixed[..., None, :]) + other["y"] - 0.5 * own["y"]
    )
    return scalar, {"vector": vector}


def plain_sum(
    function: Callable[..., PyTree],
    atoms: PyTree,
    even: PyTree,
    odd: PyTree,
    weights: PyTree,
    neighbours: Neighbours,
    *,
    width: int,
) -> PyTree:
    """All slots at once, with plain gathers."""
    other = jax.tree.map(lambda x: jnp.take(x, neighbours.index, axis=0), atoms)
    own = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], (ATOMS, SLOTS, *x.shape[1:])), atoms)
    return jax.tree.map(lambda x: jnp.sum(x, axis=1), function(own, other, even, odd, weights))


def summed(how: Sum, positions: Array, atoms: PyTree, weights: PyTree, width: int = FEATURES) -> PyTree:
    """Slot quantities from positions, so that they are even and odd, then the sum."""
    vectors = NEIGHBOURS.vectors(positions, jnp.broadcast_to(jnp.asarray(CELL), (ATOMS, 3, 3)))
    lengths = jnp.linalg.norm(vectors, axis=-1)
    inside = jnp.where(NEIGHBOURS.mask, (1 - jnp.minimum(lengths / CUTOFF, 1.0)) ** 3, 0.0)
    even = jnp.stack([inside, inside * jnp.sin(lengths)], axis=-1)
    return how(pair, atoms, even, vectors / lengths[..., None], weights, NEIGHBOURS, width=width)


def derivative(how: Sum, order: int, width: int = FEATURES) -> Callable[..., Inputs]:
    """The gradient of a scalar that needs so many nested backward passes, by positions, atoms and weights."""

    def scalar(*x: PyTree) -> Array:
        first, second = summed(how, *x, width=width)
        return jnp.sum(jnp.sin(3 * first)) + jnp.sum(second["vector"] ** 2 * (1 + first[:, None]))

    for _ in range(order - 1):
        scalar = (lambda inner: lambda *x: _squares(jax.grad(inner, argnums=(0, 1, 2))(*x)))(scalar)
    return jax.grad(scalar, argnums=(0, 1, 2))


@cache
def plain_derivative(order: int) -> Inputs:
    return jax.jit(derivative(plain_sum, order))(*inputs())


def _squares(tree: PyTree) -> Array:
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)) * 1e-2


def assert_close(got: PyTree, expected: PyTree) -> None:
    """To 1e-12 of the largest entry of each array."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert np.abs(other).max() > 1e-3
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12 * np.abs(other).max())


@pytest.fixture(params=BLOCKS)
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(pairwise, "BLOCK_SLOTS", BLOCKS[request.param])
    return request.param


def test_the_sum_is_that_over_plain_gathers(blocks: str) -> None:
    got, expected = (jax.jit(lambda *x, h=how: summed(h, *x))(*inputs()) for how in (sum_over_neighbours, plain_sum))
    assert_close(got, expected)


@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_are_those_of_plain_gathers(order: int, blocks: str) -> None:
    assert_close(jax.jit(derivative(sum_over_neighbours, order))(*inputs()), plain_derivative(order))


@pytest.mark.slow
def test_third_derivatives_are_those_of_plain_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairwise, "BLOCK_SLOTS", 3 * SLOTS)
    assert_close(jax.jit(derivative(sum_over_neighbours, 3))(*inputs()), plain_derivative(3))


def test_wide_functions_get_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    original = pairwise._pair_map
    monkeypatch.setattr(pairwise, "_pair_map", lambda f, rows, *rest: sizes.append(rows) or original(f, rows, *rest))
    monkeypatch.setattr(pairwise, "BLOCK_ELEMENTS", 2 * SLOTS * 100)
    for width in (FEATURES, 100, 10**6):
        jax.eval_shape(lambda *x, w=width: summed(sum_over_neighbours, *x, width=w), *inputs())
    assert sizes == [pairwise.BLOCK_SLOTS // SLOTS, 2, 1]


@pytest.mark.parametrize(
    ("rows", "most", "blocks"), [(96, 85, (2, 48)), (96, 96, (1, 96)), (7, 3, (3, 3)), (5, 1, (5, 1)), (3, 100, (1, 3))]
)
def test_blocks_are_of_equal_size_and_hardly_padded(rows: int, most: int, blocks: tuple[int, int]) -> None:
    assert pairwise.even_blocks(rows, most) == blocks


def test_members_are_summed_and_differentiated_under_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairwise, "BLOCK_SLOTS", 3 * SLOTS)
    positions, atoms, weights = inputs()
    stacked = jax.tree.map(lambda w: jnp.stack([w, 0.5 * w, w - 1]), weights)
    together = jax.jit(jax.vmap(derivative(sum_over_neighbours, 2), in_axes=(None, None, 0)))(positions, atoms, stacked)
    one = jax.jit(derivative(plain_sum, 2))
    singles = [one(positions, atoms, jax.tree.map(lambda w, m=m: w[m], stacked)) for m in range(3)]
    assert_close(together, jax.tree.map(lambda *x: np.stack(x), *singles))


@pytest.mark.parametrize("order", [0, 1, 2])
def test_nothing_scatters(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairwise, "BLOCK_SLOTS", 3 * SLOTS)
    found = {}
    for name, how in (("ours", sum_over_neighbours), ("plain", plain_sum)):
        function = derivative(how, order) if order else lambda *x, h=how: summed(h, *x)
        traced = jax.jit(function).trace(*inputs())
        lowered = traced.lower()
        texts = str(traced.jaxpr), lowered.as_text(), lowered.compile().as_text()
        operations = ("scatter", "stablehlo.scatter", " scatter(")  # names of functions are in the text, too
        found[name] = [operation in text for operation, text in zip(operations, texts, strict=True)]
    assert found["ours"] == [False, False, False]
    assert order == 0 or found["plain"][:2] == [True, True]  # XLA itself may turn them into loops


def test_nothing_as_long_as_all_slots_and_features_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays [A, K, F] would be long; a block holds one row here."""
    monkeypatch.setattr(pairwise, "BLOCK_SLOTS", SLOTS)
    whole = f"f64[{ATOMS},{SLOTS},{FEATURES}]"
    texts = [str(jax.make_jaxpr(derivative(how, 2))(*inputs())) for how in (sum_over_neighbours, plain_sum)]
    vector = f"f64[{ATOMS},{SLOTS},3,{FEATURES}]"
    assert vector in texts[1]
    assert whole in texts[1]
    assert vector not in texts[0]


def test_atoms_without_slots_sum_to_zero() -> None:
    none = neighbour_matrix(neighbour_pairs(Structure(np.ones(1, np.uint8), np.zeros((1, 3))), CUTOFF), 2, 0)
    atoms, weights = jax.tree.map(lambda x: x[:2], inputs()[1]), inputs()[2]
    empty = jnp.zeros((2, 0, 2)), jnp.zeros((2, 0, 3))
    scalar, rest = sum_over_neighbours(pair, atoms, *empty, weights, none, width=FEATURES)
    np.testing.assert_array_equal(scalar, np.zeros((2, FEATURES)))
    np.testing.assert_array_equal(rest["vector"], np.zeros((2, 3, FEATURES)))
