"""Marginals: rows, calibration and what must not be lost on the way."""

from dataclasses import replace

import numpy as np
import pytest

from huefield.model.calibration import ScaleCalibration
from huefield.predict.marginals import EnergyForcesMarginals, Marginals

SIZES = np.array([2, 1, 3])
OWNERS = np.repeat(np.arange(3), SIZES)


def marginals(*shape: int, members: int = 4, seed: int = 0) -> Marginals:
    rng = np.random.default_rng(seed)
    noise, means = rng.gamma(2.0, 1.0, shape), rng.normal(size=(members, *shape))
    return Marginals(means.mean(0), noise + means.var(0), noise, means.var(0), means)


def whole() -> EnergyForcesMarginals:
    return EnergyForcesMarginals(marginals(3), marginals(6, 3, seed=1), marginals(3, 3, 3, seed=2), np.arange(3.0))


def assert_equal(one: Marginals, other: Marginals) -> None:
    for name in ("mean", "variance", "aleatoric_var", "epistemic_var", "members", "factor"):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, err_msg=name)


def test_calibration_scales_variances_and_the_spread_of_members_and_can_be_undone() -> None:
    before = marginals(5, 3)
    after = before.calibrated(ScaleCalibration(factor=4.0)).calibrated(ScaleCalibration(factor=9.0))
    np.testing.assert_allclose(after.variance, 36 * before.variance)
    np.testing.assert_allclose(after.members.var(0), after.epistemic_var)
    np.testing.assert_allclose(after.factor, 36.0)
    np.testing.assert_allclose(after.deviation, 6 * np.sqrt(before.variance))
    assert_equal(after.uncalibrated(), before)
    assert before.uncalibrated() is before
    assert before.calibrated(None) is before


def test_batches_are_joined_in_the_order_of_the_structures() -> None:
    """Structures 0 and 2 in one batch, structure 1 in another."""
    expected = whole()
    first, second = (expected.rows(np.array(which), np.isin(OWNERS, which)) for which in ([0, 2], [1]))
    found = EnergyForcesMarginals.joined([first, second]).rows(np.array([0, 2, 1]), np.array([0, 1, 5, 2, 3, 4]))
    for quantity in ("energy", "forces", "stress"):
        assert_equal(getattr(found, quantity), getattr(expected, quantity))
    np.testing.assert_array_equal(found.joint_nll, expected.joint_nll)


def test_one_number_that_is_not_finite_spoils_its_structure_alone() -> None:
    good, has_stress = whole(), np.array([True, True, False])
    assert good.finite(OWNERS, has_stress).all()
    for quantity, row, structure in (("energy", 0, 0), ("forces", 2, 1), ("stress", 1, 1)):
        part = getattr(good, quantity)
        for name in ("mean", "variance"):
            values = getattr(part, name).copy()
            values[row] = np.nan
            found = replace(good, **{quantity: replace(part, **{name: values})}).finite(OWNERS, has_stress)
            assert found.tolist() == [index != structure for index in range(3)]
    missing = replace(good.stress, mean=np.where(has_stress[:, None, None], good.stress.mean, np.nan))
    assert replace(good, stress=missing).finite(OWNERS, has_stress).all()


def test_wrong_variances_are_named() -> None:
    with pytest.raises(ValueError, match=r"variance of energy must be non-negative, but is -1\.0 at index 1"):
        Marginals(np.zeros(2), np.array([1.0, -1.0])).require_variances("energy")
