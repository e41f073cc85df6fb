"""Noise that is a sum over atoms, and averages over neighbours."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from huefield import ForceField
from huefield.core import Graph, Partition, Structure
from huefield.noise import ColoredNoise, LocalNoise, LocalWhiteNoise
from huefield.noise.pooling import GAIN, neighbour_average
from huefield.testing import LocalProbe
from huefield.testing.probes import CUTOFF_ANGSTROM, graph_of, probe_molecules, together


@pytest.fixture(autouse=True)
def double() -> object:
    with jax.enable_x64(True):
        yield


def chain(*distances: float) -> Graph:
    positions = np.zeros((1 + len(distances), 3))
    positions[1:, 0] = np.cumsum(distances)
    return graph_of([Structure(np.ones(len(positions), np.uint8), positions)])


def test_an_average_over_neighbours_by_hand() -> None:
    graph = chain(2.0, 4.5)  # the last atom is a neighbour of the second only
    weight = [(1 - (r / CUTOFF_ANGSTROM) ** 2) ** 3 for r in (2.0, 4.5)]
    values = jnp.array([[1.0], [2.0], [5.0]])
    padded = jnp.zeros((graph.partition.num_atoms, 1)).at[:3].set(values)
    expected = [
        (1 + weight[0] * 2) / (1 + weight[0]),
        (2 + weight[0] * 1 + weight[1] * 5) / (1 + sum(weight)),
        (5 + weight[1] * 2) / (1 + weight[1]),
    ]
    np.testing.assert_allclose(neighbour_average(padded, graph)[:3, 0], expected, rtol=1e-12)


def test_an_average_is_continuous_where_an_atom_leaves() -> None:
    values = jnp.array([[1.0], [9.0]])
    inside, outside = (
        float(neighbour_average(jnp.zeros((g.partition.num_atoms, 1)).at[:2].set(values), g)[0, 0])
        for g in (chain(CUTOFF_ANGSTROM - 1e-3), chain(CUTOFF_ANGSTROM + 1e-3))
    )
    assert outside == 1.0
    assert inside == pytest.approx(1.0, abs=1e-8)


def test_without_neighbours_an_average_is_the_value_itself() -> None:
    graph = Graph(jnp.zeros((2, 1)), jnp.zeros(2, int), Partition.from_sizes([1, 1]))
    np.testing.assert_array_equal(neighbour_average(jnp.array([[1.0], [3.0]]), graph), [[1.0], [3.0]])


def member(noise: LocalNoise | LocalWhiteNoise | ColoredNoise) -> ForceField:
    return ForceField(LocalProbe.random(len(noise.raw_outputs), key=jax.random.key(3)), noise)


def test_levels_of_atoms_add_up_to_the_energy_noise() -> None:
    field = member(LocalNoise.Config().build())
    graph = graph_of(probe_molecules(key=jax.random.key(0)))
    outputs = field.outputs(graph)
    levels = field.noise.atom_levels(outputs.raw, graph)
    assert np.all(np.asarray(levels)[np.asarray(graph.partition.atom_mask)] > 0)
    np.testing.assert_allclose(field(graph).variance().energy, graph.partition.sum(levels) ** 2, rtol=1e-12)


def test_the_rest_of_the_force_variance_is_the_curvature_of_the_kernel_times_the_energy_variance() -> None:
    field = member(LocalNoise.Config().build())
    graph = graph_of(probe_molecules(key=jax.random.key(0))[:1])
    outputs = field.outputs(graph)
    curvature = field.noise.inverse_lengths(outputs, graph)[0]
    diagonal = field.noise.covariance(outputs, graph).diagonal.forces[:, 0]
    np.testing.assert_allclose(diagonal, curvature * outputs.levels[0, 0] ** 2, rtol=1e-12)


@pytest.mark.parametrize("kind", [LocalNoise, LocalWhiteNoise])
def test_a_larger_structure_is_never_more_certain(kind: type[LocalNoise] | type[LocalWhiteNoise]) -> None:
    """With outputs that make the noise of the paper's model vanish."""
    molecule = probe_molecules(key=jax.random.key(0))[0]
    found = {}
    for noise in (kind.Config().build(), ColoredNoise.Config(gamma="atom").build()):
        field = member(noise)
        lower = eqx.tree_at(lambda f: f.potential.readout, field, -jnp.abs(field.potential.readout))
        one, many = (lower(graph_of([s])).variance() for s in (molecule, together([molecule] * 16)))
        found[type(noise).__name__] = float(many.energy[0] / one.energy[0])
    assert found["ColoredNoise"] < 1e-3
    assert found[kind.__name__] == pytest.approx(16 if kind is LocalWhiteNoise else 256, rel=1e-9)


def test_crowded_surroundings_cannot_push_pooled_noise_below_that_of_the_most_certain_atom() -> None:
    field = member(LocalNoise.Config().build())
    grid = np.stack(np.meshgrid(*[np.arange(4) * 1.6] * 3), -1).reshape(-1, 3)
    graph = graph_of([Structure(np.ones(64, np.uint8), grid)])
    raw = jnp.zeros((graph.partition.num_atoms, 4)).at[:, 1].set(-0.2 - jnp.arange(graph.partition.num_atoms) / 1000)
    least = jax.nn.softplus(field.noise.offset + GAIN * raw[:64, 1].min())
    assert np.all(np.asarray(field.noise.atom_levels(raw, graph))[:64] >= float(least))
