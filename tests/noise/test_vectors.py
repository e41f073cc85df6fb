"""A noise model may ask for vectors that turn with the structure, for noise that depends on direction."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from scipy.spatial.transform import Rotation

from huefield import ForceField
from huefield.core import EnergyForces, EnergyForcesStack, Graph, Outputs, Partition
from huefield.core.structure import Structure
from huefield.data.batches.batching import make_batch
from huefield.noise import AbstractNoise, Covariance
from huefield.potentials import MLPPotential, PaiNN
from huefield.support.config import FrozenConfig


class DirectedNoise(AbstractNoise):
    """One column (0, v_i): the forces of a structure err together, each along a vector of its atom."""

    class Config(FrozenConfig):
        kind: Literal["directed"] = "directed"

        def build(self) -> "DirectedNoise":
            return DirectedNoise(self)

    config: Config = eqx.field(static=True, default_factory=Config)

    @property
    def raw_outputs(self) -> tuple[str, ...]:
        return ()

    @property
    def raw_vectors(self) -> tuple[str, ...]:
        return ("direction",)

    def levels(self, raw: Float[Array, "A O"], partition: Partition) -> Float[Array, "C S"]:
        return jnp.zeros((0, partition.num_structures), raw.dtype)

    def covariance(self, outputs: Outputs, graph: Graph) -> Covariance:
        assert outputs.vectors is not None
        zero = EnergyForces(jnp.zeros_like(outputs.energy), jnp.zeros_like(outputs.energy_gradient))
        along = jnp.where(graph.partition.atom_mask[:, None], outputs.vectors[:, 0], 0.0)
        return Covariance(zero, EnergyForcesStack(zero.energy[None], along[None]))

    def initialised(self, energy_rmse: float, force_rmse: float) -> "DirectedNoise":
        return self


class Config(ForceField.Config):
    noise: DirectedNoise.Config


@pytest.mark.slow
def test_noise_along_vectors_turns_with_the_structure(x64: None) -> None:
    potential = PaiNN.Config(elements=("H", "O"), features=5, layers=2, radial_functions=4)
    member = Config(potential=potential, noise=DirectedNoise.Config()).build(key=jax.random.key(0))
    rng = np.random.default_rng(0)
    shaken = jax.tree.map(lambda x: x + 0.5 * jnp.asarray(rng.normal(size=x.shape)), member.potential)
    member = eqx.tree_at(lambda m: m.potential, member, shaken)
    turn = Rotation.random(rng=rng).as_matrix()
    positions, numbers = rng.normal(size=(4, 3)), np.array([8, 1, 1, 8], np.uint8)
    structures = [Structure(numbers, p, np.zeros((3, 3)), np.zeros(3, bool)) for p in (positions, positions @ turn.T)]
    distribution = eqx.filter_jit(member)(make_batch(structures, 5.0, ()).graph)
    block = np.kron(np.eye(4), turn)
    still, turned = (distribution.covariance(s)[1:, 1:] for s in range(2))
    np.testing.assert_allclose(turned, block @ still @ block.T, atol=1e-9 * np.abs(still).max())
    assert np.linalg.matrix_rank(still) == 1


def test_a_potential_without_vectors_says_so() -> None:
    config = Config(potential=MLPPotential.Config(dimension=3), noise=DirectedNoise.Config())
    with pytest.raises(ValueError, match="an MLP potential has no vector outputs, but the noise model asks for 1"):
        config.build(key=jax.random.key(0))
