"""The fit of a coherent calibration to errors whose factors and tails are known."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats

from huefield.core.structure import Block
from huefield.core.tails import nll_terms
from huefield.evaluation import coherent
from huefield.evaluation.coherent import VarianceParts, fit_coherent, fit_joint_dof, fit_predictions
from huefield.evaluation.metrics import coverage
from huefield.model.calibration import FEWEST
from huefield.model.joint_calibration import CoherentCalibration, Tails
from huefield.predict.marginals import EnergyForcesMarginals, Marginals
from huefield.predict.predictions import Predictions
from huefield.support.errors import HuefieldError
from tests.evaluation.synthetic import predicted, waters

FACTORS = {"noise": 3.0, "energy_diagonal": 0.5, "force_diagonal": 2.0, "spread": 7.0}
ENERGIES, FORCES = 4_000, 20_000


def scaled_t(dof: float | None, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random numbers of variance one: Student t, or normal."""
    if dof is None:
        return rng.standard_normal(shape)
    return np.sqrt((dof - 2) / dof) * rng.standard_t(dof, shape)


def drawn(count: int, diagonal: str, dof: float | None, *, size: float, seed: int) -> VarianceParts:
    """Errors whose variance is that of three parts of different sizes, each times its factor."""
    rng = np.random.default_rng(seed)
    noise, rest, spread = size**2 * np.exp(1.5 * rng.standard_normal((3, count)))
    variance = FACTORS["noise"] * noise + FACTORS[diagonal] * rest + FACTORS["spread"] * spread
    return VarianceParts(np.sqrt(variance) * scaled_t(dof, (count,), rng), noise, rest, spread)


def both(energy_dof: float | None, force_dof: float | None) -> tuple[VarianceParts, VarianceParts]:
    return (
        drawn(ENERGIES, "energy_diagonal", energy_dof, size=0.05, seed=1),
        drawn(FORCES, "force_diagonal", force_dof, size=0.2, seed=2),
    )


def test_factors_and_tails_are_recovered() -> None:
    found = fit_coherent(*both(4.0, 6.0))
    for name, factor in FACTORS.items():
        assert getattr(found, name) == pytest.approx(factor, rel=0.1), name
    assert found.tails.energy == pytest.approx(4.0, rel=0.3)
    assert found.tails.forces == pytest.approx(6.0, rel=0.3)
    assert found.tails.joint is None


def test_normal_errors_have_normal_tails() -> None:
    found = fit_coherent(*both(None, None))
    assert found.spread == pytest.approx(FACTORS["spread"], rel=0.1)
    for dof in (found.tails.energy, found.tails.forces):
        assert dof is None or dof > 30
    assert fit_coherent(*both(4.0, 6.0), tails=False).tails == Tails()


def test_a_part_that_is_always_zero_keeps_its_factor() -> None:
    """The energy of colored noise has no rest, and one member has no spread."""
    energy, _ = both(None, None)
    energy = replace(energy, diagonal=np.zeros(ENERGIES), spread=np.zeros(ENERGIES))
    energy = replace(energy, error=np.sqrt(3.0 * energy.noise) * np.random.default_rng(3).standard_normal(ENERGIES))
    found = fit_coherent(energy, None)
    assert found.noise == pytest.approx(3.0, rel=0.1)
    for name in ("energy_diagonal", "force_diagonal", "spread"):
        assert getattr(found, name) == pytest.approx(1.0, abs=1e-3), name
    assert found.tails.forces is None


def test_errors_without_a_predicted_variance_are_left_out() -> None:
    """Symmetry makes them zero, and so they say nothing about factors."""
    energy, _ = both(None, None)
    silent = VarianceParts(*(np.concatenate([part, np.zeros(500)]) for part in vars(energy).values()))
    assert len(silent.usable()) == ENERGIES
    assert fit_coherent(silent, None) == fit_coherent(energy, None)


def test_forces_that_vanish_by_symmetry_are_left_out() -> None:
    """Their error is rounding, but the diagonal is not zero; they would draw its factor and ν towards zero."""
    energy, forces = both(None, None)
    rounding = 1e-7 * np.random.default_rng(4).standard_normal(2_000)
    planar = VarianceParts(rounding, np.zeros(2_000), np.full(2_000, 0.04), rounding**2)
    joined = VarianceParts(
        *(np.concatenate([a, b]) for a, b in zip(vars(forces).values(), vars(planar).values(), strict=True))
    )
    assert np.flatnonzero(joined.vanishing()).tolist() == list(range(FORCES, FORCES + 2_000))
    assert fit_coherent(energy, joined) == fit_coherent(energy, forces)


def test_zero_forces_of_calculators_in_single_precision_are_left_out() -> None:
    """As in perfect crystals: errors of up to 1 % of typical ones, with noise of the same size."""
    energy, forces = both(None, None)
    typical = float(np.quantile(np.abs(forces.error), 0.9))
    noise = 2e-3 * typical * np.ones(2_000)
    rounding = noise * np.random.default_rng(5).uniform(-4.0, 4.0, 2_000)
    crystal = VarianceParts(rounding, 0.5 * noise**2, np.full(2_000, 0.04), 0.5 * noise**2)
    joined = VarianceParts(
        *(np.concatenate([a, b]) for a, b in zip(vars(forces).values(), vars(crystal).values(), strict=True))
    )
    left_out = np.flatnonzero(joined.vanishing())
    assert (left_out >= FORCES).all()
    assert len(left_out) == 2_000
    assert fit_coherent(energy, joined) == fit_coherent(energy, forces)


def test_small_errors_of_values_with_noise_are_kept() -> None:
    """All of them with noise of the energy function, and all but 3 in 1000 without (errors span four decades here)."""
    _, forces = both(None, None)
    assert not forces.vanishing().any()
    alone = replace(forces, noise=np.zeros(FORCES), spread=np.zeros(FORCES))
    assert alone.vanishing().mean() < 3e-3
    broken = replace(forces, error=np.where(np.arange(FORCES) < 10, 1e9, forces.error))
    assert not broken.vanishing().any()


def several_minima() -> VarianceParts:
    """Three kinds of errors that either the diagonal or the members explain, but neither well."""
    noise, diagonal, spread = ([1.0, 0.01, 10.0], [100.0, 0.1, 1.0], [0.01, 0.01, 0.1])
    normal = stats.norm.ppf((np.arange(20) + 0.5) / 20)
    error = np.sqrt([[100.0], [100.0], [10.0]]) * normal
    return VarianceParts(error.ravel(), *(np.repeat(part, 20) for part in (noise, diagonal, spread)))


def objective(x: np.ndarray, parts: VarianceParts, structures: int) -> float:
    """The objective of the fit to forces alone, written anew: mean NLL plus prior of log factors and 1/ν."""
    noise, diagonal, spread = np.exp(x[:3])
    variance = noise * parts.noise + diagonal * parts.diagonal + spread * parts.spread
    prior = 0.5 * np.sum((x[:3] / 2.0) ** 2) + x[3] / 0.2
    return float(np.mean(nll_terms(parts.error, variance, 1.0 / x[3])) + prior / structures)


def test_the_lowest_of_several_minima_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A global search finds the members, which a single start, at the model as it is, misses."""
    parts = several_minima()

    def found() -> np.ndarray:
        fit = fit_coherent(None, parts, structures=200)
        assert fit == fit_coherent(None, parts, structures=200)
        return np.array([*np.log([fit.noise, fit.force_diagonal, fit.spread]), 1.0 / fit.tails.forces])

    bounds = [(-12.0, 12.0)] * 3 + [(1 / 400, 1 / 3)]
    best = optimize.differential_evolution(objective, bounds, args=(parts, 200), rng=0, tol=1e-10)
    np.testing.assert_allclose(found(), best.x, atol=2e-3)
    everywhere = coherent._starts()
    monkeypatch.setattr(coherent, "_starts", lambda: everywhere[:1])
    assert objective(found(), parts, 200) > best.fun + 0.5


def test_noise_that_grows_explains_the_errors_in_place_of_the_members() -> None:
    """The factor of the members stays 1; energies alone say how large the noise is."""
    energy, forces = both(4.0, 6.0)
    found = fit_coherent(energy, forces, grows=True)
    assert found.spread == 1.0
    alone = fit_coherent(energy, None, grows=True)
    assert (found.noise, found.tails.energy) == (alone.noise, alone.tails.energy)
    free = fit_coherent(energy, forces)
    assert free.spread != 1.0
    assert found.noise > free.noise


def test_forces_alone_are_fitted_where_noise_grows() -> None:
    """Errors whose spread is right as predicted: the other factors are recovered."""
    forces = both(None, 6.0)[1]
    right = replace(forces, spread=FACTORS["spread"] * forces.spread)
    found = fit_coherent(None, right, grows=True)
    assert found.spread == 1.0
    assert found.noise == pytest.approx(FACTORS["noise"], rel=0.1)
    assert found.force_diagonal == pytest.approx(FACTORS["force_diagonal"], rel=0.1)


def test_too_few_energies_where_noise_grows() -> None:
    """Their factor is that of the forces, with a remark."""
    few = replace(waters(60), has_energy=np.arange(60) < FEWEST - 1)
    found, remarks = fit_predictions(with_parts(few), grows=True)
    assert "energies take no part in the fit" in remarks[0]
    assert (found.spread, found.tails.energy) == (1.0, None)


def test_too_few_errors() -> None:
    few = drawn(FEWEST - 1, "energy_diagonal", None, size=1.0, seed=0)
    with pytest.raises(HuefieldError, match=f"{FEWEST - 1} errors of energies .* are too few .* needs {FEWEST}"):
        fit_coherent(few, None)
    with pytest.raises(HuefieldError, match="no energy and no force was both predicted and observed"):
        fit_coherent(None, None)


def test_errors_that_are_exactly_zero() -> None:
    forces = drawn(100, "force_diagonal", None, size=1.0, seed=0)
    with pytest.raises(HuefieldError, match="all errors of forces are exactly zero: predictions seem to be compared"):
        fit_coherent(None, replace(forces, error=np.zeros(100)))


def with_parts(block: Block, *, seed: int = 0) -> Predictions:
    """Predictions with all parts of their variances, whose errors have the factors of ``FACTORS``."""
    rng = np.random.default_rng(seed)

    def quantity(target: np.ndarray, diagonal: str) -> Marginals:
        parts = drawn(target.size, diagonal, None, size=0.1, seed=int(rng.integers(1000)))
        error, noise, rest, spread = (part.reshape(target.shape) for part in vars(parts).values())
        return Marginals(target - error, noise + rest + spread, noise + rest, spread, diagonal_var=rest)

    energy, forces = quantity(block.energy, "energy_diagonal"), quantity(block.forces, "force_diagonal")
    return Predictions("model", block, EnergyForcesMarginals(energy, forces))


def test_predictions_are_fitted_and_their_intervals_hold() -> None:
    """Predictions with the fitted factors cover as much as they say; the mean and the uncalibrated ones stay."""
    predictions = with_parts(waters(600))
    calibration, remarks = fit_predictions(predictions, grows=False)
    assert remarks == ()
    calibrated = predictions.calibrated(calibration)
    observed = calibrated.observed_forces()
    assert observed is not None
    for nominal in (0.5, 0.9):
        assert coverage(observed.error, observed.variance, nominal, observed.dof) == pytest.approx(nominal, abs=0.03)
    assert observed.dof == calibration.tails.forces
    before = calibrated.uncalibrated()
    assert before is not None
    np.testing.assert_allclose(before.forces.variance, predictions.forces.variance, rtol=1e-10)


def test_too_few_energies_leave_the_forces() -> None:
    block = waters(60)
    some = replace(block, has_energy=np.arange(60) < FEWEST - 1)
    found, remarks = fit_predictions(with_parts(some), grows=False)
    assert remarks == (
        f"energies take no part in the fit: {FEWEST - 1} errors of energies with a predicted variance above zero are "
        f"too few for a calibration, which needs {FEWEST}",
    )
    only, none = fit_predictions(with_parts(replace(block, has_energy=np.zeros(60, bool))), grows=False)
    assert (found, ()) == (only, none)
    assert found.force_diagonal > 1.2
    assert found.tails.energy is None


def test_predictions_of_other_codes_have_no_parts() -> None:
    with pytest.raises(HuefieldError, match="only models of huefield give: use the method isotonic or scale"):
        fit_predictions(predicted(waters(30), parts=False), grows=False)


def test_predictions_without_parts_take_no_coherent_calibration() -> None:
    calibration = CoherentCalibration(noise=2.0)
    with pytest.raises(HuefieldError, match="do not have them: calibrate the model, or use the method isotonic"):
        predicted(waters(5), parts=False).calibrated(calibration)


def test_predictions_without_labels() -> None:
    block = waters(30)
    nothing = np.zeros(30, bool)
    with pytest.raises(HuefieldError, match="no energy and no force was both predicted and observed"):
        fit_predictions(with_parts(replace(block, has_energy=nothing, has_forces=nothing)), grows=False)


@pytest.mark.parametrize(("dof", "count"), [(3.0, 2000), (10.0, 2000), (None, 2000)])
def test_joint_tails_are_recovered(dof: float | None, count: int) -> None:
    """Draws of a multivariate t distribution with 4 to 31 values: one random scale for all values of a structure."""
    rng = np.random.default_rng(5)
    sizes = 1.0 + 3.0 * rng.integers(1, 11, count)
    scale = 1.0 if dof is None else (dof - 2.0) / rng.chisquare(dof, count)
    found = fit_joint_dof(rng.chisquare(sizes) * scale, sizes)
    if dof is None:
        assert found is None or found > 30
    else:
        assert found == pytest.approx(dof, rel=0.15)
