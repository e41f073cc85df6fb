"""Members to test."""

from collections.abc import Iterator

import jax
import pytest

from huefield.model.forcefield import ForceField
from huefield.testing import cast_floats
from tests.potentials.cases import CONFIGS, randomised, training, untrained


@pytest.fixture(params=["float64", "float32"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both precisions."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.fixture(params=CONFIGS)
def kind(request: pytest.FixtureRequest) -> str:
    """All potentials of atoms."""
    return request.param


@pytest.fixture(params=["random", pytest.param("trained", marks=pytest.mark.slow)])
def member64(request: pytest.FixtureRequest, kind: str) -> ForceField:
    """In float64, whatever the test runs in."""
    with jax.enable_x64(True):
        return randomised(untrained(kind)) if request.param == "random" else training(kind)[0]


@pytest.fixture
def member(member64: ForceField, precision: str) -> ForceField:
    """In both precisions."""
    return cast_floats(member64, precision)
