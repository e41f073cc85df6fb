r"""Sums over neighbours, row by row in blocks that fit into a cache, with derivatives of every order of the same kind.

A sum over neighbours is m_i = Σ_k f(n_i, n_j, e_ik; w) with values n of atoms, e of slots and weights w, where slot k
of atom i holds neighbour j. Computed for all slots at once it needs arrays [A, K, F], which take long to write and
much memory to keep for derivatives. Here one block of rows at a time is gathered, computed and summed; nothing is kept.

**No derivative scatters.** For seeds g_i of m_i, let Ψ = Σ_ik g_i · f(n_i, n_j, e_ik). Atom i appears in it as the
first argument in its own slots, and as the second in the slots of its neighbours, which are its own turned round:

    ∂Ψ/∂n_i = Σ_k  g_i · ∂₁f(n_i, n_j, e_ik)  +  g_j · ∂₂f(n_j, n_i, e_ki),        e_ki: e_ik turned round.

That is a sum over neighbours again, of values (n, g), so that the rule applies to itself. Quantities of a slot are of
two kinds: ``even`` ones are the same in both directions (a distance), ``odd`` ones change their sign (a direction).
Derivatives with respect to slots are slot quantities of neither kind; they are permuted by the reverse slots.

Reverse mode only, to any order (``jax.custom_vjp``).
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Shaped

from huefield.core.neighbours import Neighbours

BLOCK_ELEMENTS = 2**17
BLOCK_SLOTS = 2**10
"""Numbers in one array of a block, and slots in it, at most: few enough for the cache, and enough for two cores to
share the work. Measured with 64 and 256 features; half or twice as many cost up to a quarter."""

PairFunction = Callable[[PyTree, PyTree, PyTree, PyTree, PyTree], PyTree]
"""(values of atom i, values of atom j, even and odd quantities of the slot, weights) → the terms of the sum over slots.

Arrays are [rows, K, ...]; a function of one pair that broadcasts is such a function.
"""


class _Slots(NamedTuple):
    """Quantities of slots. ``mine`` and ``theirs`` are one of no symmetry, in the slot and in the reverse slot."""

    even: PyTree
    odd: PyTree
    mine: PyTree
    theirs: PyTree

    def turned(self) -> "_Slots":
        return _Slots(self.even, jax.tree.map(jnp.negative, self.odd), self.theirs, self.mine)


class _Result(NamedTuple):
    """Results of a function of pairs: terms to sum over slots, values of each slot, and sums over all slots."""

    summed: PyTree
    slots: PyTree
    total: PyTree


_Function = Callable[[PyTree, PyTree, _Slots, PyTree], _Result]


def sum_over_neighbours(
    function: PairFunction,
    atoms: PyTree,
    even: PyTree,
    odd: PyTree,
    weights: PyTree,
    neighbours: Neighbours,
    *,
    width: int,
) -> PyTree:
    """Σ_k f(n_i, n_j, e_ik; w) for each atom i.

    Args:
        function: f, which must vanish where ``even`` does: in empty slots, and in rows that fill up a block.
        atoms: n, arrays [A, ...].
        even: quantities of slots that are the same in the reverse slot, arrays [A, K, ...].
        odd: quantities of slots that have the opposite sign in the reverse slot, arrays [A, K, ...].
        weights: w, which all pairs share.
        neighbours: of the atoms.
        width: length of the longest axis beyond [A, K] that ``function`` works with; decides the rows of a block.
    """
    rows = max(1, min(BLOCK_ELEMENTS // width, BLOCK_SLOTS) // max(neighbours.num_slots, 1))
    return _pair_map(_without_slots(function), rows, atoms, _Slots(even, odd, (), ()), weights, neighbours).summed


@cache  # the same function each time, so that JAX traces it once however often it is used
def _without_slots(function: PairFunction) -> _Function:
    def full(own: PyTree, other: PyTree, slots: _Slots, weights: PyTree) -> _Result:
        return _Result(function(own, other, slots.even, slots.odd, weights), (), ())

    return full


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _pair_map(
    function: _Function, rows: int, atoms: PyTree, slots: _Slots, weights: PyTree, neighbours: Neighbours
) -> _Result:
    """Apply a function to all pairs."""
    return _in_blocks(function, rows, atoms, slots, weights, neighbours)


@partial(jax.jit, static_argnums=(0, 1))
def _in_blocks(
    function: _Function, rows: int, atoms: PyTree, slots: _Slots, weights: PyTree, neighbours: Neighbours
) -> _Result:
    """Apply a function to all pairs, ``rows`` atoms at a time."""
    num_atoms = neighbours.index.shape[0]
    if num_atoms <= rows:
        return _one_block(function, atoms, weights, (atoms, neighbours.index, slots))
    count, rows = even_blocks(num_atoms, rows)

    def blocks(array: Shaped[Array, " A *rest"]) -> Shaped[Array, " n rows *rest"]:
        padded = jnp.pad(array, [(0, count * rows - num_atoms)] + [(0, 0)] * (array.ndim - 1))
        return padded.reshape(count, rows, *array.shape[1:])

    def add_block(total: PyTree, block: _Block) -> tuple[PyTree, tuple[PyTree, PyTree]]:
        result = _one_block(function, atoms, weights, block)
        return jax.tree.map(jnp.add, total, result.total), (result.summed, result.slots)

    split = jax.tree.map(blocks, (atoms, neighbours.index, slots))
    like = jax.eval_shape(lambda b: _one_block(function, atoms, weights, b).total, jax.tree.map(lambda x: x[0], split))
    total, by_block = jax.lax.scan(add_block, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like), split)
    summed, by_slot = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:num_atoms], by_block)
    return _Result(summed, by_slot, total)


def even_blocks(num_rows: int, most: int) -> tuple[int, int]:
    """Number of blocks and rows of a block: as few blocks as possible, then as few rows as possible."""
    count = -(-num_rows // most)
    return count, -(-num_rows // count)


_Block = tuple[PyTree, Int[Array, "rows K"], _Slots]
"""Values of the atoms of a block, the rows of their neighbours, and the quantities of their slots."""


def _one_block(function: _Function, atoms: PyTree, weights: PyTree, block: _Block) -> _Result:
    own, index, slots = block
    gathered = jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), atoms)
    # Without the barrier, XLA gathers anew in every loop that uses the values.
    other = jax.lax.optimization_barrier(gathered)
    spread = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], (*index.shape, *x.shape[1:])), own)
    result = function(spread, other, slots, weights)
    return result._replace(summed=jax.tree.map(lambda x: jnp.sum(x, axis=1), result.summed))


@cache
def _derivative(function: _Function) -> _Function:
    """The function of pairs whose sums are the derivatives of a function's sums; see the module's text."""

    def derived(own: PyTree, other: PyTree, slots: _Slots, weights: PyTree) -> _Result:
        (own_values, own_seed), (other_values, other_seed), (shared, shared_seed) = own, other, weights
        (mine, my_seed), (theirs, their_seed) = slots.mine, slots.theirs
        inner = _Slots(slots.even, slots.odd, mine, theirs)

        _, pull_first = jax.vjp(lambda n, e, w: function(n, other_values, e, w), own_values, inner, shared)
        as_first, by_slot, by_weight = pull_first(_Result(own_seed, my_seed, shared_seed))
        _, pull_second = jax.vjp(lambda n: function(other_values, n, inner.turned(), shared), own_values)
        (as_second,) = pull_second(_Result(other_seed, their_seed, shared_seed))
        return _Result(jax.tree.map(jnp.add, as_first, as_second), by_slot, by_weight)

    return derived


def _forward(
    function: _Function, rows: int, atoms: PyTree, slots: _Slots, weights: PyTree, neighbours: Neighbours
) -> tuple[_Result, Any]:
    kept = (atoms, slots, weights, neighbours)
    return _pair_map(function, rows, *kept), kept


def _backward(function: _Function, rows: int, kept: Any, seed: _Result) -> tuple[PyTree, _Slots, PyTree, None]:
    atoms, slots, weights, neighbours = kept
    turned_seed = jax.tree.map(neighbours.swap, seed.slots)
    inner = _Slots(slots.even, slots.odd, (slots.mine, seed.slots), (slots.theirs, turned_seed))
    derived = _pair_map(_derivative(function), rows, (atoms, seed.summed), inner, (weights, seed.total), neighbours)
    return derived.summed, derived.slots, derived.total, None


_pair_map.defvjp(_forward, _backward)
