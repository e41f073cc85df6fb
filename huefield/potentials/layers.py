"""Layers that act on each atom alone."""

from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from huefield.core.products import times

Module = TypeVar("Module", bound=eqx.Module)

WRITE_SCALE = 0.1
"""Size of the weights of layers that write into features or energies, relative to the others, before training."""


class Linear(eqx.Module):
    """x W + b."""

    weight: Float[Array, "I O"]
    bias: Float[Array, " O"] | None

    @classmethod
    def deviations(cls, inputs: int, outputs: int, *, scale: float = 1.0, bias: bool = True) -> "Linear":
        """Standard deviations of random weights, scale/√I (LeCun for scale 1), and none for the bias."""
        weight = jnp.full((inputs, outputs), scale * inputs**-0.5)
        return cls(weight, jnp.zeros(outputs) if bias else None)

    def __call__(self, rows: Float[Array, "*R I"]) -> Float[Array, "*R O"]:
        """Apply it to each row."""
        product = times(rows, self.weight)
        return product if self.bias is None else product + self.bias


def drawn(deviations: Module, *, key: Key[Array, ""]) -> Module:
    """Independent normal numbers with these standard deviations.

    All come from one draw: a draw for each array compiles each time, which takes seconds for a network.
    """
    leaves, tree = jax.tree.flatten(deviations)
    numbers = jax.random.normal(key, (sum(leaf.size for leaf in leaves),))
    parts, begin = [], 0
    for leaf in leaves:
        parts.append(leaf * numbers[begin : begin + leaf.size].reshape(leaf.shape))
        begin += leaf.size
    return jax.tree.unflatten(tree, parts)
