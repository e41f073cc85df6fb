"""Structures and smooth random potentials to probe noise models with, in place of trained ones."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from huefield.core import EnergyForces, Graph, Partition, Structure
from huefield.core.structure import pack
from huefield.data.batches.batching import BatchShape, make_batch
from huefield.data.batches.neighbours import most_neighbours
from huefield.data.batches.shapes import rung
from huefield.potentials import AbstractPotential, AtomOutputs
from huefield.potentials.radial import distances_and_directions
from huefield.support.config import FrozenConfig

SIZES = (3, 1, 5)
CUTOFF_ANGSTROM = 5.0
APART_ANGSTROM = 40.0
"""Distance between copies that must not notice each other."""
CORNERS = np.array([[x, y, z] for x in range(4) for y in range(2) for z in range(2)], float)
"""Places of up to 16 copies on a grid, in an order that keeps few copies close to the origin."""


class ProbePotential(AbstractPotential):
    """A smooth random function of all positions of a structure."""

    config: FrozenConfig = eqx.field(static=True, default_factory=FrozenConfig, kw_only=True)
    directions: Float[Array, "H D"]
    phases: Float[Array, " H"]
    readout: Float[Array, "H P"]
    raw_shift: Float[Array, ""]

    @classmethod
    def random(cls, num_raw: int, *, key: Key[Array, ""], raw_shift: float = 0.0) -> "ProbePotential":
        """Random weights; ``raw_shift`` is added to every raw noise output."""
        keys = jax.random.split(key, 3)
        return cls(
            directions=jax.random.normal(keys[0], (16, 3)),
            phases=jax.random.uniform(keys[1], (16,), maxval=2 * np.pi),
            readout=0.3 * jax.random.normal(keys[2], (16, 1 + num_raw)),
            raw_shift=jnp.asarray(raw_shift, float),
        )

    def __call__(self, graph: Graph) -> AtomOutputs:
        """Waves of each position, modulated by the sum of the waves of the structure."""
        waves = jnp.sin(graph.positions @ self.directions.T + self.phases)
        around = graph.partition.spread(graph.partition.sum(waves))
        out = (waves * (1.0 + 0.1 * around)) @ self.readout
        return AtomOutputs(out[:, 0], out[:, 1:] + self.raw_shift)


class LocalProbe(AbstractPotential):
    """A smooth random function of the distances to the neighbours of an atom, and of its element."""

    config: FrozenConfig = eqx.field(static=True, default_factory=FrozenConfig, kw_only=True)
    frequencies: Float[Array, " H"]
    elements: Float[Array, "Z H"]
    readout: Float[Array, "H P"]

    @classmethod
    def random(cls, num_raw: int, *, key: Key[Array, ""]) -> "LocalProbe":
        """Random weights."""
        keys = jax.random.split(key, 3)
        return cls(
            frequencies=jax.random.uniform(keys[0], (16,), minval=0.5, maxval=2.5),
            elements=jax.random.normal(keys[1], (120, 16)),
            readout=0.5 * jax.random.normal(keys[2], (16, 1 + num_raw)),
        )

    def __call__(self, graph: Graph) -> AtomOutputs:
        """Waves of each distance, weighted by a function that ends smoothly at the cutoff."""
        distances, _ = distances_and_directions(graph.vectors())
        weights = jnp.maximum(1.0 - (distances / CUTOFF_ANGSTROM) ** 2, 0.0) ** 3
        assert graph.neighbours is not None
        kinds = self.elements[graph.atomic_numbers]
        others = kinds[graph.neighbours.index]
        waves = jnp.sum(weights[..., None] * jnp.sin(distances[..., None] * self.frequencies + others), axis=1)
        out = jnp.tanh(0.5 * waves + kinds) @ self.readout
        return AtomOutputs(out[:, 0], out[:, 1:])


def probe_graph(*, key: Key[Array, ""]) -> Graph:
    """A batch of structures of ``SIZES`` atoms, with two padding atoms."""
    positions_key, numbers_key = jax.random.split(key)
    index = np.concatenate([np.repeat(np.arange(len(SIZES)), SIZES), [len(SIZES)] * 2])
    numbers = jax.random.choice(numbers_key, jnp.array([1, 6, 7, 8]), (index.size,))
    positions = jax.random.normal(positions_key, (index.size, 3))
    return Graph(positions, numbers, Partition(jnp.asarray(index, jnp.int32), len(SIZES)))


def probe_molecules(*, key: Key[Array, ""]) -> tuple[Structure, Structure]:
    """Two different small molecules with random positions."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    first = np.array([[0.0, 0.0, 0.0], [1.1, 0.1, 0.0], [-0.2, 1.3, 0.4], [2.2, 0.9, -0.3], [0.3, -1.0, 1.0]])
    second = np.array([[0.0, 0.0, 0.0], [0.9, 0.3, 0.2], [-0.4, 0.9, -0.1]])
    return (
        Structure(np.array([6, 8, 1, 1, 7], np.uint8), first + rng.normal(0, 0.1, first.shape)),
        Structure(np.array([8, 1, 1], np.uint8), second + rng.normal(0, 0.1, second.shape)),
    )


def together(parts: Sequence[Structure]) -> Structure:
    """One structure of several ones, far from each other."""
    places = APART_ANGSTROM * CORNERS[: len(parts)]
    return Structure(
        np.concatenate([part.atomic_numbers for part in parts]),
        np.concatenate([part.positions + place for part, place in zip(parts, places, strict=True)]),
    )


def moved(structure: Structure, atom: int, axis: int, by_angstrom: float) -> Structure:
    """The structure with one coordinate changed."""
    positions = structure.positions.copy()
    positions[atom, axis] += by_angstrom
    return Structure(structure.atomic_numbers, positions, structure.cell, structure.pbc)


def graph_of(
    structures: Sequence[Structure], cutoff_angstrom: float = CUTOFF_ANGSTROM, shapes: Sequence[BatchShape] = ()
) -> Graph:
    """The structures with their neighbours, padded to the smallest of the shapes that holds them."""
    return make_batch(structures, cutoff_angstrom, shapes).graph


def shapes_of_copies(
    structures: Sequence[Structure], most_copies: int, cutoff_angstrom: float = CUTOFF_ANGSTROM
) -> tuple[BatchShape, BatchShape]:
    """A shape for any of the structures, and one for distant copies of it: few shapes are few compilations."""
    block = pack(list(structures), np.arange(len(structures)), "structures")
    atoms, slots = int(block.sizes.max()), rung(int(most_neighbours(block, cutoff_angstrom).max()))
    return BatchShape(1, rung(atoms), slots), BatchShape(1, rung(most_copies * atoms), slots)


def cast_floats(tree: PyTree, dtype: str) -> PyTree:
    """Convert all floating-point arrays of a tree to another precision."""
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x), dtype) if eqx.is_inexact_array(x) else x, tree)


def flatten(values: EnergyForces, partition: Partition, structure: int) -> Float[np.ndarray, " n"]:
    """(E, F_1x, F_1y, ...) of one structure, in the order of :meth:`Gaussian.covariance`."""
    forces = np.asarray(values.forces)[partition.atoms_of(structure)]
    return np.append(np.asarray(values.energy)[structure], forces.ravel())
