"""Calibration of models and of predictions, judged on structures that were not fitted to."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ase.io
import jax
import numpy as np
import pytest

import huefield
from huefield.data.dataset import Part, open_part
from huefield.evaluation.calibrate import (
    COHERENCE_REMARK,
    CONFORMAL_REMARK,
    DOES_NOT_GROW,
    CalibrationCheck,
    calibrate,
    calibrate_predictions,
    fits_disagree,
)
from huefield.evaluation.coherent import fit_predictions, with_joint_tails
from huefield.evaluation.fits import fit_calibration, fit_gamma, typical_of, with_gamma_times
from huefield.evaluation.metrics import coverage
from huefield.evaluation.pairs import energy_pairs, fit_differences
from huefield.model.calibration import ConformalCalibration, IsotonicCalibration, ScaleCalibration
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import CoherentCalibration, EnergyForcesCalibration, Tails
from huefield.predict import predict_part, remarks_on
from huefield.predict.marginals import Marginals
from huefield.predict.predictions import Predictions
from huefield.support.errors import HuefieldError
from tests.evaluation.synthetic import predicted, waters
from tests.predict.helpers import changed
from tests.training.helpers import POTENTIAL, write_waters


def untrained(noise: str) -> Ensemble:
    config = ForceField.Config.model_validate(
        {"potential": {**POTENTIAL, "elements": ["H", "O"]}, "noise": {"kind": noise}}
    )
    ensemble = Ensemble.build(config, 2, key=jax.random.key(0)).with_atom_energies({1: 0.0, 8: -2000.0})
    return ensemble if noise == "vanilla" else ensemble.map_noise(lambda n: n.initialised(0.02, 0.1))


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Part:
    return open_part("waters", [write_waters(tmp_path_factory.mktemp("data") / "waters.xyz", 120)])


@pytest.fixture(scope="module")
def colored() -> Ensemble:
    return untrained("colored")


@pytest.fixture(scope="module")
def predictions(colored: Ensemble, part: Part) -> Predictions:
    return predict_part(colored, part, "waters")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scale", "gamma"])
def test_a_model_in_double_precision_is_calibrated(colored: Ensemble, part: Part, method: Any) -> None:
    single, double = (calibrate(colored.in_precision(name), part, method) for name in ("float32", "float64"))
    assert double.ensemble.precision == "float64"
    assert double.check.evaluations[1].forces.nll == pytest.approx(single.check.evaluations[1].forces.nll, rel=1e-3)


@pytest.mark.parametrize(
    ("method", "kind"),
    [pytest.param("isotonic", IsotonicCalibration, marks=pytest.mark.slow), ("scale", ScaleCalibration)],
)
def test_error_bars_of_a_model_get_the_right_size(colored: Ensemble, part: Part, method: Any, kind: type) -> None:
    """They were several times too small."""
    found = calibrate(colored, part, method)
    changed, done = found.ensemble, found.check
    before, after = done.evaluations
    assert before.forces.rzv > 10
    assert after.forces.rzv == pytest.approx(1, abs=0.3)
    assert after.energy.rzv == pytest.approx(1, abs=0.3)
    assert after.forces.nll < before.forces.nll
    assert after.joint_nll < before.joint_nll
    assert (done.fitted_to, len(done.before), len(done.after)) == (60, 60, 60)
    assert isinstance(changed.calibration.forces, kind)
    np.testing.assert_array_equal(done.before.forces.mean, done.after.forces.mean)


def test_by_default_a_model_stays_coherent(colored: Ensemble, part: Part) -> None:
    """One factor for each part of the covariance, and tails; the comparison is that of the calibrated model."""
    found = calibrate(colored, part)
    changed, done = found.ensemble, found.check
    before, after = done.evaluations
    assert done.method == "coherent"
    assert isinstance(changed.calibration, CoherentCalibration)
    assert COHERENCE_REMARK not in done.remarks
    assert after.forces.nll < before.forces.nll
    assert after.energy.nll < before.energy.nll
    assert after.joint_nll < before.joint_nll
    assert all(abs(change.after - change.nominal) < 0.25 for change in done.coverage()["forces"])
    again = predict_part(colored.with_calibration(done.calibration), part, "again")
    rows = np.flatnonzero(np.isin(again.structures.frames, done.after.structures.frames))
    np.testing.assert_allclose(done.after.joint_nll, again.joint_nll[rows], rtol=1e-4)


def test_a_coherent_calibration_is_kept_as_fitted_to_all(
    colored: Ensemble, part: Part, predictions: Predictions
) -> None:
    """The check is that of the fit to a half; factors, tails and quantiles of the model are those of the whole."""
    found = calibrate(colored, part)
    kept, checked = found.ensemble.calibration, found.check.calibration
    whole, _ = fit_predictions(predictions, grows=False)
    whole = whole.model_copy(update={"fitted_for": "colored"})
    after = predict_part(colored.with_calibration(whole), part, "after")
    assert kept == with_joint_tails(whole, after)
    half, _ = fit_predictions(without(predictions, found.check.after), grows=False)
    assert checked.noise == half.noise != kept.noise
    assert found.ensemble.typical == typical_of(after, "data of its calibration")
    assert found.ensemble.typical.structures == 120
    assert found.check.remarks[0] == kept.in_words()


@pytest.mark.parametrize("method", ["isotonic", "scale", "conformal"])
def test_other_calibrations_are_kept_as_fitted_to_all(
    colored: Ensemble, part: Part, predictions: Predictions, method: Any
) -> None:
    """Of energies, of forces and of differences; for models and for predictions of any code."""
    found = calibrate(colored, part, method)
    kept, checked = found.ensemble.calibration, found.check.calibration
    whole = fit_calibration(predictions, method).calibration
    half = fit_calibration(without(predictions, found.check.after), method).calibration
    assert (kept.energy, kept.forces) == (whole.energy, whole.forces)
    assert (checked.energy, checked.forces) == (half.energy, half.forces)
    assert half.forces != whole.forces
    pairs = energy_pairs(colored.with_calibration(whole), predictions.structures)
    assert kept.differences == fit_differences(pairs) != checked.differences
    of_file, check = calibrate_predictions(predictions, method)
    assert (of_file, check.calibration) == (whole, half)


def test_gamma_is_kept_as_fitted_to_all(colored: Ensemble, part: Part, predictions: Predictions) -> None:
    found = calibrate(colored, part, "gamma")
    doubled = predict_part(with_gamma_times(colored, 2.0), part, "twice")
    factor = fit_gamma(predictions, doubled).factor
    ratio = np.ravel(found.ensemble.members.noise.gamma.gamma / colored.members.noise.gamma.gamma)
    np.testing.assert_allclose(ratio, factor, rtol=1e-5)
    assert found.check.remarks[0] == f"factor of γ: {factor:.4g}"
    kept = predict_part(found.ensemble, part, "after")
    rows = np.isin(kept.structures.frames, found.check.after.structures.frames)
    assert not np.allclose(kept.select(rows).forces.variance, found.check.after.forces.variance, rtol=1e-4)


def test_fits_that_are_far_apart_are_told() -> None:
    some = CoherentCalibration(noise=1.0, force_diagonal=0.98, spread=1.2)
    assert fits_disagree(some, some.model_copy(update={"force_diagonal": 0.5})) == ()
    (told,) = fits_disagree(some, some.model_copy(update={"force_diagonal": 0.002, "spread": 16.5}))
    assert "far apart (rest of forces 0.98 and 0.002; members 1.2 and 16.5)" in told
    assert fits_disagree(None, some) == ()
    small = some.model_copy(update={"spread": 1e-4})
    assert fits_disagree(small, some.model_copy(update={"spread": 1e-2})) == ()


def test_only_the_fit_of_the_check_has_too_few_data(predictions: Predictions) -> None:
    """Sixteen energies can be calibrated, the eight of the check cannot."""
    calibration, done = calibrate_predictions(predictions.select(np.arange(120) < 16), "scale")
    assert calibration.energy is not None
    assert done.calibration.energy is None
    assert done.remarks[0].startswith(
        "in the check, with its fit to 8 structures, energies are not calibrated: 8 errors with a predicted variance"
    )


def without(predictions: Predictions, others: Predictions) -> Predictions:
    """The structures that others do not have."""
    return predictions.select(~np.isin(predictions.structures.frames, others.structures.frames))


def test_isotonic_regression_of_few_energies_is_a_factor(colored: Ensemble, part: Part) -> None:
    found = calibrate(colored, part, "isotonic")
    few = "energies: 120 errors are too few for more than a factor"
    assert found.check.remarks == (few, DOES_NOT_GROW, COHERENCE_REMARK)
    assert found.ensemble.calibration.forces.outside == "ratio"


@pytest.mark.slow
def test_an_earlier_calibration_is_replaced(colored: Ensemble, part: Part) -> None:
    wrong = colored.with_calibration(EnergyForcesCalibration(forces=ScaleCalibration(factor=1e6)))
    again, first = (calibrate(each, part, "scale") for each in (wrong, colored))
    assert again.ensemble.calibration == first.ensemble.calibration


def test_gamma_alone(colored: Ensemble, part: Part) -> None:
    """Energies stay as they are, forces stay their derivatives, and the model has no other calibration."""
    found = calibrate(colored, part, "gamma")
    changed, done = found.ensemble, found.check
    before, after = done.evaluations
    assert COHERENCE_REMARK not in done.remarks
    assert changed.calibration is None
    assert after.forces.rzv == pytest.approx(1, abs=0.15)
    np.testing.assert_allclose(done.after.energy.variance, done.before.energy.variance, rtol=1e-5)
    ratio = np.ravel(changed.members.noise.gamma.gamma / colored.members.noise.gamma.gamma)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)
    assert ratio[0] > 5
    assert before.forces.rmse == after.forces.rmse


@pytest.mark.parametrize("noise", ["vanilla", "white"])
def test_gamma_of_a_noise_model_without_one(noise: str, part: Part) -> None:
    with pytest.raises(
        ValueError, match=f"the method gamma is for colored noise, but the model has {noise} noise: use coherent"
    ):
        calibrate(untrained(noise), part, "gamma")


def test_predictions_of_any_code(predictions: Predictions) -> None:
    calibration, done = calibrate_predictions(predictions, "scale")
    _, after = done.evaluations
    assert after.forces.rzv == pytest.approx(1, abs=0.15)
    np.testing.assert_allclose(
        predictions.calibrated(calibration).forces.variance, calibration.forces(predictions.forces.variance), rtol=1e-6
    )
    with pytest.raises(ValueError, match="the method gamma changes the noise of a model"):
        calibrate_predictions(predictions, "gamma")


def test_conformal_intervals_hold_what_they_promise(predictions: Predictions) -> None:
    held = []
    for seed in range(40):
        calibration, done = calibrate_predictions(predictions, "conformal", seed=seed)
        assert isinstance(calibration.forces, ConformalCalibration)
        raw = done.before.observed_forces()
        width = done.calibration.forces.half_width(raw.variance, 0.9)
        held.append(np.mean(np.abs(raw.mean - raw.target) <= width))
    assert np.mean(held) > 0.9 - 2 * np.std(held) / np.sqrt(40)
    assert np.mean(held) < 0.94


def test_what_is_missing_is_left_alone(predictions: Predictions) -> None:
    """Data without energies calibrate forces."""
    block = predictions.structures
    without = replace(predictions, structures=replace(block, has_energy=np.zeros(len(block), bool)))
    found = fit_calibration(without, "scale").calibration
    assert found.energy is None
    assert found.forces == fit_calibration(predictions, "scale").calibration.forces
    nothing = changed(without, forces=None)
    with pytest.raises(ValueError, match="no energy and no force was both predicted and observed"):
        fit_calibration(nothing, "scale")


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (3, {}, "3 structures are too few for a calibration, which needs 4"),
        (120, {"fit_fraction": 1.0}, "the fraction of structures for the fit must lie between 0 and 1, but is 1"),
    ],
)
def test_too_little_is_said(predictions: Predictions, count: int, options: Any, message: str) -> None:
    some = predictions.select(np.arange(len(predictions)) < count)
    with pytest.raises(ValueError, match=message):
        calibrate_predictions(some, "scale", **options)


def test_what_there_is_too_little_of_is_left_alone(predictions: Predictions) -> None:
    """Eight energies, but many forces; and files that have error bars of one of the two alone."""
    some = predictions.select(np.arange(len(predictions)) < 8)
    calibration, done = calibrate_predictions(some, "scale")
    assert calibration.energy is None
    assert calibration.forces is not None
    assert done.remarks[0].startswith("energies are not calibrated: 8 errors with a predicted variance above zero are")
    sure = changed(predictions, energy=Marginals(predictions.energy.mean, np.zeros(len(predictions))))
    assert calibrate_predictions(sure, "isotonic")[0].energy is None


def test_other_units_are_refused(predictions: Predictions) -> None:
    block = predictions.structures
    hartree = replace(predictions, structures=replace(block, energy=block.energy / 27.211386))
    with pytest.raises(ValueError, match=r"hartree.* Calibrate with data in the units of the predictions"):
        calibrate_predictions(hartree, "scale")


def test_energies_of_another_level_are_refused(predictions: Predictions) -> None:
    block = predictions.structures
    hydrogens, oxygens = (np.bincount(block.owners, block.atomic_numbers == number) for number in (1, 8))
    shifted = replace(predictions, structures=replace(block, energy=block.energy + 30.0 * hydrogens - 170.0 * oxygens))
    with pytest.raises(ValueError, match=r"^energies differ from the model's by a constant per element: another level"):
        calibrate_predictions(shifted, "scale")
    assert any("by a constant per element" in remark for remark in remarks_on(shifted))
    assert not any("by a constant per element" in remark for remark in remarks_on(predictions))


def test_a_calibration_that_does_harm_is_told_of(predictions: Predictions) -> None:
    some = predictions.select(np.arange(len(predictions)) < 40)
    good = Marginals(some.energy.mean, np.ones(40))
    seldom = np.where(np.arange(40) % 10 == 0, 3.0, 0.01)  # where none of the large errors is fitted to, all seem small
    few = replace(
        changed(some, energy=good, forces=None), structures=replace(some.structures, energy=good.mean + seldom)
    )
    found = [calibrate_predictions(few, "scale", fit_fraction=0.25, seed=seed)[1].remarks for seed in range(20)]
    told = [remark for remarks in found for remark in remarks if "got worse" in remark]
    assert told
    assert all("energies: the likelihood" in remark and "too few data" in remark for remark in told)
    assert len(told) < 20, "where it does none, nothing is said"


def test_left_out_structures_are_told(predictions: Predictions) -> None:
    some = replace(predictions, left_out={"contain Xe": 3})
    assert "waters: 3 structures contain Xe; left out" in calibrate_predictions(some, "scale")[1].remarks


def test_coverage_before_and_after(predictions: Predictions) -> None:
    _, done = calibrate_predictions(predictions, "conformal")
    for changes in done.coverage().values():
        assert [each.nominal for each in changes] == [0.5, 0.68, 0.9, 0.95]
        assert all(abs(each.after - each.nominal) < 0.25 for each in changes)
        assert changes[-1].before < 0.8, "error bars were several times too small"
    _, few = calibrate_predictions(predictions.select(np.arange(120) < 24), "conformal")
    assert [each.nominal for each in few.coverage()["forces"]] == [0.5, 0.68, 0.9]  # of 12 structures


def test_coverage_uses_the_tails_of_each_side() -> None:
    """Normal quantiles before, those of the t distribution after: the latter hold what they promise."""
    after = predicted(waters(800), dof=3.1)
    calibration = CoherentCalibration(tails=Tails(energy=3.1, forces=3.1))
    before = changed(after, **{name: replace(getattr(after, name), dof=None) for name in ("energy", "forces")})
    found = CalibrationCheck("coherent", before, after, 100, (), calibration).coverage()["forces"]
    observed = after.observed_forces()
    assert observed is not None
    for change in found:
        assert change.before == coverage(observed.error, observed.variance, change.nominal)
        assert change.after == coverage(observed.error, observed.variance, change.nominal, 3.1)
        margin = 3 * np.sqrt(change.nominal * (1 - change.nominal) / len(observed.error))
        assert abs(change.after - change.nominal) < margin
    assert found[0].before > found[0].after


def test_a_check_says_which_errors_have_tails() -> None:
    after = replace(predicted(waters(30), dof=3.1), name="after")
    before = changed(after, **{name: replace(getattr(after, name), dof=None) for name in ("energy", "forces")})
    calibration = CoherentCalibration(tails=Tails(energy=3.1, forces=3.1))
    check = CalibrationCheck("coherent", replace(before, name="before"), after, 100, (), calibration)
    for text in (check.text(), check._repr_html_()):
        said = " ".join(text.split())
        assert (
            "after: errors follow a Student t with ν = 3.1 for energies and ν = 3.1 for forces. ν, the degrees" in said
        )
        assert "before: errors" not in said


def test_conformal_coverage_is_promised_for_data_of_their_own_only(predictions: Predictions) -> None:
    assert CONFORMAL_REMARK in calibrate_predictions(predictions, "conformal")[1].remarks
    assert CONFORMAL_REMARK not in calibrate_predictions(predictions, "scale")[1].remarks


def test_it_prints_what_was_fitted_and_what_changed(predictions: Predictions) -> None:
    _, done = calibrate_predictions(predictions, "scale")
    said = str(done)
    assert said.startswith("Calibration (scale) fitted to 60 structures; metrics of the 60 others:\n")
    assert "E: before  E: after  F: before  F: after\nMAE " in said
    assert max(len(line) for line in said.splitlines() if not line.startswith(("Coverage", "note"))) < 80
    assert "\nCoverage of intervals of forces, before → after: 50 %: " in said
    kept = "The calibration that is kept was fitted to all 120 structures afterwards."
    assert said.endswith(f"\n{kept}\nnote: {COHERENCE_REMARK}")
    assert repr(done) == said
    shown = done._repr_html_()
    assert '<th scope="row">before</th>' in shown
    assert "<p>Coverage of intervals of forces, before → after: 50 %: " in shown
    assert f"<p>{kept}</p>" in shown


@dataclass(frozen=True)
class Trained:
    """As ``huefield.train`` returns it."""

    ensemble: Ensemble
    validation: Part


@pytest.mark.slow
def test_a_notebook_calibrates_what_it_has(colored: Ensemble, part: Part, tmp_path: Path) -> None:
    """A trained model with its validation data; or a model file and atoms in memory. Calculators take the result."""
    huefield.save(colored, tmp_path / "model.safetensors")
    file = part.files[0]
    atoms = ase.io.read(file, ":")
    results = [
        huefield.calibrate(Trained(colored, part), method="scale"),
        huefield.calibrate(tmp_path / "model.safetensors", atoms, "scale"),
        huefield.calibrate(str(tmp_path / "model.safetensors"), file, "scale"),
    ]
    assert len({each.ensemble.calibration.model_dump_json() for each in results}) == 1
    results[0].save(tmp_path / "calibrated.safetensors")
    assert huefield.load(tmp_path / "calibrated.safetensors").calibration == results[0].ensemble.calibration
    calculator = huefield.Calculator(results[0])
    found = calculator.get_property("energy_uncertainty", atoms[0])
    assert found == pytest.approx(huefield.Calculator(results[0].ensemble).get_property("energy_uncertainty", atoms[0]))
    assert str(results[0]) == str(results[0].check)


def test_no_data_to_calibrate_with(colored: Ensemble) -> None:
    with pytest.raises(HuefieldError, match="there are no data to calibrate with: give labelled structures"):
        huefield.calibrate(colored)


def test_no_variances_at_all(part: Part, tmp_path: Path) -> None:
    config = ForceField.Config.model_validate(
        {"potential": {**POTENTIAL, "elements": ["H", "O"]}, "noise": {"kind": "vanilla"}}
    )
    single = Ensemble.build(config, 1, key=jax.random.key(0)).with_atom_energies({1: 0.0, 8: -2000.0})
    with pytest.raises(
        ValueError, match=r"energies take no part in the fit: 0 errors .* above zero .*; forces take no"
    ):
        calibrate(single, part)
    with pytest.raises(ValueError, match=r"energies are not calibrated: 0 errors .* above zero .*; forces are not"):
        calibrate(single, part, "isotonic")
