import jax
import jax.numpy as jnp
import numpy as np
import pytest

from huefield.core import Graph
from huefield.noise import ColoredNoise, VanillaNoise
from huefield.potentials import MLPPotential, differentiate
from huefield.testing import ProbePotential, probe_graph

pytestmark = pytest.mark.usefixtures("x64")


def test_gradients_are_those_of_finite_differences() -> None:
    noise, graph = ColoredNoise.Config(channels=2).build(), probe_graph(key=jax.random.key(0))
    potential = ProbePotential.random(len(noise.raw_outputs), key=jax.random.key(1))
    evaluate = jax.jit(lambda g: differentiate(potential, noise.levels, g))
    outputs, step = evaluate(graph), 1e-5
    for atom, axis in ((0, 0), (4, 2), (8, 1)):
        structure = int(graph.partition.structure_index[atom])
        ends = [
            evaluate(Graph(graph.positions.at[atom, axis].add(sign * step), graph.atomic_numbers, graph.partition))
            for sign in (1, -1)
        ]
        energy = (ends[0].energy - ends[1].energy)[structure] / (2 * step)
        levels = (ends[0].levels - ends[1].levels)[:, structure] / (2 * step)
        np.testing.assert_allclose(outputs.energy_gradient[atom, axis], energy, rtol=1e-6)
        np.testing.assert_allclose(outputs.level_gradients[:, atom, axis], levels, rtol=1e-6)


def test_energy_is_the_sum_over_the_atoms_of_a_structure() -> None:
    graph = probe_graph(key=jax.random.key(2))
    potential = ProbePotential.random(0, key=jax.random.key(3))
    outputs = differentiate(potential, VanillaNoise.Config().build().levels, graph)
    per_atom = potential(graph).energy
    for structure in range(graph.partition.num_structures):
        np.testing.assert_allclose(outputs.energy[structure], per_atom[graph.partition.atoms_of(structure)].sum())
    assert outputs.levels.shape == (0, 3)


def test_padding_atoms_have_no_gradient() -> None:
    noise, graph = ColoredNoise.Config().build(), probe_graph(key=jax.random.key(4))
    outputs = differentiate(ProbePotential.random(1, key=jax.random.key(5)), noise.levels, graph)
    padding = ~np.asarray(graph.partition.atom_mask)
    assert np.all(outputs.energy_gradient[padding] == 0)
    assert np.all(outputs.level_gradients[:, padding] == 0)


def test_mlp_refuses_sites_of_another_dimension() -> None:
    potential = MLPPotential.Config(dimension=1, width=4).build(0, key=jax.random.key(6))
    with pytest.raises(ValueError, match="sites with 1 coordinates, but the graph has 3"):
        potential(probe_graph(key=jax.random.key(7)))


def test_mlp_sites_do_not_interact() -> None:
    potential = MLPPotential.Config(dimension=3, width=4).build(2, key=jax.random.key(8))
    graph = probe_graph(key=jax.random.key(9))
    moved = Graph(graph.positions.at[0].add(1.0), graph.atomic_numbers, graph.partition)
    before, after = potential(graph), potential(moved)
    np.testing.assert_array_equal(before.raw[1:], after.raw[1:])
    assert not jnp.array_equal(before.energy[0], after.energy[0])
