"""Neighbour matrices: gathering and its derivatives against plain indexing, vectors against loops."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from huefield.core import Graph, Partition
from huefield.core.neighbours import EMPTY_SLOT_ANGSTROM, Neighbours
from huefield.potentials.base import AbstractPotential, AtomOutputs, differentiate
from huefield.support.config import FrozenConfig

ATOMS, SLOTS = 6, 5
PAIRS = [(0, 1, (0, 0, 0)), (0, 1, (1, 0, 0)), (2, 2, (0, 1, 0)), (1, 2, (0, -1, 2)), (3, 4, (0, 0, 0))]
"""Each once, in two structures of three and two atoms: twice the same atoms, an atom's own image; atom 5 is padding."""
PARTITION = Partition(jnp.array([0, 0, 0, 1, 1, 2], jnp.int32), 2)


def example() -> Neighbours:
    """The pairs in a matrix, put there one by one."""
    index = np.repeat(np.arange(ATOMS, dtype=np.int32)[:, None], SLOTS, axis=1)
    reverse = np.arange(ATOMS * SLOTS, dtype=np.int32).reshape(ATOMS, SLOTS)
    mask, shifts, used = np.zeros((ATOMS, SLOTS), bool), np.zeros((ATOMS, SLOTS, 3), np.int8), np.zeros(ATOMS, int)
    for i, j, shift in PAIRS:
        slots = []
        for atom, other, sign in ((i, j, 1), (j, i, -1)):
            slot = atom, used[atom]
            index[slot], mask[slot], shifts[slot] = other, True, sign * np.array(shift)
            slots.append(slot)
            used[atom] += 1
        reverse[slots[0]] = slots[1][0] * SLOTS + slots[1][1]
        reverse[slots[1]] = slots[0][0] * SLOTS + slots[0][1]
    return Neighbours(*(jnp.asarray(a) for a in (index, mask, shifts, reverse)), cutoff_angstrom=5.0)


def normal(*shape: int, seed: int = 0) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


Gather = Callable[[Array], Array]
NEIGHBOURS = example()
WEIGHTS = np.random.default_rng(3).normal(size=(ATOMS, SLOTS, 2))


def plain(values: Array) -> Array:
    return values[NEIGHBOURS.index]


def energy(gather: Gather, values: Array) -> Array:
    """Something of which every derivative depends on the values."""
    return jnp.sum(jnp.sin(gather(values)) * jnp.asarray(WEIGHTS) * values[:, None] ** 2)


def derivative(order: int, gather: Gather) -> Gather:
    """A scalar that needs so many nested backward passes, and one more gradient."""

    def scalar(values: Array) -> Array:
        return energy(gather, values)

    for _ in range(order - 1):
        scalar = (lambda inner: lambda values: jnp.sum(jax.grad(inner)(values) ** 2))(scalar)
    return jax.grad(scalar)


@pytest.mark.parametrize("shape", [(ATOMS,), (ATOMS, 2), (ATOMS, 3, 2)])
def test_each_slot_gets_the_value_of_its_neighbour(shape: tuple[int, ...], precision: str) -> None:
    values = normal(*shape)
    assert values.dtype == precision
    np.testing.assert_array_equal(NEIGHBOURS.gather(values), plain(values))


def test_whole_numbers_are_gathered_too() -> None:
    numbers = jnp.array([1, 6, 7, 8, 9, 0])
    np.testing.assert_array_equal(NEIGHBOURS.gather(numbers), plain(numbers))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivatives_equal_those_of_plain_indexing(order: int, x64: None) -> None:
    values = normal(ATOMS, 2)
    ours, theirs = (jax.jit(derivative(order, g))(values) for g in (NEIGHBOURS.gather, plain))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_no_backward_pass_scatters(order: int) -> None:
    values = normal(ATOMS, 2)
    texts = {}
    for name, gather in (("ours", NEIGHBOURS.gather), ("plain", plain)):
        function = derivative(order, gather)
        texts[name] = str(jax.make_jaxpr(function)(values)), jax.jit(function).lower(values).as_text()
    assert all("scatter" in text for text in texts["plain"])
    assert not any("scatter" in text for text in texts["ours"])


def test_the_vectors_are_differentiated_twice_without_a_scatter() -> None:
    def function(positions: Array) -> Array:
        return jnp.sum(jnp.sin(jnp.linalg.norm(NEIGHBOURS.vectors(positions), axis=-1)))

    twice = jax.grad(lambda positions: jnp.sum(jax.grad(function)(positions) ** 2))
    assert "scatter" not in str(jax.make_jaxpr(twice)(normal(ATOMS, 3)))


def test_forward_mode_agrees_with_plain_indexing(x64: None) -> None:
    values, tangent = normal(ATOMS, 2), normal(ATOMS, 2, seed=1)
    ours, theirs = (
        jax.jit(lambda g=g: jax.jvp(derivative(1, g), (values,), (tangent,))[1])() for g in (NEIGHBOURS.gather, plain)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_members_are_gathered_and_differentiated_under_vmap(x64: None) -> None:
    values = normal(4, ATOMS, 2)
    vectorised, one_by_one = jax.jit(jax.vmap(derivative(2, NEIGHBOURS.gather))), jax.jit(derivative(2, plain))
    np.testing.assert_allclose(vectorised(values), [one_by_one(v) for v in values], rtol=1e-12)


def test_swapping_twice_changes_nothing() -> None:
    values = normal(ATOMS, SLOTS, 2)
    assert not np.array_equal(NEIGHBOURS.swap(values), values)
    np.testing.assert_array_equal(NEIGHBOURS.swap(NEIGHBOURS.swap(values)), values)


def test_vectors_go_from_the_atom_to_the_image_of_its_neighbour(x64: None) -> None:
    graph = Graph(normal(ATOMS, 3), jnp.ones(ATOMS, int), PARTITION, NEIGHBOURS, normal(2, 3, 3, seed=1))
    vectors = jax.jit(Graph.vectors)(graph)
    positions, cells, owner = (np.asarray(x) for x in (graph.positions, graph.cells, PARTITION.structure_index))
    index, mask, shifts = (np.asarray(x) for x in (NEIGHBOURS.index, NEIGHBOURS.mask, NEIGHBOURS.shifts))
    for i, k in np.ndindex(ATOMS, SLOTS):
        expected = np.array([EMPTY_SLOT_ANGSTROM, 0, 0])
        if mask[i, k]:
            expected = positions[index[i, k]] + shifts[i, k] @ cells[owner[i]] - positions[i]
        np.testing.assert_allclose(vectors[i, k], expected, atol=1e-14)


def test_without_cells_the_shifts_have_no_effect() -> None:
    positions = normal(ATOMS, 3)
    vectors = Graph(positions, jnp.ones(ATOMS, int), PARTITION, NEIGHBOURS).vectors()
    expected = positions[NEIGHBOURS.index] - positions[:, None]
    np.testing.assert_allclose(vectors[NEIGHBOURS.mask], expected[NEIGHBOURS.mask], atol=1e-6)


def test_a_strain_of_positions_and_cells_strains_every_vector(x64: None) -> None:
    positions, cells, strain = normal(ATOMS, 3), normal(2, 3, 3, seed=1), normal(3, 3, seed=2)

    def vectors(amount: float) -> Array:
        bend = jnp.eye(3) + amount * strain
        return Graph(positions @ bend, jnp.ones(ATOMS, int), PARTITION, NEIGHBOURS, cells @ bend).vectors()

    at_rest, slope = jax.jit(lambda: jax.jvp(vectors, (0.0,), (1.0,)))()
    np.testing.assert_allclose(slope[NEIGHBOURS.mask], (at_rest @ strain)[NEIGHBOURS.mask], atol=1e-12)
    np.testing.assert_array_equal(slope[~NEIGHBOURS.mask], 0)


def test_lengths_and_directions_in_empty_slots_have_finite_derivatives(precision: str) -> None:
    def function(positions: Array, neighbours: Neighbours) -> Array:
        vectors = neighbours.vectors(positions, jnp.broadcast_to(3 * jnp.eye(3), (ATOMS, 3, 3)))
        lengths = jnp.linalg.norm(vectors, axis=-1)
        return jnp.sum(vectors[..., 0] / lengths + jnp.sqrt(lengths))

    positions = normal(ATOMS, 3)
    filled = eqx.tree_at(lambda n: n.mask, NEIGHBOURS, jnp.ones_like(NEIGHBOURS.mask))
    assert not np.isfinite(jax.jit(jax.grad(function))(positions, filled)).all()
    assert np.isfinite(jax.jit(jax.grad(function))(positions, NEIGHBOURS)).all()
    assert np.isfinite(jax.jit(jax.hessian(function))(positions, NEIGHBOURS)).all()


class Springs(AbstractPotential):
    """Half the squared length of every pair vector, which needs neighbours and cells."""

    config: FrozenConfig = eqx.field(default=FrozenConfig(), static=True)

    def __call__(self, graph: Graph) -> AtomOutputs:
        assert graph.neighbours is not None
        squares = jnp.where(graph.neighbours.mask, jnp.sum(graph.vectors() ** 2, axis=-1), 0.0)
        return AtomOutputs(0.5 * squares.sum(1), jnp.zeros((graph.partition.num_atoms, 0)))


def test_forces_of_a_potential_see_neighbours_and_cells(x64: None) -> None:
    positions, cells = normal(ATOMS, 3), normal(2, 3, 3, seed=1)
    graph = Graph(positions, jnp.ones(ATOMS, int), PARTITION, NEIGHBOURS, cells)
    outputs = jax.jit(lambda: differentiate(Springs(), lambda raw, partition: jnp.zeros((0, 2)), graph))()
    expected = -2 * np.where(NEIGHBOURS.mask[..., None], jax.jit(Graph.vectors)(graph), 0.0).sum(1)
    np.testing.assert_allclose(outputs.energy_gradient, expected, atol=1e-12)


class TestMessages:
    def test_a_graph_without_neighbours_says_how_to_get_them(self) -> None:
        graph = Graph(normal(ATOMS, 3), jnp.ones(ATOMS, int), PARTITION)
        with pytest.raises(ValueError, match=r"the graph has no neighbours.*make_batch"):
            graph.vectors()

    def test_arrays_of_different_shapes_are_refused(self, as_users_run: None) -> None:
        parts = NEIGHBOURS.index, NEIGHBOURS.mask[:, 1:], NEIGHBOURS.shifts, NEIGHBOURS.reverse
        with pytest.raises(ValueError, match=r"mask of neighbours must have shape \(6, 5\), but has shape \(6, 4\)"):
            Neighbours(*parts, cutoff_angstrom=5.0)

    def test_neighbours_of_another_batch_are_refused(self, as_users_run: None) -> None:
        with pytest.raises(ValueError, match=r"index of neighbours must have shape \(2, any\), but has shape \(6, 5\)"):
            Graph(normal(2, 3), jnp.ones(2, int), Partition.from_sizes([2]), NEIGHBOURS)

    def test_cells_of_another_batch_are_refused(self, as_users_run: None) -> None:
        with pytest.raises(ValueError, match=r"cells must have shape \(2, 3, 3\), but has shape \(1, 3, 3\)"):
            Graph(normal(ATOMS, 3), jnp.ones(ATOMS, int), PARTITION, NEIGHBOURS, normal(1, 3, 3))
