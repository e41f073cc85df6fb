"""How outputs of atoms become the noise level of a structure."""

import jax.numpy as jnp
import numpy as np
import pytest

from huefield.core import Graph, Partition
from huefield.noise import ColoredNoise
from huefield.noise.base import LevelReadout, over_atoms

RAW = jnp.array([[1.0], [2.0], [3.0], [5.0], [99.0]])
PARTITION = Partition(jnp.array([0, 0, 0, 1, 3], jnp.int32), 3)
"""Three atoms, one atom, none; and an atom that is padding."""


@pytest.mark.parametrize(
    ("readout", "expected"), [("sum", [6.0, 5.0, 0.0]), ("mean", [2.0, 5.0, 0.0]), ("root", [6.0 / 3**0.5, 5.0, 0.0])]
)
def test_numbers_by_hand(readout: LevelReadout, expected: list[float]) -> None:
    np.testing.assert_allclose(over_atoms(RAW, PARTITION, readout)[:, 0], expected, rtol=1e-6)


def test_the_level_from_a_mean_does_not_depend_on_the_size() -> None:
    alike = Graph(jnp.zeros((4, 3)), jnp.ones(4, int), Partition(jnp.array([0, 1, 1, 1], jnp.int32), 2))
    one, three = ColoredNoise.Config(readout="mean").build().levels(jnp.full((4, 1), 0.3), alike)[0]
    assert one == pytest.approx(float(three))
    one, three = ColoredNoise.Config().build().levels(jnp.full((4, 1), 0.3), alike)[0]
    assert three > one
