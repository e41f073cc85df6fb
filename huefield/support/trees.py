"""Conversion between trees of arrays and named arrays, for files."""

from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np

Tree = TypeVar("Tree")


def named_arrays(tree: Any) -> dict[str, Any]:
    """Arrays (or shapes) of a tree by their path in it, such as ``potential.readout.raw``."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, is_array_like))
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def with_arrays(tree: Tree, arrays: dict[str, Any]) -> Tree:
    """The tree with each array replaced by the one with its name."""
    replaced = iter([arrays[name] for name in named_arrays(tree)])
    return jax.tree.map(lambda leaf: next(replaced) if is_array_like(leaf) else leaf, tree)


def is_array_like(leaf: Any) -> bool:
    """Whether a leaf is an array of JAX or numpy, or the shape of one."""
    return isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)
