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


def test_three_structures_for_which_means_over_pairs_would_fail() -> None:
    """γ = 0 in the middle: over it both ends would be closer to each other than they are directly."""
    positions, gamma = (
        np.array([[[-0.1, 0.0, 0.0]], [[0.0, 0.0, 0.0]], [[0.1, 0.0, 0.0]]]),
        np.array([[4.0], [0], [4.0]]),
    )
    by_pairs = np.eye(3)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        by_pairs[a, b] = by_pairs[b, a] = correlation(positions[[a, b]], gamma[[a, b]])[0, 1]
    assert np.linalg.eigvalsh(by_pairs).min() < -1e-3
    assert np.linalg.eigvalsh(correlation(positions, gamma)).min() > 0


def test_its_curvature_is_gamma_where_lengths_are_the_same() -> None:
    step, gamma = 1e-4, np.array([[0.5, 2.0, 7.0, 1.0]])
    for atom in range(4):
        moved = np.zeros((1, 4, 3))
        moved[0, atom, 1] = step
        found = correlation(np.concatenate([POSITIONS[:1], POSITIONS[:1] + moved]), np.repeat(gamma, 2, axis=0))[0, 1]
        assert 2 * (1 - found) / step**2 == pytest.approx(gamma[0, atom], rel=1e-5)


def test_atoms_that_do_not_move_do_not_decorrelate_the_rest() -> None:
    """The variance of a difference, 2ρ²(1 − R), with γ_i = ω_i²/ρ², is the same beside distant copies."""
    small = POSITIONS[:2]
    omega = np.array([[0.1, 0.2, 0.3, 0.4], [0.15, 0.25, 0.2, 0.35]])

    def variance(positions: np.ndarray, level: float, omega: np.ndarray) -> float:
        return 2 * level**2 * (1 - correlation(positions, (omega / level) ** 2)[0, 1])

    alone = variance(small, 10.0, omega)
    still = np.repeat(POSITIONS[2:3] + 40.0, 2, axis=0)
    together = variance(np.concatenate([small, still], 1), 20.0, np.concatenate([omega, 2 * omega[::-1]], 1))
    np.testing.assert_allclose(together, alone, rtol=0.01)
