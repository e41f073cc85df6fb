"""Marginals: rows, calibration and what must not be lost on the way."""

from dataclasses import replace

import numpy as np
import pytest

from huefield.model import CoherentCalibration, EnergyForcesCalibration, ScaleCalibration
from huefield.model.joint_calibration import Tails
from huefield.predict.marginals import EnergyForcesMarginals, Marginals

SIZES = np.array([2, 1, 3])
OWNERS = np.repeat(np.arange(3), SIZES)


def marginals(*shape: int, members: int = 4, seed: int = 0) -> Marginals:
    rng = np.random.default_rng(seed)
    noise, means = rng.gamma(2.0, 1.0, shape), rng.normal(size=(members, *shape))
    return Marginals(means.mean(0), noise + means.var(0), noise, means.var(0), means, 0.3 * noise)


def whole() -> EnergyForcesMarginals:
    return EnergyForcesMarginals(marginals(3), marginals(6, 3, seed=1), marginals(3, 3, 3, seed=2), np.arange(3.0))


def assert_equal(one: Marginals, other: Marginals) -> None:
    for name in ("mean", "variance", "aleatoric_var", "epistemic_var", "members", "diagonal_var", "factors"):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, err_msg=name)


def test_calibration_scales_variances_and_the_spread_of_members_and_can_be_undone() -> None:
    before, after = marginals(5, 3), marginals(5, 3)
    for factor in (4.0, 9.0):
        calibration = EnergyForcesCalibration(forces=ScaleCalibration(factor=factor))
        after = after.calibrated(calibration.force_scaling, None)
    np.testing.assert_allclose(after.variance, 36 * before.variance)
    np.testing.assert_allclose(after.members.var(0), after.epistemic_var)
    np.testing.assert_allclose(after.factors, 36.0)
    np.testing.assert_allclose(after.deviation, 6 * np.sqrt(before.variance))
    assert_equal(after.uncalibrated(), before)
    assert before.uncalibrated() is before


def test_a_coherent_calibration_scales_each_part_of_a_variance_and_can_be_undone() -> None:
    calibration = CoherentCalibration(
        noise=2.0, energy_diagonal=3.0, force_diagonal=5.0, spread=7.0, tails=Tails(energy=4.0, forces=3.0)
    )
    before = whole()
    after = before.calibrated(calibration)
    for name, diagonal, dof in (("energy", 3.0, 4.0), ("forces", 5.0, 3.0)):
        old, new = getattr(before, name), getattr(after, name)
        noise = 2.0 * (old.aleatoric_var - old.diagonal_var) + diagonal * old.diagonal_var
        np.testing.assert_allclose(new.aleatoric_var, noise)
        np.testing.assert_allclose(new.variance, noise + 7.0 * old.epistemic_var)
        np.testing.assert_allclose(new.members.var(0), new.epistemic_var)
        assert new.dof == dof
        assert_equal(new.uncalibrated(), old)
        assert new.uncalibrated().dof is None


def test_a_coherent_calibration_needs_the_parts_of_a_variance() -> None:
    total = Marginals(np.zeros(3), np.ones(3))
    with pytest.raises(ValueError, match="these predictions do not have them: calibrate the model, or use the method"):
        total.calibrated(CoherentCalibration(noise=2.0).energy_scaling, None)


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
