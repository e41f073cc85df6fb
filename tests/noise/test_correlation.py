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


def test_its_curvature_is_gamma_where_lengths_are_the_same() -> None:
    step, gamma = 1e-4, np.array([[0.5, 2.0, 7.0, 1.0]])
    for atom in range(4):
        moved = np.zeros((1, 4, 3))
        moved[0, atom, 1] = step
        found = correlation(np.concatenate([POSITIONS[:1], POSITIONS[:1] + moved]), np.repeat(gamma, 2, axis=0))[0, 1]
        assert 2 * (1 - found) / step**2 == pytest.approx(gamma[0, atom], rel=1e-5)


def test_where_lengths_change_with_positions_its_curvature_is_larger_than_gamma() -> None:
    """By (D/2) Σ_j (∂ ln ℓ_j)²: what the module says that forces do not have."""
    step, gamma, slopes = 1e-4, np.array([0.5, 2.0, 7.0, 1.0]), np.array([0.3, -0.2, 0.5, 0.1])
    moved = np.zeros((4, 3))
    moved[2, 1] = step
    pair = np.stack([POSITIONS[0] - moved / 2, POSITIONS[0] + moved / 2])
    lengths = gamma**-0.5 * np.exp(np.outer([-step / 2, step / 2], slopes))
    found = correlation(pair, lengths**-2)[0, 1]
    assert 2 * (1 - found) / step**2 == pytest.approx(gamma[2] + 1.5 * (slopes**2).sum(), rel=1e-5)
