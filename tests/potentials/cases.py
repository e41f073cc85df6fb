"""Potentials with random weights everywhere, and briefly trained, and structures to try them on.

Many arrays start at zero, where tests would see nothing.
"""

from functools import cache
from itertools import product
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from ase.data import chemical_symbols
from jaxtyping import Array, PyTree

from huefield.core import Graph
from huefield.core.structure import Structure
from huefield.data.batches.batching import Batch, BatchShape, make_batch
from huefield.data.bundled.sets import load_bundled
from huefield.model.forcefield import ForceField
from huefield.noise import ColoredNoise, LocalNoise
from huefield.potentials import MACE, PaiNN, PotentialConfig, differentiate
from huefield.training.likelihoods import marginal_nll, structure_mean

CUTOFF = 3.0
SHAPE = BatchShape(3, 24, 40)
"""One for nearly all tests, so that they share compiled programs."""
CONFIG = PaiNN.Config(elements=("H", "C", "N", "O"), features=8, layers=2, radial_functions=6, cutoff_angstrom=CUTOFF)
CONFIGS: dict[str, PotentialConfig] = {
    "painn": CONFIG,
    "mace": MACE.Config(
        elements=CONFIG.elements,
        channels=5,
        max_degree=2,
        radial_functions=5,
        cutoff_angstrom=CUTOFF,
        neighbours=16,
    ),
}
NOISE = ColoredNoise.Config(gamma="atom")
LOCAL = LocalNoise.Config()
"""For structures of any size, as the presets have it."""
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
OPEN = np.zeros((3, 3)), np.zeros(3, bool)
CELL = np.array([[2.4, 0.0, 0.0], [0.8, 2.7, 0.0], [-0.5, 0.6, 2.9]])
"""Skewed, and shorter than the cutoff."""
PERIODIC = CELL, np.ones(3, bool)


class Values(NamedTuple):
    """All that a potential with noise says about a batch."""

    energy: Array
    levels: Array
    raw: Array
    forces: Array
    level_gradients: Array

    def of_atoms(self, rows: np.ndarray, structure: int = 0) -> "Values":
        """Of one structure."""
        return Values(
            *(self.energy[structure], self.levels[:, structure], self.raw[rows]),
            *(self.forces[rows], self.level_gradients[:, rows]),
        )

    def turned(self, matrix: np.ndarray) -> "Values":
        """With rows r of vectors replaced by r M."""
        forces, gradients = (np.asarray(x) @ matrix for x in (self.forces, self.level_gradients))
        return self._replace(forces=forces, level_gradients=gradients)


def values(member: ForceField, graph: Graph) -> Values:
    out = differentiate(member.potential, member.noise.levels, graph)
    return Values(out.energy, out.levels, out.raw, -out.energy_gradient, out.level_gradients)


evaluate = eqx.filter_jit(values)
atom_energies = eqx.filter_jit(lambda member, graph: member.potential(graph).energy)


@cache
def untrained(kind: str = "painn") -> ForceField:
    """In float64, and the same in both precisions."""
    with jax.enable_x64(True):
        noise = NOISE.build()
        return ForceField(CONFIGS[kind].build(len(noise.raw_outputs), key=jax.random.key(0)), noise)


def randomised(tree: PyTree, seed: int = 0) -> PyTree:
    """With random numbers added to every array."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: x + jnp.asarray(0.1 * rng.normal(size=x.shape), x.dtype) if eqx.is_inexact_array(x) else x, tree
    )


@cache
def training(kind: str = "painn") -> tuple[ForceField, np.ndarray]:
    """A force field, and the losses on the way: forty steps on a few bundled molecules."""
    with jax.enable_x64(True):
        block = load_bundled("train").select(load_bundled("train").sizes <= 5)
        structures = [block[i] for i in range(0, len(block), len(block) // 8)][:8]
        offset = np.array([s.energy for s in structures])
        batch = make_batch(structures, CUTOFF, [], energy_offset=offset)
        return _fitted(untrained(kind), batch)


@eqx.filter_jit
def _fitted(start: ForceField, batch: Batch) -> tuple[ForceField, Array]:
    optimiser = optax.adam(1e-2)
    weights, static = eqx.partition(start, eqx.is_inexact_array)

    def step(state: PyTree, _: None) -> tuple[PyTree, Array]:
        def loss(w: PyTree) -> Array:
            terms = marginal_nll(eqx.combine(w, static)(batch.graph), batch.labels)
            return structure_mean(terms, batch.labels, batch.graph.partition).value

        value, gradient = jax.value_and_grad(loss)(state[0])
        updates, memory = optimiser.update(gradient, state[1])
        return (optax.apply_updates(state[0], updates), memory), value

    (weights, _), losses = jax.lax.scan(step, (weights, optimiser.init(weights)), length=40)
    return eqx.combine(weights, static), losses


def molecule(atoms: int = 6, seed: int = 0) -> Structure:
    """A chain of atoms 1.0 to 1.4 Å apart, some of them out of each other's reach."""
    rng = np.random.default_rng(seed)
    positions = np.zeros((atoms, 3))
    for i in range(1, atoms):
        while True:
            step = rng.normal(size=3) * [1.0, 1.0, 0.7] + [0.5, 0, 0]
            positions[i] = positions[i - 1] + rng.uniform(1.0, 1.4) * step / np.linalg.norm(step)
            if np.linalg.norm(positions[:i] - positions[i], axis=1).min() > 0.9:
                break
    return Structure(rng.choice([1, 6, 7, 8], atoms).astype(np.uint8), positions)


def crystal() -> Structure:
    """Three different atoms."""
    fractional = np.array([[0.1, 0.1, 0.05], [0.55, 0.6, 0.3], [0.2, 0.45, 0.7]])
    return Structure(np.array([6, 1, 8], np.uint8), fractional @ CELL, *PERIODIC)


def atom(number: int = 8) -> Structure:
    return Structure(np.array([number], np.uint8), np.zeros((1, 3)))


def graph_of(*structures: Structure, shape: BatchShape = SHAPE, cutoff: float = CUTOFF) -> Graph:
    graph = make_batch(list(structures), cutoff, [shape]).graph
    assert graph.neighbours is not None
    assert graph.neighbours.index.shape == (shape.atoms, shape.slots), "the shape does not hold the batch"
    return graph


def moved(graph: Graph, positions: Array) -> Graph:
    return eqx.tree_at(lambda g: g.positions, graph, positions)


def alone(member: ForceField, structure: Structure) -> Values:
    """The values of one structure."""
    return evaluate(member, graph_of(structure)).of_atoms(np.arange(len(structure)))


def assert_close(got: Values, expected: Values, tolerance: float) -> None:
    """Relative to the largest entry of each array, or to one if all are smaller."""
    for name, one, other in zip(Values._fields, got, expected, strict=True):
        one, other = np.asarray(one, float), np.asarray(other, float)
        limit = tolerance * max(1.0, np.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=0, atol=limit, err_msg=name)


def orthogonal(determinant: int, seed: int = 3) -> np.ndarray:
    matrix = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    return matrix * np.array([1, 1, determinant * np.sign(np.linalg.det(matrix))])


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def pairs_of(structure: Structure, config: PotentialConfig) -> tuple[list[int], list[tuple]]:
    """Numbers of the atoms' elements, and (i, j, direction, radial features) of all pairs, from their formulas."""
    cutoff, count = config.cutoff_angstrom, config.radial_functions
    reach = range(-3, 4) if structure.pbc.any() else range(1)
    images = np.stack(np.meshgrid(reach, reach, reach), -1).reshape(-1, 3) @ structure.cell
    pairs = []
    for i, j, image in product(range(len(structure)), range(len(structure)), images):
        vector = structure.positions[j] + image - structure.positions[i]
        r = np.sqrt(vector @ vector)
        if (i != j or image.any()) and r < cutoff:
            x = r / cutoff
            sines = np.sqrt(2 / cutoff) * np.sin(np.arange(1, count + 1) * np.pi * x) / r
            pairs.append((i, j, vector / r, np.array([*sines, 1.0]) * (1 - 10 * x**3 + 15 * x**4 - 6 * x**5)))
    return [config.elements.index(chemical_symbols[z]) for z in structure.atomic_numbers], pairs
