"""The white noise model against its formulas, written out atom by atom."""

import jax
import numpy as np
import pytest

from huefield.model.forcefield import ForceField
from huefield.noise import WhiteNoise
from huefield.testing import ProbePotential, probe_graph

pytestmark = pytest.mark.usefixtures("x64")


def softplus(x: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(x))


@pytest.mark.parametrize("pooling", [False, True])
def test_variances_are_those_of_the_formulas(pooling: bool) -> None:
    noise = WhiteNoise.Config(pooling=pooling, energy_floor_ev=0.01).build().initialised(0.3, 0.7)
    potential = ProbePotential.random(len(noise.raw_outputs), key=jax.random.key(0))
    graph = probe_graph(key=jax.random.key(1))
    gaussian, raw = ForceField(potential, noise)(graph), np.asarray(potential(graph).raw)
    energy_offset, force_offset = float(noise.energy_offset), float(noise.force_offset)
    assert len(gaussian.columns) == 0
    for structure in range(graph.partition.num_structures):
        atoms = graph.partition.atoms_of(structure)
        energy_level = 0.01 + softplus(energy_offset + raw[atoms, 0].sum())
        np.testing.assert_allclose(gaussian.variance().energy[structure], energy_level**2, rtol=1e-12)
        pooled = raw[atoms, 2].sum() if pooling else 0.0
        for atom in atoms:
            force_level = 1e-6 + softplus(force_offset + raw[atom, 1] + pooled)
            np.testing.assert_allclose(gaussian.variance().forces[atom], force_level**2, rtol=1e-12)
