import json
from typing import Any

import numpy as np
import pytest
import uncertainty_toolbox as uct
from scipy.stats import norm, spearmanr
from sklearn.metrics import mean_absolute_error, roc_auc_score, root_mean_squared_error

from huefield.evaluation import metrics
from huefield.evaluation.bootstrap import Resampling
from huefield.evaluation.paper_metrics import paper_metrics
from huefield.evaluation.summaries import MetricSummary, summary, summary_of_lengths
from huefield.support.plain import plain

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
NUMBERS = (
    "mae", "rmse", "nll", "rzv", "ence", "cv", "rmv", "crps", "miscalibration_area", "sharpness", "rank_correlation",
    "retention_area", "auroc",
)  # fmt: skip


@pytest.fixture
def columns() -> Columns:
    """Means, variances and targets of 200 atoms."""
    rng = np.random.default_rng(0)
    variance = rng.gamma(2.0, 1.0, (200, 3))
    target = rng.standard_normal((200, 3))
    return target + 0.8 * np.sqrt(variance) * rng.standard_normal((200, 3)), variance, target


def test_metrics_are_the_pure_functions(columns: Columns) -> None:
    mean, variance, target = columns
    found, error = summary(*columns, bins=7), target - mean
    expected = {
        "mae": metrics.mae(error),
        "rmse": metrics.rmse(error),
        "nll": metrics.gaussian_nll(error, variance),
        "rzv": metrics.rzv(error, variance),
        "ence": metrics.ence(error, variance, 7),
        "cv": metrics.coefficient_of_variation(variance),
        "rmv": metrics.rmv(variance),
        "crps": metrics.crps(error, variance),
        "miscalibration_area": metrics.miscalibration_area(error, variance),
        "sharpness": metrics.sharpness(variance),
        "rank_correlation": metrics.rank_correlation(error, variance),
        "retention_area": metrics.retention_area(error, variance),
        "auroc": metrics.auroc_of_worst(error, variance),
    }
    assert {name: getattr(found, name) for name in NUMBERS} == pytest.approx(expected, rel=1e-14)
    assert (found.count, found.zero_variance, found.remarks, found.intervals) == (600, 0, (), ())
    for covered in found.coverage:
        assert covered.observed == metrics.coverage(error, variance, covered.nominal)
    assert [covered.nominal for covered in found.coverage] == [0.50, 0.68, 0.90, 0.95, 0.99]


def test_metrics_are_those_of_independent_implementations(columns: Columns) -> None:
    mean, variance, target = (column.ravel() for column in columns)
    found, sigma = summary(*columns), np.sqrt(variance)
    error = target - mean
    worst = np.abs(error) >= np.sort(np.abs(error))[-30]
    expected = {
        "mae": mean_absolute_error(target, mean),
        "rmse": root_mean_squared_error(target, mean),
        "nll": -norm(mean, sigma).logpdf(target).mean(),
        "rzv": np.std(error / sigma),
        "crps": uct.crps_gaussian(mean, sigma, target),
        "miscalibration_area": uct.miscalibration_area(mean, sigma, target),
        "sharpness": uct.sharpness(sigma),
        "rank_correlation": spearmanr(sigma, np.abs(error)).statistic,
        "auroc": roc_auc_score(worst, sigma),
    }
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected, rel=1e-10)


def test_metrics_of_a_t_distribution_are_the_pure_functions(columns: Columns) -> None:
    """Metrics that divide by σ only do not change."""
    mean, variance, target = columns
    found, normal, error = summary(*columns, dof=3.1), summary(*columns), target - mean
    assert (found.dof, normal.dof) == (3.1, None)
    assert found.nll == pytest.approx(metrics.nll(error, variance, 3.1), rel=1e-14)
    assert found.crps == pytest.approx(metrics.crps(error, variance, 3.1), rel=1e-14)
    assert found.miscalibration_area == metrics.miscalibration_area(error, variance, 3.1)
    for covered in found.coverage:
        assert covered.observed == metrics.coverage(error, variance, covered.nominal, 3.1)
    changed = {name for name in NUMBERS if getattr(found, name) != getattr(normal, name)}
    assert changed == {"nll", "crps", "miscalibration_area"}
    assert found.as_dict()["dof"] == 3.1


def test_single_precision_is_summed_in_double(columns: Columns) -> None:
    single = tuple(column.astype(np.float32) for column in columns)
    doubled = tuple(column.astype(float) for column in single)
    assert summary(*single).nll == summary(*doubled).nll


def test_zero_variances_are_counted_and_left_out() -> None:
    rng = np.random.default_rng(1)
    variance, error = rng.gamma(2.0, 1.0, 100), rng.standard_normal(100)
    zeros = np.zeros(5)
    found = summary(np.zeros(105), np.append(variance, zeros), np.append(error, [0.0, 0.0, 1.0, 2.0, -3.0]))
    alone = summary(np.zeros(100), variance, error)
    assert found.zero_variance == 5
    for name in ("nll", "rzv", "ence"):
        assert getattr(found, name) == pytest.approx(getattr(alone, name), rel=1e-13)
    assert found.crps == pytest.approx((100 * alone.crps + 6) / 105)
    assert found.coverage[4].observed == pytest.approx((100 * alone.coverage[4].observed + 2) / 105)
    assert found.rmv == pytest.approx(alone.rmv * np.sqrt(100 / 105))
    np.testing.assert_allclose(found.z_histogram.density, alone.z_histogram.density)
    (remark,) = found.remarks
    assert remark.startswith("5 of 105 values have a predicted variance of zero and are excluded from NLL, RZV, ENCE")


def _undefined(found: MetricSummary) -> set[str]:
    return {name for name in NUMBERS if np.isnan(getattr(found, name))}


def test_no_variances_at_all() -> None:
    found = summary(np.zeros(30), np.zeros(30), np.arange(30.0))
    assert _undefined(found) == {"nll", "rzv", "ence", "cv", "rank_correlation"}
    assert found.auroc == 0.5
    assert found.retention_area == pytest.approx(found.mae)
    for name in ("nll", "rzv", "ence", "cv", "z_histogram"):
        assert f"{name}: all variances are zero" in found.remarks
    assert len(found.reliability.count) == len(found.z_histogram.density) == 0


def test_one_entry_has_what_makes_sense() -> None:
    found = summary([1.0], [4.0], [3.0])
    assert (found.mae, found.rmse, found.rmv) == (2.0, 2.0, 2.0)
    assert _undefined(found) == {"rzv", "ence", "cv", "rank_correlation", "auroc"}
    assert len(found.remarks) == 5
    assert "rzv: a single entry has no spread: at least two are needed" in found.remarks
    assert (found.as_dict()["rzv"], found.as_dict()["cv"]) == (None, None)
    assert "ence: 1 entries with a variance above zero are too few for 10 bins" in found.remarks


def test_equal_variances_make_one_bin_and_a_remark() -> None:
    found = summary(np.zeros(40), np.full(40, 4.0), np.arange(40.0))
    assert found.reliability.count.tolist() == [40]
    assert found.ence == pytest.approx(abs(2 - found.rmse) / 2)
    assert "ence: 1 bins instead of 10, because many variances are equal" in found.remarks
    assert "rank_correlation: all variances are equal" in found.remarks


def test_a_variance_that_underflows_is_no_silent_infinity() -> None:
    found = summary(np.zeros(20), np.append(np.ones(19), 5e-324), np.arange(1.0, 21.0), bins=2)
    assert _undefined(found) == {"nll", "rzv"}
    too_large = [remark.split(":")[0] for remark in found.remarks if "too large for double precision" in remark]
    assert too_large == ["nll", "rzv"]


@pytest.mark.parametrize("zeros", [0, 5, 30])
def test_json_has_no_nan(zeros: int) -> None:
    variance = np.where(np.arange(30) < zeros, 0.0, np.arange(1.0, 31.0))
    found = summary(np.zeros(30), variance, np.arange(30.0), resamples=10)
    read = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert read["count"] == 30
    assert read["nll"] == (None if zeros == 30 else found.nll)
    assert read["reliability"]["rmse"] == found.reliability.rmse.tolist()
    assert read["coverage"][0] == {"nominal": 0.5, "observed": found.coverage[0].observed}


def test_plain_values() -> None:
    assert plain({1: (np.array([1.0, np.inf]), float("nan"), "x", True, None)}) == {
        "1": [[1.0, None], None, "x", True, None]
    }


def test_lengths_have_no_normal_metrics() -> None:
    """The length of a normal vector is not normal, but its mean square is its variance."""
    rng = np.random.default_rng(2)
    variance = rng.gamma(2.0, 1.0, 20_000)
    vectors = np.sqrt(variance)[:, None] * rng.standard_normal((20_000, 3))
    found = summary_of_lengths(np.sqrt((vectors**2).mean(1)), variance, None, Resampling(20, 0, 10))
    assert _undefined(found) == {"nll", "rzv", "crps", "miscalibration_area"}
    assert all(np.isnan(covered.observed) for covered in found.coverage)
    assert found.ence < 0.03
    assert {interval.metric for interval in found.intervals} == set(NUMBERS) - _undefined(found)
    undefined = "nll, rzv, crps, coverage, miscalibration_area, z_histogram"
    assert found.remarks[0].startswith(f"{undefined}: undefined for lengths of vectors")


@pytest.mark.parametrize("dof", [None, 3.1])
def test_scores_are_those_of_the_summary(columns: Columns, dof: float | None) -> None:
    mean, variance, target = (column.ravel() for column in columns)
    scores, whole = paper_metrics(target - mean, variance, 10, dof), summary(*columns, dof=dof)
    names = ("count", "zero_variance", "mae", "rmse", "nll", "rzv", "ence", "cv", "rmv", "remarks")
    assert scores.as_dict() == {name: plain(getattr(whole, name)) for name in names}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": [1.0]}, r"target must have shape \(2\), but has shape \(1,\)"),
        ({"variance": [1.0]}, r"variance must have shape \(2\), but has shape \(1,\)"),
        ({"variance": [1.0, -1.0]}, "variance must be non-negative, but is -1.0 at index 1"),
        ({"mean": [1.0, np.nan]}, "error must be finite, but is nan at index 1"),
        ({"mean": [], "variance": [], "target": []}, "the array is empty"),
        ({"structure": [1], "resamples": 5}, r"structure must have shape \(2\), but has shape \(1,\)"),
        ({"resamples": 1}, "resamples must be at least 2 for confidence intervals, but is 1"),
        ({"resamples": -5}, "resamples must be at least 2 for confidence intervals, but is -5"),
        ({"bins": 0}, "bins must be at least 1, but is 0"),
        ({"dof": 2.0}, "degrees of freedom must be at least 2.05, for a variance to exist, not 2"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    good = {"mean": [1.0, 2.0], "variance": [1.0, 2.0], "target": [1.0, 3.0]}
    with pytest.raises(ValueError, match=message):
        summary(**(good | change))


def test_variances_of_rounding_size_are_pointed_out() -> None:
    """Ten of them, beside ninety that are usual, make the mean log likelihood look good."""
    variance = np.where(np.arange(100) < 10, 1e-14, 1.0)
    found = summary(np.zeros(100), variance, np.sqrt(variance))
    assert any(remark.startswith("nll: 10 of 100 entries have a σ below 1e-05") for remark in found.remarks)
    assert not any("σ below" in remark for remark in summary(np.zeros(9), np.ones(9), np.arange(9.0)).remarks)
