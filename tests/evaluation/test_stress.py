"""Stresses and energies per atom in metrics, tables, figures, report and calibration."""

from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy import stats

from huefield import ForceField, calibrate, evaluate, load, save
from huefield.core import EnergyForces, EnergyForcesStack, Gaussian, Partition
from huefield.core.strain import voigt
from huefield.core.structure import pack
from huefield.data.dataset import Part
from huefield.data.readers.ase_files import AseReader
from huefield.evaluation.coherent import VarianceParts
from huefield.evaluation.paper_metrics import paper_metrics
from huefield.evaluation.report import figures
from huefield.evaluation.report.page import write_report
from huefield.evaluation.report.tables import latex_table, markdown_table, narrow_table, number
from huefield.evaluation.slices import summarise
from huefield.evaluation.stressfit import fit_stress, with_stress
from huefield.model.ensemble import Ensemble
from huefield.model.joint_calibration import CoherentCalibration, Tails
from huefield.predict import predict_part
from huefield.predict.predictions import Predictions
from huefield.support.plots import publication_style
from tests.evaluation.synthetic import crystals, predicted, waters
from tests.pictures import require_readable
from tests.training.helpers import POTENTIAL
from tests.training.springs import crystals as springs

COUNT = 30


@pytest.fixture(scope="module")
def given() -> Predictions:
    return predicted(crystals(COUNT), name="model")


def errors(given: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Of the crystals, without the molecule in a box at the end."""
    assert given.stress is not None
    error, variance = given.structures.stress - given.stress.mean, given.stress.variance
    return voigt(error[:-1]).ravel(), voigt(variance[:-1]).ravel()


class TestMetrics:
    def test_six_components_of_crystals_are_compared(self, given: Predictions) -> None:
        found, (error, variance) = summarise(given).stress, errors(given)
        assert found is not None
        expected = paper_metrics(error, variance, 10)
        assert found.count == 6 * (COUNT - 1)
        for name in ("mae", "rmse", "nll", "rzv", "ence", "cv", "rmv"):
            assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-9)

    def test_groups_have_them_too(self, given: Predictions) -> None:
        groups = ("a",) * 10 + ("b",) * (COUNT - 10)
        split = summarise(replace(given, structures=replace(given.structures, groups=groups))).breakdown
        (first,) = [each for each in split if each.label == "a"]
        assert first.stress is not None
        assert first.energy is not None
        assert first.energy_per_atom is not None
        assert first.stress.count == 60
        assert first.stress.mae == pytest.approx(np.abs(errors(given)[0][:60]).mean())
        assert first.energy_per_atom.rmse == pytest.approx(first.energy.rmse / 3)

    def test_energies_per_atom_have_the_z_scores_of_energies(self, given: Predictions) -> None:
        found = summarise(given)
        assert found.energy is not None
        assert found.energy_per_atom is not None
        assert found.energy_per_atom.rmse == pytest.approx(found.energy.rmse / 3, rel=1e-9)
        assert found.energy_per_atom.rzv == pytest.approx(found.energy.rzv, rel=1e-9)

    def test_molecules_have_neither(self) -> None:
        found = summarise(predicted(waters(COUNT)))
        assert found.stress is None
        assert found.energy_per_atom is None

    def test_stresses_that_were_not_predicted_are_said(self, given: Predictions) -> None:
        assert given.stress is not None
        mean = given.stress.mean.copy()
        mean[:2] = np.nan
        marginals = replace(given.marginals, stress=replace(given.stress, mean=mean))
        told = summarise(replace(given, marginals=marginals)).remarks
        assert told == ("stresses: not predicted for 2 of 29 structures with observed values",)


class TestReport:
    def test_tables_have_columns_of_crystals(self, given: Predictions) -> None:
        found = summarise(given, resamples=10)
        assert found.energy_per_atom is not None
        assert found.stress is not None
        lines = markdown_table([found]).splitlines()
        assert lines[0] == (
            "Energies (E) in eV, energies per atom (E/N) in meV, force components (F) in eV/Å, stress components (S) "
            "in eV/Å³ (1 eV/Å³ = 160.2 GPa)."
        )
        heads, cells = ([cell.strip() for cell in lines[row].strip("|").split("|")] for row in (2, 4))
        assert cells[heads.index("E/N: MAE")] == number(1e3 * found.energy_per_atom.mae, None)
        assert cells[heads.index("S: MAE") + 3] == number(found.stress.rzv, 2)
        low = found.energy_per_atom.interval("mae")
        assert low is not None
        assert number(1e3 * low.low, None) in lines[-1]
        assert "S: model" in narrow_table([found])
        assert "Stress (eV/\\AA$^3$)" in latex_table([found])

    def test_tables_of_molecules_have_none(self) -> None:
        for make in (markdown_table, narrow_table, latex_table):
            text = make([summarise(predicted(waters(COUNT)))])
            assert "per atom" not in text
            assert "tress" not in text

    def test_the_page_has_rows_of_crystals(self, given: Predictions, tmp_path: Path) -> None:
        for name, predictions, count in (("crystals", given, 4), ("molecules", predicted(waters(COUNT)), 2)):
            write_report(tmp_path / name, [summarise(predictions)], [predictions], figures=[])
            text = (tmp_path / name).read_text()
            titles = (
                "Energies (eV)",
                "Energies per atom (meV)",
                "Force components (eV/Å)",
                "Stress components (eV/Å³)",
            )
            assert sum(title in text for title in titles) == count
            assert "no value was both predicted and observed" not in text

    def test_figures_have_a_panel_for_the_stress(self, given: Predictions) -> None:
        with publication_style():
            for figure in (
                figures.parity_figure([given]),
                figures.parts_figure([given]),
                figures.reliability_figure([summarise(given)]),
            ):
                assert figure is not None
                assert [ax.get_title() for ax in figure.axes][-1] == "Stress components"
                require_readable(figure)


class TestFit:
    def test_the_factor_of_the_rest_is_found(self) -> None:
        """Errors are drawn with the variance 2·noise + 30·rest + 0.5·spread, from a t distribution."""
        rng = np.random.default_rng(0)
        noise, rest, spread = rng.gamma(2.0, 1.0, (3, 40_000)) * np.array([[0.2], [0.05], [0.3]])
        sigma = np.sqrt(2 * noise + 30 * rest + 0.5 * spread)
        error = sigma * np.sqrt(4 / 6) * stats.t(6).rvs(len(sigma), random_state=rng)
        factor, dof = fit_stress(VarianceParts(error, noise, rest, spread), 2.0, 0.5, len(error) / 6)
        assert factor == pytest.approx(30, rel=0.05)
        assert dof == pytest.approx(6, rel=0.15)

    def test_other_factors_stay_those_of_energies_and_forces(self, given: Predictions) -> None:
        assert given.stress is not None
        parts = replace(given.stress, diagonal_var=0.5 * given.stress.aleatoric_var)
        before = CoherentCalibration(noise=1.5, force_diagonal=0.7, tails=Tails(energy=5.0))
        after, remarks = with_stress(before, replace(given, marginals=replace(given.marginals, stress=parts)))
        assert remarks == ()
        assert after.stress_diagonal is not None
        changed = {"stress_diagonal": None, "tails": before.tails}
        assert after.model_copy(update=changed) == before
        assert after.tails.model_copy(update={"observed_stress": None}) == before.tails
        assert after.tails.stress == after.tails.observed_stress
        assert before.tails.stress == before.tails.forces
        assert "rest of stresses" in after.in_words()
        assert "stress" not in before.in_words()

    def test_few_stresses_are_said(self, given: Predictions) -> None:
        few = given.select(np.arange(COUNT) < 1)
        assert few.stress is not None
        parts = replace(few.stress, diagonal_var=few.stress.aleatoric_var)
        before = CoherentCalibration()
        after, remarks = with_stress(before, replace(few, marginals=replace(few.marginals, stress=parts)))
        assert after == before
        assert remarks == ("stresses take no part in the fit: 6 errors are too few",)

    def test_molecules_need_none(self) -> None:
        before = CoherentCalibration()
        assert with_stress(before, predicted(waters(5))) == (before, ())


def test_the_factor_multiplies_the_rest_of_the_strain_alone() -> None:
    one = np.ones
    diagonal = EnergyForces(*map(jax.numpy.asarray, (one(1), one((2, 3)), one((1, 3, 3)))))
    stack = EnergyForcesStack(*map(jax.numpy.asarray, (one((1, 1)), one((1, 2, 3)), one((1, 1, 3, 3)))))
    gaussian = Gaussian(diagonal, diagonal, stack, stack, Partition.from_sizes([2]))
    calibration = CoherentCalibration(noise=2.0, force_diagonal=3.0, spread=5.0, stress_diagonal=7.0)
    variance = gaussian.scaled(calibration.scaling(gaussian)).variance()
    np.testing.assert_allclose(variance.strain, 2 + 7 + 5, rtol=1e-6)
    np.testing.assert_allclose(variance.forces, 2 + 3 + 5, rtol=1e-6)
    older = calibration.model_copy(update={"stress_diagonal": None})
    np.testing.assert_allclose(gaussian.scaled(older.scaling(gaussian)).variance().strain, 2 + 3 + 5, rtol=1e-6)


def test_a_calibration_of_stresses_is_stored_in_files_of_version_4(tmp_path: Path) -> None:
    config = {"potential": {**POTENTIAL, "elements": ["C", "O"]}, "noise": {"kind": "local"}}
    built = Ensemble.build(ForceField.Config.model_validate(config), 1, key=jax.random.key(0))
    for factor, version in ((None, b'"format_version":"3"'), (7.0, b'"format_version":"4"')):
        tails = Tails(energy=4.0, observed_stress=None if factor is None else 5.0)
        calibration = CoherentCalibration(noise=2.0, stress_diagonal=factor, tails=tails)
        save(built.with_calibration(calibration), tmp_path / "model")
        assert version in (tmp_path / "model").read_bytes()
        assert (b"stress" in (tmp_path / "model").read_bytes()) == (factor is not None)
        assert load(tmp_path / "model").calibration == calibration


def test_the_factor_of_stress_noise_is_stored_in_files_of_version_4(tmp_path: Path) -> None:
    config = {"potential": {**POTENTIAL, "elements": ["C", "O"]}, "noise": {"kind": "local"}}
    built = Ensemble.build(ForceField.Config.model_validate(config), 2, key=jax.random.key(0))
    teach = eqx.filter_vmap(lambda member, factor: replace(member, log_strain_rest=factor))
    taught = replace(built, members=teach(built.members, jax.numpy.array([0.5, -0.25])))
    save(taught, tmp_path / "model")
    assert b'"format_version":"4"' in (tmp_path / "model").read_bytes()
    np.testing.assert_array_equal(load(tmp_path / "model").members.log_strain_rest, [0.5, -0.25])


@pytest.mark.slow
def test_a_calibrated_model_has_calibrated_stresses(tmp_path: Path) -> None:
    """From predictions of a random model to intervals, and back to predictions before calibration."""
    reader = AseReader()
    block = pack([reader.convert(atoms) for atoms in springs(40)], np.arange(40), "springs")
    config = {"potential": {**POTENTIAL, "elements": ["C", "O"]}, "noise": {"kind": "local"}}
    built = Ensemble.build(ForceField.Config.model_validate(config), 2, key=jax.random.key(0))
    part = Part("springs", block, np.arange(40))
    calibrated = calibrate(built.with_atom_energies({6: 0.0, 8: 0.0}), part)
    coverage = calibrated.check.coverage()["stresses"]
    assert abs(coverage[1].after - 0.68) < abs(coverage[1].before - 0.68)
    assert calibrated.ensemble.calibration.stress_diagonal is not None
    after = predict_part(calibrated.ensemble, part, "after")
    before = predict_part(calibrated.ensemble.with_calibration(None), part, "before")
    restored = after.uncalibrated()
    assert restored is not None
    np.testing.assert_allclose(restored.stress.variance, before.stress.variance, rtol=1e-4)
    result = evaluate(calibrated.ensemble, part, tmp_path / "out", resamples=0)
    assert "stress components (S)" in result.table
    assert result.evaluations[0].stress.rzv == pytest.approx(1.0, abs=0.35)
