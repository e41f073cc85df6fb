"""Energy conservation: ten picoseconds of a molecule with briefly trained potentials.

Trained in float32. The dynamics run in float64, so that what is seen is the potential and the integrator, not rounding.
"""

from functools import cache
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ase import units
from ase.data import atomic_masses
from jaxtyping import Array, Float

from huefield.core import Graph
from huefield.core.structure import Block, Structure
from huefield.data.batches.batching import Batch, make_batch
from huefield.data.bundled.sets import load_bundled
from huefield.noise import VanillaNoise
from huefield.potentials import MACE, AbstractPotential, PaiNN, PotentialConfig, differentiate
from huefield.testing import cast_floats

pytestmark = pytest.mark.slow

ETHANOL = (1, 1, 1, 1, 1, 1, 6, 6, 8)
CUTOFF_ANGSTROM = 3.0
"""So short that hydrogen atoms keep crossing it."""
SIZES = {"elements": ("H", "C", "O"), "radial_functions": 8, "cutoff_angstrom": CUTOFF_ANGSTROM}
CONFIGS: dict[str, PotentialConfig] = {
    "painn": PaiNN.Config(features=16, layers=2, **SIZES),
    "mace": MACE.Config(channels=16, radial_widths=(16, 16), neighbours=36, **SIZES),
}
EVERYTHING_ANGSTROM = 20.0
"""In this reach all atoms are neighbours for ever, so that the graph never has to be built again."""
TRAINING_STEPS = 600
TIMESTEP_FS, STEPS_OF_RECORD, RECORDS = 0.5, 20, 1000
DRIFT_EV = 1e-3
State = tuple[AbstractPotential, optax.OptState]
LEVELS = VanillaNoise.Config().build().levels


class Record(NamedTuple):
    """Along a trajectory."""

    total_energy: Float[np.ndarray, " T"]
    temperature: Float[np.ndarray, " T"]
    close_pairs: Float[np.ndarray, " T"]


def ethanol(split: str) -> Block:
    block = load_bundled(split)
    return block.select(np.array([tuple(sorted(s.atomic_numbers.tolist())) == ETHANOL for s in block]))


def batch_of(block: Block, offset: float) -> Batch:
    return make_batch(block, CUTOFF_ANGSTROM, [], energy_offset=np.full(len(block), offset))


def error(potential: AbstractPotential, batch: Batch) -> tuple[Array, Array]:
    """Root mean square errors of the energy of an atom [eV] and of forces [eV/Å]."""
    outputs = differentiate(potential, LEVELS, batch.graph)
    energy = jnp.where(batch.labels.energy_mask, outputs.energy - batch.labels.energy, 0.0) / len(ETHANOL)
    forces = jnp.where(batch.labels.forces_mask[:, None], -outputs.energy_gradient - batch.labels.forces, 0.0)
    count = jnp.sum(batch.labels.energy_mask)
    return jnp.sqrt(jnp.sum(energy**2) / count), jnp.sqrt(jnp.sum(forces**2) / (3 * len(ETHANOL) * count))


@eqx.filter_jit
def fitted(potential: AbstractPotential, batch: Batch) -> AbstractPotential:
    optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, TRAINING_STEPS))
    weights, static = eqx.partition(potential, eqx.is_inexact_array)

    def step(
        state: tuple[AbstractPotential, optax.OptState], _: None
    ) -> tuple[tuple[AbstractPotential, optax.OptState], None]:
        gradient = jax.grad(lambda w: sum(e**2 for e in error(eqx.combine(w, static), batch)))(state[0])
        updates, memory = optimiser.update(gradient, state[1])
        return (optax.apply_updates(state[0], updates), memory), None

    (weights, _), _ = jax.lax.scan(step, (weights, optimiser.init(weights)), length=TRAINING_STEPS)
    return eqx.combine(weights, static)


@cache
def trained(kind: str) -> AbstractPotential:
    block = ethanol("train")
    return fitted(CONFIGS[kind].build(0, key=jax.random.key(0)), batch_of(block, block.energy.mean()))


@eqx.filter_jit
def dynamics(potential: AbstractPotential, graph: Graph, velocities: Float[Array, "A 3"], timestep_fs: float) -> Record:
    """Velocity Verlet in ASE's units, [Å] and [eV]."""
    timestep = timestep_fs * units.fs
    masses = jnp.asarray(np.append(atomic_masses, 1.0))[graph.atomic_numbers][:, None]

    def potential_and_forces(positions: Array) -> tuple[Array, Array]:
        outputs = differentiate(potential, LEVELS, eqx.tree_at(lambda g: g.positions, graph, positions))
        return outputs.energy[0], -outputs.energy_gradient

    def verlet(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        positions, velocities, _, forces = state
        half = velocities + 0.5 * timestep * forces / masses
        positions = positions + timestep * half
        energy, forces = potential_and_forces(positions)
        return (positions, half + 0.5 * timestep * forces / masses, energy, forces), None

    def record(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], Record]:
        moved, _ = jax.lax.scan(verlet, state, length=STEPS_OF_RECORD)
        kinetic = 0.5 * jnp.sum(masses * moved[1] ** 2)
        lengths = jnp.linalg.norm(eqx.tree_at(lambda g: g.positions, graph, moved[0]).vectors(), axis=-1)
        close = jnp.sum(lengths < CUTOFF_ANGSTROM)
        return moved, Record(moved[2] + kinetic, kinetic / (1.5 * len(ETHANOL) * units.kB), close)

    start = (graph.positions, velocities, *potential_and_forces(graph.positions))
    return jax.lax.scan(record, start, length=RECORDS)[1]


def trajectory(potential: AbstractPotential, structure: Structure, *, seed: int = 0) -> Record:
    """From 300 K, the molecule at rest as a whole."""
    graph = make_batch([structure], EVERYTHING_ANGSTROM, []).graph
    assert graph.neighbours is not None
    assert int(graph.neighbours.mask.sum()) == len(ETHANOL) * (len(ETHANOL) - 1)
    masses = atomic_masses[structure.atomic_numbers][:, None]
    velocities = np.random.default_rng(seed).normal(size=(len(ETHANOL), 3)) * np.sqrt(300 * units.kB / masses)
    velocities -= (masses * velocities).sum(0) / masses.sum()
    padded = np.zeros(graph.positions.shape)
    padded[: len(ETHANOL)] = velocities
    return jax.tree.map(np.asarray, dynamics(potential, graph, jnp.asarray(padded), TIMESTEP_FS))


def drifts(record: Record) -> tuple[float, float]:
    """Of the energy of an atom over the whole time [eV]: of a linear fit, and of the last tenth against the first."""
    energy = record.total_energy / len(ETHANOL)
    slope = np.polyfit(np.linspace(0, 1, len(energy)), energy, 1)[0]
    tenth = len(energy) // 10
    return float(slope), float(energy[-tenth:].mean() - energy[:tenth].mean())


def test_the_potential_has_learned_something(kind: str) -> None:
    block = ethanol("validation")
    batch = batch_of(block, ethanol("train").energy.mean())
    energy, forces = eqx.filter_jit(error)(trained(kind), batch)
    assert forces < 0.35 * block.forces.std()
    assert energy < 0.35 * block.energy.std() / len(ETHANOL)


def test_total_energy_is_conserved_for_ten_picoseconds(kind: str) -> None:
    potential, block = trained(kind), ethanol("train")
    with jax.enable_x64(True):
        record = trajectory(cast_floats(potential, "float64"), block[int(block.energy.argmin())])
    assert TIMESTEP_FS * STEPS_OF_RECORD * RECORDS == 10_000
    assert 50 < record.temperature.mean() < 600
    assert len(set(record.close_pairs.tolist())) > 3, "no pair crosses the cutoff, so that the test sees little"
    assert np.abs(drifts(record)).max() < DRIFT_EV
