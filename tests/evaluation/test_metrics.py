import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import uncertainty_toolbox as uct
from scipy.integrate import quad
from scipy.stats import norm, spearmanr, variation
from scipy.stats import t as student
from sklearn.metrics import auc, mean_absolute_error, roc_auc_score, root_mean_squared_error

from huefield.evaluation import gaussian_nll, rmse
from huefield.evaluation.entries import UndefinedMetricError
from huefield.evaluation.metrics import (
    auroc_of_worst,
    coefficient_of_variation,
    coverage,
    crps,
    ence,
    interval_score,
    mae,
    miscalibration_area,
    nll,
    rank_correlation,
    retention_area,
    rmv,
    rzv,
    sharpness,
    zscores,
)

Pair = tuple[np.ndarray, np.ndarray]


@pytest.fixture
def pair() -> Pair:
    """Errors and variances, many of them equal."""
    rng = np.random.default_rng(0)
    variance = np.round(rng.gamma(2.0, 1.0, 400), 1) + 0.1
    return 1.3 * np.sqrt(variance) * rng.standard_normal(400), variance


def test_errors_by_hand() -> None:
    assert mae([[3.0, -4.0]]) == 3.5
    assert rmse([3.0, -4.0]) == pytest.approx(np.sqrt(12.5))


def test_errors_are_sklearns(pair: Pair) -> None:
    zero = np.zeros(400)
    assert mae(pair[0]) == pytest.approx(mean_absolute_error(pair[0], zero), rel=1e-12)
    assert rmse(pair[0]) == pytest.approx(root_mean_squared_error(pair[0], zero), rel=1e-12)


def test_nll_by_hand() -> None:
    assert gaussian_nll([2.0], [4.0]) == pytest.approx(0.5 * (1 + np.log(4) + np.log(2 * np.pi)))


def test_nll_is_scipys() -> None:
    rng = np.random.default_rng(0)
    error, sigma = rng.standard_normal(50), rng.uniform(0.1, 2.0, 50)
    assert gaussian_nll(error, sigma**2) == pytest.approx(-norm(0, sigma).logpdf(error).mean(), rel=1e-12)


@pytest.mark.parametrize("dof", [2.05, 3.1, 100.0])
def test_nll_of_a_t_distribution_is_scipys(pair: Pair, dof: float) -> None:
    scale = np.sqrt(pair[1] * (dof - 2) / dof)
    assert nll(*pair, dof) == pytest.approx(-student(dof, scale=scale).logpdf(pair[0]).mean(), rel=1e-12)
    assert nll(*pair) == gaussian_nll(*pair)


def test_metrics_of_many_degrees_of_freedom_are_normal(pair: Pair) -> None:
    for metric in (nll, crps, miscalibration_area):
        assert metric(*pair, 1e6) == pytest.approx(metric(*pair), rel=1e-4)
        assert metric(*pair, 3.0) != pytest.approx(metric(*pair), rel=1e-2)


def test_crps_of_a_t_distribution_is_the_mean_over_samples(pair: Pair) -> None:
    """[G07] E|X − y| − ½ E|X − X'|, with the means over 20 000 quantiles."""
    sample = np.sqrt(1 / 3) * student(3).ppf((np.arange(20_000) + 0.5) / 20_000)
    spread = np.mean((2 * np.arange(20_000) - 19_999) * sample) / 20_000
    for error, variance in zip(*(column[:5] for column in pair), strict=True):
        expected = np.mean(np.abs(np.sqrt(variance) * sample - error)) - np.sqrt(variance) * spread
        assert crps([error], [variance], 3.0) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("nominal", [0.5, 0.68, 0.9, 0.95, 0.99])
def test_intervals_cover_samples_of_their_own_distribution(nominal: float) -> None:
    """Within three standard errors; those of a normal distribution with the same σ miss by more."""
    rng = np.random.default_rng(4)
    sigma, count = rng.uniform(0.1, 2.0, 100_000), 100_000
    error = sigma * np.sqrt(1.1 / 3.1) * rng.standard_t(3.1, count)
    margin = 3 * np.sqrt(nominal * (1 - nominal) / count)
    assert abs(coverage(error, sigma**2, nominal, 3.1) - nominal) < margin
    assert abs(coverage(error, sigma**2, nominal) - nominal) > margin


def test_z_scores_by_hand() -> None:
    np.testing.assert_allclose(zscores([[2.0, -3.0]], [[4.0, 9.0]]), [1.0, -1.0])
    assert rzv([2.0, -3.0], [4.0, 9.0]) == 1.0
    assert rzv([2.0, 3.0], [4.0, 9.0]) == 0.0, "the deviation from the mean counts, not from zero"


def test_rzv_is_numpys_deviation(pair: Pair) -> None:
    assert rzv(*pair) == pytest.approx(np.std(pair[0] / np.sqrt(pair[1])), rel=1e-12)


def test_ence_by_hand() -> None:
    """Two bins: RMV 1 and 2, RMSE 2 and 1."""
    assert ence([2.0, 1.0, -2.0, -1.0], [1.0, 4.0, 1.0, 4.0], bins=2) == pytest.approx((1 / 1 + 1 / 2) / 2)


def test_ence_is_a_loop_over_sorted_parts() -> None:
    rng = np.random.default_rng(1)
    error, variance = rng.standard_normal(103), rng.gamma(2.0, 1.0, 103)
    terms = []
    for rows in np.array_split(np.argsort(variance), 7):
        root_variance, root_error = np.sqrt(variance[rows].mean()), np.sqrt((error[rows] ** 2).mean())
        terms.append(abs(root_variance - root_error) / root_variance)
    assert ence(error, variance, bins=7) == pytest.approx(np.mean(terms), rel=1e-12)


def test_spread_of_uncertainties_by_hand() -> None:
    assert coefficient_of_variation([1.0, 9.0]) == 0.5
    assert coefficient_of_variation([0.0, 4.0]) == 1.0, "zero variances count"
    assert rmv([1.0, 9.0]) == sharpness([1.0, 9.0]) == pytest.approx(np.sqrt(5))


def test_spread_of_uncertainties_is_scipys(pair: Pair) -> None:
    assert coefficient_of_variation(pair[1]) == pytest.approx(variation(np.sqrt(pair[1])), rel=1e-12)


def test_sharpness_crps_and_area_are_those_of_uncertainty_toolbox(pair: Pair) -> None:
    error, sigma, zero = pair[0], np.sqrt(pair[1]), np.zeros(400)
    assert sharpness(pair[1]) == pytest.approx(uct.sharpness(sigma), rel=1e-12)
    assert crps(*pair) == pytest.approx(uct.crps_gaussian(zero, sigma, error), rel=1e-12)
    assert miscalibration_area(*pair) == pytest.approx(uct.miscalibration_area(zero, sigma, error), rel=1e-11)
    assert gaussian_nll(*pair) == pytest.approx(uct.nll_gaussian(zero, sigma, error), rel=1e-12)


def test_interval_score_by_hand() -> None:
    """An interval of 90 % and σ = 2 is 6.58 wide; an error of 5 is 1.71 outside, which costs 20 times as much."""
    half = 2 * 1.6448536269514722
    assert interval_score([0.0], [4.0], 0.9) == pytest.approx(2 * half, rel=1e-12)
    assert interval_score([-5.0], [4.0], 0.9) == pytest.approx(2 * half + 20 * (5 - half), rel=1e-12)


def test_interval_score_is_smallest_for_the_true_width() -> None:
    errors = student.rvs(5, size=100_000, random_state=0) * np.sqrt(3 / 5)
    scores = [interval_score(errors, np.full(100_000, factor), 0.95, 5.0) for factor in (0.8, 1.0, 1.25)]
    assert scores[1] == min(scores)


def test_crps_by_hand() -> None:
    """σ (√2 − 1)/√π for an exact hit."""
    assert crps([0.0], [4.0]) == pytest.approx(2 * (np.sqrt(2) - 1) / np.sqrt(np.pi), rel=1e-14)


def test_crps_is_the_integral_of_squared_differences_of_distributions() -> None:
    below, above = (
        quad(lambda x: norm(0, 1.5).cdf(x) ** 2, -np.inf, 0.7)[0],
        quad(lambda x: norm(0, 1.5).sf(x) ** 2, 0.7, np.inf)[0],
    )
    assert crps([0.7], [2.25]) == pytest.approx(below + above, rel=1e-8)


def test_crps_of_zero_variance_is_the_limit() -> None:
    assert crps([-0.3, 0.0], [0.0, 0.0]) == 0.15
    assert crps([-0.3], [1e-20]) == pytest.approx(0.3)


@pytest.mark.parametrize(("level", "expected"), [(0.0, 0.25), (0.5, 0.5), (0.68, 0.5), (0.95, 0.75), (1.0, 1.0)])
def test_coverage_by_hand(level: float, expected: float) -> None:
    """Errors of 0, 0.5, 1.5 and 5 σ."""
    assert coverage([0.0, 1.0, -3.0, 10.0], [4.0] * 4, level) == expected


def test_coverage_is_that_of_uncertainty_toolbox(pair: Pair) -> None:
    for level in (0.5, 0.68, 0.9, 0.95, 0.99):
        expected = uct.get_proportion_in_interval(np.zeros(400), np.sqrt(pair[1]), pair[0], level)
        assert coverage(*pair, level) == pytest.approx(expected, rel=1e-12)


def test_zero_width_covers_exact_hits_only() -> None:
    assert coverage([0.0, 0.1, -1e-300], [0.0, 0.0, 0.0], 0.99) == pytest.approx(1 / 3)


def test_area_of_far_too_small_and_far_too_large_variances() -> None:
    """The curve is 0 up to the last of 100 coverages, or 1 from the second on, straight between them."""
    triangle, last = (98 / 99) ** 2 / 2, 98 / 99 / 99 / 2
    assert miscalibration_area([1.0, -1.0], [1e-12] * 2) == pytest.approx(triangle + last, rel=1e-12)
    assert miscalibration_area([1.0, -1.0], [1e12] * 2) == pytest.approx(triangle + last, rel=1e-12)


def test_rank_correlation_by_hand() -> None:
    assert rank_correlation([0.1, -0.2, 30.0], [1.0, 2.0, 3.0]) == pytest.approx(1.0)
    assert rank_correlation([0.3, -0.2, 0.1], [1.0, 2.0, 3.0]) == pytest.approx(-1.0)
    assert rank_correlation([0.2, -0.1, 0.3], [1.0, 2.0, 3.0]) == pytest.approx(0.5)


def test_rank_correlation_is_scipys(pair: Pair) -> None:
    error = np.round(pair[0], 1)
    expected = spearmanr(np.sqrt(pair[1]), np.abs(error)).statistic
    assert rank_correlation(error, pair[1]) == pytest.approx(expected, rel=1e-12)


def test_retention_area_by_hand() -> None:
    """Kept: 1; then 1, 4; then 1, 4, 1."""
    assert retention_area([1.0, -4.0, 1.0], [3.0, 2.0, 1.0]) == pytest.approx((1 + 2.5 + 2) / 3)
    assert retention_area([1.0, -4.0, 1.0], [7.0, 7.0, 7.0]) == pytest.approx(2.0), "equal variances say nothing"


def test_retention_area_is_a_plain_loop(pair: Pair) -> None:
    """Over entries that are kept one after the other; of equal variances, each counts as their mean."""
    error, variance = np.abs(pair[0]).tolist(), pair[1].tolist()
    total, areas = 0.0, []
    for count, level in enumerate(sorted(variance), start=1):
        tied = [e for e, v in zip(error, variance, strict=True) if v == level]
        total += sum(tied) / len(tied)
        areas.append(total / count)
    assert retention_area(*pair) == pytest.approx(sum(areas) / len(areas), rel=1e-10)


def test_retention_area_is_the_mean_over_random_orders_of_ties() -> None:
    rng = np.random.default_rng(2)
    error, variance = rng.standard_normal(30), rng.integers(1, 5, 30).astype(float)
    areas = []
    for _ in range(4000):
        order = np.lexsort([rng.random(30), variance])
        kept = np.arange(1, 31)
        areas.append(
            auc(np.append(0, np.repeat(kept, 2)[:-1]), np.repeat(np.cumsum(np.abs(error[order])) / kept, 2)) / 30
        )
    standard_error = np.std(areas) / np.sqrt(4000)
    assert abs(retention_area(error, variance) - np.mean(areas)) < 4 * standard_error


def test_auroc_by_hand() -> None:
    """The worst of twenty has the largest variance, or the second to largest, or that of all others."""
    error = np.append(np.full(19, 0.1), -5.0)
    assert auroc_of_worst(error, np.arange(1.0, 21.0)) == 1.0
    assert auroc_of_worst(error, np.append(np.arange(1.0, 20.0), 18.5)) == pytest.approx(18 / 19)
    assert auroc_of_worst(error, np.full(20, 3.0)) == 0.5


@pytest.mark.parametrize("worst", [0.05, 0.2])
def test_auroc_is_sklearns(pair: Pair, worst: float) -> None:
    labels = np.abs(pair[0]) >= np.quantile(np.abs(pair[0]), 1 - worst)
    assert auroc_of_worst(*pair, worst) == pytest.approx(roc_auc_score(labels, pair[1]), rel=1e-12)


def test_a_twentieth_of_140_entries_is_seven() -> None:
    """0.05 × 140 is a little more than seven in double precision."""
    error = np.arange(140.0)
    variance = np.where(error == 132, 2.0, 1.0)
    assert auroc_of_worst(error, variance) == pytest.approx(0.5 - 0.5 / 133)


@pytest.mark.parametrize("metric", [rank_correlation, retention_area, auroc_of_worst])
def test_order_of_the_input_does_not_matter(metric: Callable[..., float], pair: Pair) -> None:
    order = np.random.default_rng(3).permutation(400)
    assert metric(pair[0][order], pair[1][order]) == pytest.approx(metric(*pair), rel=1e-12)


@pytest.mark.parametrize(
    ("error", "variance", "message"),
    [
        ([], [], "the array is empty"),
        ([1.0, np.nan], [1.0, 1.0], "error must be finite, but is nan at index 1"),
        ([1.0, 2.0], [1.0, 0.0], "variance must be positive, but is 0.0 at index 1"),
        ([1.0, 2.0], [1.0], r"variance must have shape \(2\), but has shape \(1,\)"),
    ],
)
def test_bad_input_is_named(error: list[float], variance: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gaussian_nll(error, variance)


@pytest.mark.parametrize(
    ("variance", "message"),
    [
        ([], "there are no variances: the array is empty"),
        ([1.0, -1.0], "variance must be non-negative, but is -1.0 at index 1"),
        ([1.0, np.inf], "variance must be finite, but is inf at index 1"),
    ],
)
def test_bad_variances_are_named(variance: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rmv(variance)


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda: coefficient_of_variation([0.0, 0.0]), "all variances are zero"),
        (lambda: coefficient_of_variation([4.0]), "a single entry has no spread"),
        (lambda: rzv([1.0], [4.0]), "a single entry has no spread"),
        (lambda: rank_correlation([1.0, 2.0], [1.0, 1.0]), "all variances are equal"),
        (lambda: rank_correlation([1.0, -1.0], [1.0, 2.0]), "all absolute errors are equal"),
        (lambda: auroc_of_worst([1.0, 1.0], [1.0, 2.0]), "all entries are among the worst"),
        (lambda: ence([1.0, 2.0], [1.0, 2.0], bins=3), "2 entries with a variance above zero are too few for 3 bins"),
        (lambda: ence([1e200, 2.0], [1.0, 2.0], bins=1), "a squared error is too large"),
        (lambda: rmse([1e200]), "a term is too large for double precision"),
        (lambda: gaussian_nll([1.0], [5e-324]), "a term is too large for double precision"),
        (lambda: rzv([1e100, -1e100], [1e-300] * 2), "a term is too large for double precision"),
    ],
)
def test_what_has_no_value_says_why(compute: Callable[[], float], message: str) -> None:
    with pytest.raises(UndefinedMetricError, match=message):
        compute()


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda: ence([1.0], [1.0], bins=0), "bins must be at least 1, but is 0"),
        (lambda: coverage([1.0], [1.0], 95.0), r"increasing numbers between 0 and 1, but are \[95.\]"),
        (lambda: auroc_of_worst([1.0, 2.0], [1.0, 2.0], 5.0), "must lie between 0 and 1, but is 5.0"),
        (lambda: nll([1.0], [1.0], 2.0), "degrees of freedom must be at least 2.05, for a variance to exist, not 2"),
        (lambda: crps([1.0], [1.0], -1.0), "degrees of freedom must be at least 2.05, for a variance to exist, not -1"),
        (lambda: coverage([1.0], [1.0], 0.5, 1.0), "degrees of freedom must be at least 2.05"),
    ],
)
def test_bad_settings_are_named(compute: Callable[[], float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute()


def test_importing_the_package_does_not_import_scipy_stats() -> None:
    """It takes half a second, which the command line would pay."""
    program = "import sys, huefield, huefield.evaluation.evaluate; sys.exit('scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
