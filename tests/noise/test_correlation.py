import numpy as np
import pytest

from huefield.noise.correlation import correlation

RNG = np.random.default_rng(0)
POSITIONS = 0.3 * RNG.normal(size=(7, 4, 3))


def test_equal_lengths_give_the_exponentiated_quadratic_kernel() -> None:
    found = correlation(POSITIONS, np.full((7, 4), 2.5))
    squared = ((POSITIONS[:, None] - POSITIONS[None]) ** 2).sum((-1, -2))
    np.testing.assert_allclose(found, np.exp(-0.5 * 2.5 * squared), rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_positive_semidefinite_whatever_the_lengths(seed: int) -> None:
    lengths = np.exp(2 * np.random.default_rng(seed).normal(size=(7, 4)))
    found = correlation(POSITIONS, lengths)
    np.testing.assert_allclose(np.diag(found), 1.0)
    assert np.linalg.eigvalsh(found).min() > -1e-12


def test_its_curvature_is_gamma() -> None:
    step, gamma = 1e-4, np.array([[0.5, 2.0, 7.0, 1.0]])
    for atom in range(4):
        moved = np.zeros((1, 4, 3))
        moved[0, atom, 1] = step
        found = correlation(np.concatenate([POSITIONS[:1], POSITIONS[:1] + moved]), np.repeat(gamma, 2, axis=0))[0, 1]
        assert 2 * (1 - found) / step**2 == pytest.approx(gamma[0, atom], rel=1e-5)
