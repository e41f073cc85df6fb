import numpy as np
import pytest

from huefield.evaluation.bootstrap import (
    ResampledMetric,
    Resampling,
    bootstrap_intervals,
    draws,
    estimates,
    interval_of_mean,
    resampled,
)
from huefield.evaluation.entries import UndefinedMetricError
from huefield.evaluation.summaries import MetricSummary, summary
from huefield.evaluation.sums import MetricSums, Owners, sums_by_structure

STRUCTURES, ATOMS = 120, 6
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


def _columns(seed: int, zeros: int = 3) -> Columns:
    """Errors that are alike within a structure, variances with ties and some zeros, structures."""
    rng = np.random.default_rng(seed)
    scale = np.repeat(rng.gamma(2.0, 1.0, STRUCTURES), ATOMS)
    variance = np.round(scale * rng.gamma(4.0, 0.25, scale.size), 1) + 0.05
    variance[:zeros] = 0.0
    error = np.sqrt(scale * np.repeat(rng.uniform(0.5, 1.5, STRUCTURES), ATOMS)) * rng.standard_normal(scale.size)
    return error, variance, np.repeat(np.arange(STRUCTURES), ATOMS)


def _sums(columns: Columns, dof: float | None = None) -> MetricSums:
    error, variance, structure = columns
    return sums_by_structure(error, variance, Owners(structure, STRUCTURES), bins=10, dof=dof)


def _value(found: MetricSummary, metric: str) -> float:
    if metric.startswith("coverage_"):
        return next(c.observed for c in found.coverage if f"coverage_{100 * c.nominal:.0f}" == metric)
    return getattr(found, metric)


@pytest.mark.parametrize(("zeros", "dof"), [(0, None), (3, None), (3, 3.1)])
def test_sums_with_unit_weights_give_the_metrics(zeros: int, dof: float | None) -> None:
    columns = _columns(0, zeros)
    sums = _sums(columns, dof)
    whole = sums.like(sums.stacked().sum(0, keepdims=True))
    expected = summary(np.zeros(len(columns[0])), columns[1], columns[0], dof=dof)
    for estimate in estimates(whole):
        assert estimate.values[0] == pytest.approx(_value(expected, estimate.metric), rel=1e-12), estimate.metric


@pytest.mark.slow
def test_resamples_spread_as_metrics_of_resampled_structures_do() -> None:
    """Beside a loop over metrics from scratch, with bins and ranks of their own."""
    columns, rng = _columns(1), np.random.default_rng(2)
    fast = estimates(resampled(_sums(columns), 1000, rng=rng))
    slow = []
    for _ in range(400):
        rows = (rng.integers(STRUCTURES, size=STRUCTURES)[:, None] * ATOMS + np.arange(ATOMS)).ravel()
        slow.append(summary(np.zeros(rows.size), columns[1][rows], columns[0][rows]))
    for estimate in fast:
        spread = np.std([_value(found, estimate.metric) for found in slow])
        assert np.std(estimate.values) == pytest.approx(spread, rel=0.2), estimate.metric


def test_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    rng = np.random.default_rng(3)
    absolute = rng.uniform(0.0, 1.0, 2000)
    found = summary(np.zeros(2000), rng.gamma(2.0, 1.0, 2000), absolute, resamples=2000).interval("mae")
    assert found is not None
    expected = absolute.mean() + np.array([-1.96, 1.96]) * absolute.std() / np.sqrt(2000)
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=6e-4)


def test_interval_of_the_mean_of_structures() -> None:
    """That of the normal distribution; and the very one of the MAE, whose entries are one for each structure."""
    rng = np.random.default_rng(8)
    values = rng.uniform(0.0, 1.0, 2000)
    found = interval_of_mean("joint_nll", values, Resampling(2000, 0, 10))
    expected = values.mean() + np.array([-1.96, 1.96]) * values.std() / np.sqrt(2000)
    assert found.metric == "joint_nll"
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=2e-3)
    mae = summary(np.zeros(2000), np.ones(2000), values, resamples=2000).interval("mae")
    assert mae is not None
    assert (found.low, found.high) == pytest.approx((mae.low, mae.high), rel=1e-12)


@pytest.mark.parametrize(
    ("count", "resamples", "kind", "message"),
    [
        (1, 5, UndefinedMetricError, "a single structure cannot be resampled"),
        (3, 1, ValueError, "resamples must be at least 2"),
    ],
)
def test_a_mean_without_an_interval_says_why(count: int, resamples: int, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        interval_of_mean("joint_nll", np.ones(count), Resampling(resamples, 0, 10))


def test_entries_of_one_structure_are_not_independent() -> None:
    """Copies of each entry say nothing new: with structures named the interval stays, without it shrinks."""
    rng = np.random.default_rng(4)
    variance, error = rng.gamma(2.0, 1.0, 300), rng.standard_normal(300)
    columns = (np.zeros(2700), np.repeat(variance, 9), np.repeat(error, 9))

    def width(**kwargs: np.ndarray) -> float:
        found = summary(*columns, resamples=1000, **kwargs).interval("rmse")
        assert found is not None
        return found.high - found.low

    assert width(structure=np.repeat(np.arange(300), 9)) == pytest.approx(3 * width(), rel=0.15)


def test_names_of_structures_do_not_matter() -> None:
    error, variance, structure = _columns(5)
    resampling = Resampling(50, 0, 10)
    one = bootstrap_intervals(error, variance, structure, resampling)
    assert one == bootstrap_intervals(error, variance, 1000 + 7 * structure, resampling)
    assert one != bootstrap_intervals(error, variance, structure, Resampling(50, 1, 10))


def test_intervals_of_a_t_distribution_contain_its_metrics() -> None:
    error, variance, structure = _columns(5)
    found = summary(np.zeros(len(error)), variance, error, structure=structure, resamples=200, dof=3.1)
    for metric in ("nll", "crps", "coverage_95"):
        interval = found.interval(metric)
        assert interval is not None
        assert interval.low < _value(found, metric) < interval.high
    normal = summary(np.zeros(len(error)), variance, error, structure=structure, resamples=200)
    assert found.interval("nll") != normal.interval("nll")
    assert found.interval("rzv") == normal.interval("rzv")


def test_blocks_of_draws_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = _sums(_columns(6))
    one = resampled(sums, 30, rng=np.random.default_rng(0)).stacked()
    monkeypatch.setattr("huefield.evaluation.bootstrap.BLOCK", 7 * STRUCTURES)
    np.testing.assert_allclose(resampled(sums, 30, rng=np.random.default_rng(0)).stacked(), one, rtol=1e-12)


def test_as_many_structures_are_drawn_as_there_are() -> None:
    found = draws(50, 2000, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(found.sum(1), 50)
    np.testing.assert_allclose(found.mean(0), 1.0, atol=5 / np.sqrt(2000))
    assert found.var() == pytest.approx(1 - 1 / 50, rel=0.02)


def test_few_structures_with_empty_bins_have_finite_intervals() -> None:
    rng = np.random.default_rng(7)
    found = summary(np.zeros(12), rng.gamma(2.0, 1.0, 12), rng.standard_normal(12), resamples=200)
    assert len(found.intervals) == 18
    for interval in found.intervals:
        assert np.isfinite([interval.low, interval.high]).all()
        assert interval.low <= interval.high


def test_undefined_metrics_have_no_interval() -> None:
    found = summary(np.zeros(30), np.zeros(30), np.arange(30.0), resamples=20)
    assert {"nll", "rzv", "ence", "cv", "rank_correlation"}.isdisjoint(i.metric for i in found.intervals)
    assert found.interval("nll") is None
    assert found.interval("mae") is not None


def test_a_metric_that_no_resample_determines_has_an_empty_interval() -> None:
    found = ResampledMetric("nll", np.array([np.nan, np.inf])).interval()
    assert np.isnan([found.low, found.high]).all()


def test_one_structure_has_no_intervals_and_a_remark() -> None:
    found = summary(np.zeros(30), np.arange(1.0, 31.0), np.arange(30.0), structure=np.zeros(30, int), resamples=20)
    assert found.intervals == ()
    assert found.remarks == ("intervals: a single structure cannot be resampled",)
