import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy.stats import norm
from scipy.stats import t as student

from huefield.evaluation.curves import (
    CoverageCurve,
    bin_numbers,
    coverage_curve,
    reliability,
    retention_curve,
    z_histogram,
)


def test_reliability_by_hand() -> None:
    found = reliability([1.0, 7.0, -1.0, 1.0], [1.0, 16.0, 3.0, 9.0], bins=2)
    np.testing.assert_array_equal(found.count, [2, 2])
    np.testing.assert_allclose(found.rmv, np.sqrt([2.0, 12.5]))
    np.testing.assert_allclose(found.rmse, np.sqrt([1.0, 25.0]))


@pytest.mark.parametrize(
    ("variance", "bins", "counts"),
    [
        ([1, 2, 3, 4, 5, 6, 7], 3, [3, 2, 2]),
        ([1, 1, 1, 1, 2, 3], 2, [4, 2]),
        ([1, 2, 3, 3, 3, 3], 2, [2, 4]),
        ([1, 2, 2, 2, 2, 3], 2, [1, 5]),
        ([5, 5, 5, 5], 4, [4]),
        ([1, 1, 2, 2, 2, 2, 2, 2, 3, 3], 5, [2, 6, 2]),
    ],
)
def test_equal_variances_stay_together(variance: list[float], bins: int, counts: list[int]) -> None:
    shuffled = np.random.default_rng(0).permutation(np.array(variance, float))
    number = bin_numbers(shuffled, bins)
    np.testing.assert_array_equal(np.bincount(number), counts)
    assert all(len(set(number[shuffled == value])) == 1 for value in variance)


@pytest.mark.parametrize("distinct_variances", [3, 17, 1000])
def test_reliability_does_not_depend_on_the_order_of_the_input(distinct_variances: int) -> None:
    rng = np.random.default_rng(distinct_variances)
    variance, error = rng.integers(1, distinct_variances + 1, 500).astype(float), rng.standard_normal(500)
    order = rng.permutation(500)
    one, other = reliability(error, variance, 10), reliability(error[order], variance[order], 10)
    np.testing.assert_array_equal(one.count, other.count)
    np.testing.assert_allclose(one.rmv, other.rmv, rtol=1e-13)
    np.testing.assert_allclose(one.rmse, other.rmse, rtol=1e-13)
    assert (np.diff(one.rmv) > 0).all()
    assert one.count.sum() == 500


def test_coverage_curve_of_normal_quantiles_is_the_diagonal() -> None:
    probability = (np.arange(2000) + 0.5) / 2000
    found = coverage_curve(3 * norm.ppf(probability), np.full(2000, 9.0), [0.1, 0.5, 0.9])
    np.testing.assert_allclose(found.observed, found.nominal, atol=1e-12)


def test_coverage_curve_of_t_quantiles_is_the_diagonal() -> None:
    probability = (np.arange(2000) + 0.5) / 2000
    error = 3 * np.sqrt(1 / 3) * student(3).ppf(probability)
    found = coverage_curve(error, np.full(2000, 9.0), [0.0, 0.1, 0.5, 0.9, 1.0], dof=3.0)
    np.testing.assert_allclose(found.observed, found.nominal, atol=1e-12)


def test_area_where_the_curve_crosses_the_diagonal() -> None:
    """Two triangles on each side: differences of 0.3 and −0.1, zero after three quarters of the way."""
    curve = CoverageCurve(np.array([0.0, 0.4, 0.8, 1.0]), np.array([0.0, 0.7, 0.7, 1.0]))
    assert curve.area == pytest.approx(0.4 * 0.3 / 2 + 0.3 * 0.3 / 2 + 0.1 * 0.1 / 2 + 0.2 * 0.1 / 2)


def test_retention_curve_by_hand() -> None:
    found = retention_curve([5.0, -3.0, 1.0, 4.0], [3.0, 2.0, 2.0, 1.0], points=100)
    np.testing.assert_allclose(found.kept, [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(found.error, [4.0, 3.0, 8 / 3, 13 / 4])
    np.testing.assert_allclose(found.oracle, [1.0, 2.0, 8 / 3, 13 / 4])


def test_retention_curve_of_few_points_ends_with_all_entries() -> None:
    error = np.arange(1.0, 1001.0)
    found = retention_curve(error, error, points=4)
    np.testing.assert_allclose(found.kept, [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(found.error, found.oracle)
    np.testing.assert_allclose(found.error, [125.5, 250.5, 375.5, 500.5])


def test_z_histogram_by_hand() -> None:
    """z-scores −10, −0.5, 0, 0.5, 1 and 7: the left edge of a bin belongs to it."""
    found = z_histogram([-20.0, -1.0, 0.0, 1.0, 2.0, 14.0], [4.0] * 6, edges=[-1.0, 0.0, 1.0, 3.0])
    np.testing.assert_allclose(found.density, [1 / 6, 2 / 6, 1 / 6 / 2])
    assert (found.below, found.above) == pytest.approx((1 / 6, 1 / 6))


def test_z_histogram_is_numpys() -> None:
    rng = np.random.default_rng(0)
    error, variance = rng.standard_normal(5000), rng.gamma(2.0, 1.0, 5000)
    found = z_histogram(error, variance)
    z = error / np.sqrt(variance)
    np.testing.assert_allclose(found.density, np.histogram(z, found.edges)[0] / 5000 / np.diff(found.edges))
    assert found.density @ np.diff(found.edges) + found.below + found.above == pytest.approx(1.0)
    assert found.below == pytest.approx(np.mean(z < -5)) != 0


@pytest.mark.parametrize("coverages", [[0.5, 0.2], [-0.1, 0.5], [0.5, 1.5], [], [[0.5]], [np.nan]])
def test_bad_coverages_are_named(coverages: ArrayLike) -> None:
    with pytest.raises(ValueError, match="coverages must be a list of increasing numbers between 0 and 1, but are"):
        coverage_curve([1.0], [1.0], coverages)


@pytest.mark.parametrize("edges", [[0.0], [1.0, 1.0], [2.0, 1.0], [[0.0, 1.0]]])
def test_bad_edges_are_named(edges: ArrayLike) -> None:
    with pytest.raises(ValueError, match="edges must be a list of at least two increasing numbers, but are"):
        z_histogram([1.0], [1.0], edges)


def test_a_retention_curve_has_points() -> None:
    with pytest.raises(ValueError, match="points must be positive, but is 0"):
        retention_curve([1.0], [1.0], points=0)
