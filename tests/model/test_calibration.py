"""Maps of variances: closed forms, scikit-learn, promises that are kept, and input that gives nothing to fit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from scipy.optimize import minimize_scalar
from sklearn.isotonic import IsotonicRegression

from huefield.model.calibration import (
    ONE_SIGMA,
    AbstractCalibration,
    CalibrationConfig,
    ConformalCalibration,
    GammaCalibration,
    IsotonicCalibration,
    ScaleCalibration,
)

FITS = (ScaleCalibration.fit, IsotonicCalibration.fit, ConformalCalibration.fit)


def rzv(error: np.ndarray, variance: np.ndarray) -> float:
    return float(np.sqrt(np.mean(error**2 / variance)))


def ence(error: np.ndarray, variance: np.ndarray, bins: int = 10) -> float:
    """Written once more, so that this file does not depend on the metrics."""
    parts = np.array_split(np.argsort(variance), bins)
    pairs = [(np.sqrt(variance[p].mean()), np.sqrt((error[p] ** 2).mean())) for p in parts]
    return float(np.mean([abs(rmv - rmse) / rmv for rmv, rmse in pairs]))


def miscalibrated(seed: int, size: int, power: float = 1.6) -> tuple[np.ndarray, np.ndarray]:
    """Errors whose true standard deviation is 0.3 σ^power of the predicted σ."""
    rng = np.random.default_rng(seed)
    sigma = np.exp(rng.normal(0, 0.8, size))
    return sigma**2, rng.standard_normal(size) * 0.3 * sigma**power


def test_synthetic_miscalibration_is_mended() -> None:
    """The figures that calibration has to reach: RZV 1 ± 0.02, and a fifth of the ENCE, on data it has not seen."""
    calibration = IsotonicCalibration.fit(*miscalibrated(0, 20_000))
    variance, error = miscalibrated(1, 50_000)
    after = calibration(variance)
    assert rzv(error, after) == pytest.approx(1, abs=0.02)
    assert ence(error, after) < ence(error, variance) / 5


@pytest.mark.parametrize("fit", [ScaleCalibration.fit, ConformalCalibration.fit])
def test_a_wrong_scale_is_mended_by_a_factor(fit: Any) -> None:
    calibration = fit(*miscalibrated(0, 20_000, power=1.0))
    variance, error = miscalibrated(1, 50_000, power=1.0)
    assert rzv(error, calibration(variance)) == pytest.approx(1, abs=0.02)
    assert ence(error, calibration(variance)) < ence(error, variance) / 5


def test_the_scale_is_that_of_highest_likelihood() -> None:
    variance, error = miscalibrated(0, 300)
    found = minimize_scalar(lambda s: np.mean(error**2 / (s * variance) + np.log(s)), bounds=(1e-3, 10))
    assert ScaleCalibration.fit(variance, error).factor == pytest.approx(found.x, rel=1e-4)
    assert rzv(error, ScaleCalibration.fit(variance, error)(variance)) == pytest.approx(1, rel=1e-12)


class TestIsotonic:
    def test_by_hand(self) -> None:
        """Falling pairs are averaged; linear between knots; outside, the factor or the value of the last knot."""
        variance, error = np.repeat([1.0, 2.0, 3.0, 4.0], 3), np.sqrt(np.repeat([1.0, 5.0, 3.0, 8.0], 3))
        found = IsotonicCalibration.fit(variance, error, group_size=1)
        assert found.variances == (1.0, 2.0, 3.0, 4.0)
        assert found.calibrated == pytest.approx((1.0, 4.0, 4.0, 8.0))
        np.testing.assert_allclose(found([0.5, 1.5, 2.5, 3.5, 9.0]), [0.5, 2.5, 4.0, 6.0, 18.0])
        clipped = IsotonicCalibration.fit(variance, error, group_size=1, outside="clip")
        np.testing.assert_allclose(clipped([0.5, 1.5, 9.0]), [1.0, 2.5, 8.0])

    @pytest.mark.parametrize("digits", [8, 1])
    def test_the_plain_one_is_scikit_learns(self, digits: int) -> None:
        """With and without tied variances."""
        variance, error = miscalibrated(3, 500)
        variance = np.maximum(variance.round(digits), 0.1)
        theirs = IsotonicRegression(out_of_bounds="clip").fit(variance, error**2)
        asked = np.concatenate([variance, np.geomspace(1e-3, 1e3, 400)])
        ours = IsotonicCalibration.fit(variance, error, group_size=1, outside="clip")(asked)
        lowest = ours.min()
        np.testing.assert_allclose(ours, np.maximum(theirs.predict(asked), lowest), rtol=1e-10)

    def test_the_order_of_entries_does_not_matter(self) -> None:
        variance, error = miscalibrated(3, 700)
        variance = np.maximum(variance.round(1), 0.1)
        shuffled = np.random.default_rng(0).permutation(len(error))
        first = IsotonicCalibration.fit(variance, error)
        second = IsotonicCalibration.fit(variance[shuffled], error[shuffled])
        np.testing.assert_allclose(first.variances, second.variances, rtol=1e-12)
        np.testing.assert_allclose(first.calibrated, second.calibrated, rtol=1e-12)

    def test_groups_keep_the_low_end_from_collapsing(self) -> None:
        """What plain regression does with few points, and why groups are the default."""
        fresh, wrong = miscalibrated(6, 20_000)

        def nll(calibration: IsotonicCalibration) -> float:
            after = calibration(fresh)
            return float(np.mean(wrong**2 / after + np.log(after)))

        lost = []
        for seed in range(6):
            grouped, plain = (IsotonicCalibration.fit(*miscalibrated(seed, 200), group_size=size) for size in (None, 1))
            assert min(plain.calibrated) < min(grouped.calibrated)
            lost.append(nll(plain) - nll(grouped))
        assert np.mean(lost) > 0.1

    @pytest.mark.parametrize(
        ("variance", "remark"),
        [
            (np.linspace(0.1, 2.0, 199), "199 errors are too few for more than a factor"),
            (np.full(1000, 0.3), "all variances are equal: too little information for more than a factor"),
        ],
    )
    def test_too_little_for_a_curve_gives_a_factor(self, variance: np.ndarray, remark: str) -> None:
        error = np.random.default_rng(0).standard_normal(len(variance))
        found = IsotonicCalibration.fit(variance, error)
        assert found.remark == remark
        asked = np.geomspace(1e-4, 1e4, 9)
        np.testing.assert_allclose(found(asked), ScaleCalibration.fit(variance, error)(asked), rtol=1e-12)

    def test_errors_of_few_structures_give_a_factor(self) -> None:
        variance, error = miscalibrated(0, 360)
        found = IsotonicCalibration.fit(variance, error, structure=np.arange(360) // 180)
        assert found.remark == "errors of 2 structures are too few for more than a factor"

    def test_one_group_gives_a_factor(self) -> None:
        found = IsotonicCalibration.fit(*miscalibrated(0, 30), group_size=20)
        assert found.remark == "one group of 30 errors is too little for more than a factor"
        with pytest.raises(ValueError, match="group_size must be at least 1, but is 0"):
            IsotonicCalibration.fit(*miscalibrated(0, 30), group_size=0)

    def test_variances_far_outside_of_the_fit_stay_far_outside(self) -> None:
        """The factor of the nearest knot continues: an unusual structure must not look like the last usual one."""
        found = IsotonicCalibration.fit(*miscalibrated(0, 2000))
        lowest, highest = found.variances[0], found.variances[-1]
        np.testing.assert_allclose(found([1e3 * highest]), 1e3 * found([highest]), rtol=1e-12)
        np.testing.assert_allclose(found([1e-3 * lowest]), 1e-3 * found([lowest]), rtol=1e-12)

    def test_a_kept_calibration_that_clips_still_does(self) -> None:
        kept = {"kind": "isotonic", "variances": (0.5, 2.0), "calibrated": (0.6, 2.4), "outside": "clip"}
        np.testing.assert_array_equal(IsotonicCalibration.model_validate(kept)([100.0, 0.1]), [2.4, 0.6])

    def test_no_knot_is_zero(self) -> None:
        """Where all errors of a piece are exactly zero, it has the lowest variance that is not."""
        variance, error = np.linspace(1.0, 2.0, 300), np.where(np.arange(300) < 100, 0.0, 0.5)
        assert min(IsotonicCalibration.fit(variance, error).calibrated) > 1e-3

    @pytest.mark.parametrize(
        ("knots", "values", "message"),
        [
            ((1.0, 2.0), (1.0,), "2 predicted and 1 calibrated ones"),
            ((2.0, 1.0), (1.0, 2.0), "variances of the knots must increase"),
            ((1.0, 2.0), (2.0, 1.0), "must not decrease"),
        ],
    )
    def test_what_is_no_map_is_refused(self, knots: tuple[float, ...], values: tuple[float, ...], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            IsotonicCalibration(variances=knots, calibrated=values)


class TestConformal:
    def test_by_hand(self) -> None:
        """Of 19 scores 1 ... 19, the k-th is exceeded by a new one with probability (20 − k)/20."""
        found = ConformalCalibration.fit(np.ones(19), np.arange(1.0, 20.0))
        assert [found.width(c) for c in (0.05, 0.5, 0.9, 0.95)] == [1.0, 10.0, 18.0, 19.0]
        np.testing.assert_allclose(found.half_width([4.0], 0.9), [36.0])
        np.testing.assert_allclose(found([2.0]), [2.0 * found.width(ONE_SIGMA) ** 2])

    @pytest.mark.parametrize("coverage", [0.5, 0.9])
    def test_the_promise_is_kept_whatever_the_law(self, coverage: float) -> None:
        """Heavy tails, wrong variances, entries of a structure that err together, structures of different sizes."""
        rng = np.random.default_rng(0)
        held = []
        for _ in range(400):
            sizes = rng.choice([1, 12], 40)
            owner = np.repeat(np.arange(40), sizes)
            error = (rng.standard_t(2, 40) * np.where(sizes == 1, 4.0, 1.0))[owner] + 0.1 * rng.standard_normal(
                len(owner)
            )
            seen = owner < 39
            found = ConformalCalibration.fit(np.ones(seen.sum()), error[seen], owner[seen])
            held.append(np.mean(np.abs(error[~seen]) <= found.half_width(np.ones((~seen).sum()), coverage)))
        assert np.mean(held) > coverage - 3 * np.std(held) / 20
        assert np.mean(held) < coverage + 0.03 + 3 * np.std(held) / 20  # and no wider than it takes

    def test_errors_of_exactly_zero(self) -> None:
        """As of components that vanish by symmetry, under a noise model that does not know it."""
        error = np.where(np.arange(100) < 20, 0.0, np.arange(100.0))
        assert ConformalCalibration.fit(np.ones(100), error).width(0.1) == 0
        with pytest.raises(ValueError, match="most errors are exactly zero"):
            ConformalCalibration.fit(np.ones(100), np.where(np.arange(100) < 80, 0.0, 1.0))

    def test_more_than_the_data_can_promise_is_refused(self) -> None:
        found = ConformalCalibration.fit(np.ones(19), np.arange(1.0, 20.0))
        with pytest.raises(ValueError, match=r"can be at most 0\.95 with this calibration, not 0\.99"):
            found.width(0.99)
        with pytest.raises(ValueError, match="2 structures are too few for conformal intervals"):
            ConformalCalibration.fit(np.ones(20), np.arange(20.0), np.repeat([0, 1], 10))


class TestGamma:
    def test_the_factor_is_found(self) -> None:
        rng = np.random.default_rng(0)
        gamma_var, rest = rng.uniform(0.1, 2.0, 40_000), rng.uniform(0.1, 1.0, 40_000)
        error = rng.standard_normal(40_000) * np.sqrt(2.5 * gamma_var + rest)
        found = GammaCalibration.fit(gamma_var, rest, error)
        assert found.factor == pytest.approx(2.5, rel=0.04)
        assert rzv(error, found(gamma_var, rest)) == pytest.approx(1, abs=0.02)

    def test_no_gamma_fits(self) -> None:
        variance, error = miscalibrated(0, 500)
        assert GammaCalibration.fit(variance, 1e3 * np.ones(500), error).remark.startswith("no γ fits")
        assert GammaCalibration.fit(variance, np.zeros(500), error).remark == ""

    def test_without_a_rest_it_is_the_scale(self) -> None:
        variance, error = miscalibrated(0, 500)
        factor = GammaCalibration.fit(variance, np.zeros(500), error).factor
        assert factor == pytest.approx(ScaleCalibration.fit(variance, error).factor, rel=1e-6)


class TestAll:
    @pytest.mark.parametrize("fit", FITS)
    def test_zero_stays_zero_and_is_not_fitted(self, fit: Any) -> None:
        variance, error = miscalibrated(0, 500)
        with_zeros = fit(np.append(variance, np.zeros(50)), np.append(error, np.zeros(50)))
        assert with_zeros == fit(variance, error)
        assert with_zeros(np.zeros(3)).tolist() == [0, 0, 0]

    @pytest.mark.parametrize("fit", FITS)
    def test_jax_and_numpy_agree(self, fit: Any) -> None:
        calibration: AbstractCalibration = fit(*miscalibrated(0, 500))
        variance = np.geomspace(1e-3, 1e3, 50).astype(np.float32)
        traced = jax.jit(calibration.traced)(jnp.asarray(variance))
        np.testing.assert_allclose(traced, calibration(variance), rtol=1e-5)
        assert traced.dtype == jnp.float32

    @pytest.mark.parametrize("fit", FITS)
    def test_it_goes_through_json(self, fit: Any) -> None:
        calibration: AbstractCalibration = fit(*miscalibrated(0, 500))
        read: Any = TypeAdapter(CalibrationConfig).validate_json(calibration.model_dump_json())
        assert read == calibration

    @pytest.mark.parametrize("fit", FITS)
    @pytest.mark.parametrize(
        ("variance", "error", "message"),
        [
            (np.ones(9), np.ones(9), r"9 errors .* are too few for a calibration, which needs 10 \(9 errors"),
            (np.zeros(20), np.ones(20), r"0 errors with a predicted variance above zero .* \(20 errors were given"),
            (np.ones(20), np.zeros(20), "compared with themselves"),
            (np.ones(20), np.ones(19), r"error must have shape \(20\)"),
            (-np.ones(20), np.ones(20), "variance must be non-negative, but is -1.0"),
            (np.ones(20), np.full(20, np.nan), "error must be finite"),
            (np.full(20, np.inf), np.ones(20), "variance must be finite"),
        ],
    )
    def test_bad_input_is_named(self, fit: Any, variance: np.ndarray, error: np.ndarray, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            fit(variance, error)

    def test_negative_variances_are_refused(self) -> None:
        with pytest.raises(ValueError, match="variance must be non-negative"):
            ScaleCalibration(factor=2.0)([-1.0])
