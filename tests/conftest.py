"""Shared fixtures. Precision is an argument of tests, as it is of everything else."""

from collections.abc import Iterator

import jax
import jaxtyping
import pytest


@pytest.fixture(params=["float32", "float64"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test in both precisions."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.fixture
def x64() -> Iterator[None]:
    """Run a test in double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def as_users_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shape checks that pytest adds, so that ours are the ones that speak."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


WHOLE_PROGRAMS = (
    "tests/training/",
    "tests/ase/",
    "tests/cli/",
    "tests/reproduce/",
    "tests/make_data/",
    "tests/test_readme.py",
)
"""Tests of whole programs, which take a quarter longer with shapes checked in every function; others check them."""


@pytest.fixture(scope="module", autouse=True)
def _shapes_where_functions_are_tested(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check shapes in tests of parts, not again in those of whole programs."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", request.node.nodeid.startswith(WHOLE_PROGRAMS))
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
