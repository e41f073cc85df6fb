"""From a model and data, or from predictions of any code, to numbers, tables, figures and a page."""

import json
from dataclasses import replace
from pathlib import Path

import ase.io
import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import huefield
from huefield.cli.main import app
from huefield.data.dataset import Part, open_part
from huefield.evaluation.evaluate import evaluate_predictions
from huefield.evaluation.slices import summarise
from huefield.model.calibration import ScaleCalibration
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import EnergyForcesCalibration
from huefield.predict import predict_part, read_predictions, remarks_on, write_predictions
from huefield.predict.names import names_of
from huefield.predict.predictions import Predictions
from tests.training.helpers import POTENTIAL, write_waters

PAGE = ["report.html", "metrics.json", "table.md", "table.tex", "predictions-mine.extxyz", "figures"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and data that it has not seen."""
    made = tmp_path_factory.mktemp("evaluate")
    config = ForceField.Config.model_validate(
        {"potential": {**POTENTIAL, "elements": ["H", "O"]}, "noise": {"kind": "colored"}}
    )
    ensemble = Ensemble.build(config, 2, key=jax.random.key(0)).with_atom_energies({1: 0.0, 8: -2000.0})
    huefield.save(ensemble.map_noise(lambda n: n.initialised(0.02, 0.1)), made / "mine.safetensors")
    write_waters(made / "waters.xyz", 120)
    return made


@pytest.fixture(scope="module")
def part(folder: Path) -> Part:
    return open_part("waters", [folder / "waters.xyz"])


@pytest.fixture(scope="module")
def predictions(folder: Path, part: Part) -> Predictions:
    return predict_part(huefield.load(folder / "mine.safetensors"), part, "mine")


def run(*arguments: object, fails: bool = False) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert (result.exit_code != 0) == fails, result.output
    return result.output if not fails else f"{result.output}{result.exception}"


def test_models_in_double_precision_are_evaluated(folder: Path, predictions: Predictions, tmp_path: Path) -> None:
    """In memory and as a file, with JAX in its usual single precision."""
    double = huefield.load(folder / "mine.safetensors", dtype="float64")
    huefield.save(double, tmp_path / "double.safetensors")
    found = huefield.evaluate([double, tmp_path / "double.safetensors"], folder / "waters.xyz", resamples=0)
    single = summarise(predictions)
    for each in found.evaluations:
        assert each.forces.nll == found.evaluations[0].forces.nll
        assert each.forces.nll == pytest.approx(single.forces.nll, rel=1e-3)
        assert each.forces.nll != single.forces.nll


@pytest.mark.slow
def test_models_and_data_give_a_page(folder: Path, tmp_path: Path, predictions: Predictions) -> None:
    """A model as it was trained, and calibrated."""
    said = run("calibrate", folder / "mine.safetensors", folder / "waters.xyz", "--method", "scale")
    made = folder / "mine-calibrated.safetensors"
    assert "Calibration (scale) fitted to 60 structures; metrics of the 60 others:" in said
    assert f"Wrote {made}" in said
    assert huefield.load(made).calibration is not None
    assert huefield.load(folder / "mine.safetensors").calibration is None
    said = run("evaluate", folder / "mine.safetensors", made, folder / "waters.xyz", "--out", tmp_path / "out")
    assert "| mine |" in said
    assert f"Open {tmp_path / 'out' / 'report.html'} in a browser" in said
    assert all((tmp_path / "out" / name).exists() for name in PAGE)
    assert "Calibration before and after" in (tmp_path / "out" / "report.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())["models"][0]
    error = predictions.structures.energy - predictions.energy.mean
    assert found["energy"]["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6)
    assert found["energy"]["intervals"]
    assert [(s["kind"], s["label"]) for s in found["breakdown"][:2]] == [("element", "H"), ("element", "O")]


def test_predictions_in_a_file_are_judged_like_the_model(predictions: Predictions, tmp_path: Path) -> None:
    write_predictions(tmp_path / "mine.extxyz", predictions)
    again = read_predictions(tmp_path / "mine.extxyz")
    judged = [evaluate_predictions([each], None, source="", resamples=0) for each in (predictions, again)]
    first, second = (each.evaluations[0] for each in judged)
    for quantity in ("energy", "forces"):
        for metric in ("mae", "rmse", "nll", "rzv", "ence", "cv", "rmv", "crps", "auroc"):
            values = [getattr(getattr(each, quantity), metric) for each in (first, second)]
            assert values[0] == pytest.approx(values[1], rel=1e-9)
    assert first.joint_nll == pytest.approx(second.joint_nll, rel=1e-6)


def test_calibrating_predictions_of_any_code(predictions: Predictions, tmp_path: Path) -> None:
    source = tmp_path / "mine.extxyz"
    write_predictions(source, predictions)
    said = run("calibrate", "--predictions", source, "--method", "scale", "--out", tmp_path / "better.extxyz")
    assert f"Wrote {tmp_path / 'better.extxyz'}, and the calibration of the variances" in said
    before, after = read_predictions(source), read_predictions(tmp_path / "better.extxyz")
    kept = EnergyForcesCalibration.model_validate_json((tmp_path / "better-calibration.json").read_text())
    assert isinstance(kept.forces, ScaleCalibration)
    np.testing.assert_allclose(after.forces.variance, kept.forces.factor * before.forces.variance, rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate"], "give a model file and a file or store with labelled structures"),
        (["evaluate", "m", "d", "--predictions", "p"], "give either models and data, or --predictions, not both"),
        (["calibrate", "m", "n", "d"], "one model is calibrated at a time"),
        (["evaluate", "no.safetensors", "no.xyz"], "there is no file or store no.xyz"),
        (["evaluate", "--predictions", "p.xyz", "--keys", '{"energie": "e"}'], "energie"),
        (["calibrate", "--predictions", "p.xyz", "--part", "test"], "--part: it has no effect here"),
        (["evaluate", "--predictions", "p.xyz", "--members"], "--members: it has no effect here"),
        (["evaluate", "m", "d", "--keys", "{}"], "--keys: it has no effect here"),
        (["calibrate", "m", "d", "--method", "scale", "--group-size", "3"], "--group-size: it has no effect here"),
        (["calibrate", "--predictions", "p.xyz", "--out", "p.xyz"], "p.xyz would be overwritten"),
    ],
)
def test_wrong_arguments_say_what_to_do(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = " ".join(run(*arguments, fails=True).replace("│", " ").split())
    assert message in said
    assert not (tmp_path / "evaluation").exists()


def test_one_structure_only(predictions: Predictions) -> None:
    one = predictions.select(np.arange(len(predictions)) == 7)
    found = evaluate_predictions([one], None, source="test").evaluations[0].energy
    assert found.count == 1
    assert found.mae > 0
    assert np.isnan(found.ence)
    assert any(remark.startswith("ence") for remark in found.remarks)


def test_what_is_missing_is_counted(predictions: Predictions) -> None:
    block = predictions.structures
    half = replace(block, has_energy=np.arange(120) < 40, has_forces=np.arange(120) > 0)
    some = replace(predictions, structures=half, left_out={"contain Xe": 3})
    assert remarks_on(some) == [
        "mine: 3 structures contain Xe; left out",
        "mine: 80 of 120 structures have no energy to compare with",
        "mine: 1 of 120 structures have no forces to compare with",
    ]
    judged = evaluate_predictions([some], None, source="test")
    assert (judged.evaluations[0].energy.count, judged.evaluations[0].forces.count) == (40, 119 * 9)


def test_other_units_are_pointed_out(predictions: Predictions) -> None:
    block = predictions.structures
    hartree = replace(predictions, structures=replace(block, energy=block.energy / 27.211386))
    assert any("hartree" in remark for remark in remarks_on(hartree))


def test_names_of_models() -> None:
    paths = [Path(p) for p in ("a/model.safetensors", "b/model.safetensors", "c/mine.safetensors")]
    assert names_of(paths) == ["a", "b", "mine"]
    assert names_of([Path("x/a/model.safetensors"), Path("y/a/model.safetensors")]) == ["x/a", "y/a"]
    assert names_of([Path("x/m-calibrated.safetensors"), Path("y/m-calibrated.safetensors")]) == [
        "x/m-calibrated",
        "y/m-calibrated",
    ]


def test_an_earlier_evaluation_is_replaced_as_a_whole(
    predictions: Predictions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or not at all; what is not its own stays."""
    old = {"predictions-theirs.extxyz": "", "figures/calibration.png": "", "notes.txt": "", "table.md": "before"}
    (tmp_path / "figures").mkdir()
    for name, text in old.items():
        (tmp_path / name).write_text(text)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("huefield.evaluation.evaluate.write_predictions", interrupted)
        patch.setattr("huefield.evaluation.evaluate.save_figures", lambda *_, **__: [])
        with pytest.raises(KeyboardInterrupt):
            evaluate_predictions([predictions], tmp_path, source="", resamples=0)
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == set(old)
    assert (tmp_path / "table.md").read_text() == "before"
    monkeypatch.setattr("huefield.evaluation.evaluate.save_figures", lambda *_, **__: [])
    evaluate_predictions([predictions], tmp_path, source="", resamples=0)
    assert (tmp_path / "notes.txt").exists()
    assert [path.name for path in tmp_path.glob("predictions-*")] == ["predictions-mine.extxyz"]
    assert not (tmp_path / "figures" / "calibration.png").exists()
    assert (tmp_path / "table.md").read_text() != "before"


def test_a_file_in_place_of_a_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "afile").write_text("")
    said = run("evaluate", folder / "mine.safetensors", folder / "waters.xyz", "--out", tmp_path / "afile", fails=True)
    assert "is a file, but a folder is needed" in said
    said = run("evaluate", folder, folder / "waters.xyz", "--out", tmp_path / "out", fails=True)
    assert "this is a folder, but a model file is needed" in said


def test_a_folder_that_was_made_for_nothing_goes_again(folder: Path, tmp_path: Path) -> None:
    """What was there stays."""
    arguments = ("evaluate", folder / "no.safetensors", folder / "waters.xyz", "--out")
    (tmp_path / "mine").mkdir()
    for out in ("new", "new/deep", "mine", "mine/new"):
        run(*arguments, tmp_path / out, fails=True)
        assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_members_are_written_if_asked_for(folder: Path, part: Part, tmp_path: Path) -> None:
    predicted = predict_part(huefield.load(folder / "mine.safetensors"), part, "mine", members=True)
    write_predictions(tmp_path / "mine.extxyz", predicted)
    atoms = ase.io.read(tmp_path / "mine.extxyz", 5)
    assert atoms.info["energy_ensemble"].mean() == pytest.approx(atoms.get_potential_energy(), abs=1e-4)
    assert atoms.info["energy_ensemble"].std() == pytest.approx(atoms.info["energy_uncertainty_epistemic"], rel=1e-2)
    members = atoms.arrays["forces_ensemble"].reshape(3, 2, 3)
    np.testing.assert_allclose(members.std(1), atoms.arrays["forces_uncertainty_epistemic"], rtol=1e-2, atol=1e-6)


def test_models_of_one_name_are_told_apart(predictions: Predictions, tmp_path: Path) -> None:
    """Files of one would replace those of the other."""
    fewer = predictions.select(np.arange(120) < 100)
    judged = evaluate_predictions([predictions, fewer], None, source="test", resamples=0)
    assert [each.name for each in judged.evaluations] == ["mine", "mine (2)"]
    assert judged.remarks[-1].startswith("the models are evaluated on different structures (mine 120, mine (2) 100)")


EVIL = "a|b<script>/../x"


def test_a_model_with_an_evil_name_stays_in_its_folder_and_cell(predictions: Predictions, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = [replace(predictions, name=EVIL), replace(predictions, name=EVIL.replace("|", "/"))]
    result = evaluate_predictions(given, out, source="<b>", resamples=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    names = [path.name for path in result.files if path.name.startswith("predictions-")]
    assert names == ["predictions-a-b-script-..-x (2).extxyz", "predictions-a-b-script-..-x.extxyz"]
    rows = [line for line in (out / "table.md").read_text().splitlines() if "script" in line]
    assert all(line.count(" | ") == rows[0].count(" | ") for line in rows)
    assert rows[0].startswith(r"| a\|b\<script\>/../x | ")
    assert "<script>/" not in (out / "report.html").read_text()
    assert "<script>" in json.loads((out / "metrics.json").read_text())["models"][0]["name"]


@pytest.mark.parametrize("command", ["evaluate", "calibrate"])
def test_swapped_arguments_are_named(command: str, folder: Path, tmp_path: Path) -> None:
    said = run(command, folder / "waters.xyz", folder / "mine.safetensors", "--out", tmp_path / "new", fails=True)
    assert "check the order of the arguments" in said
    assert "the model comes before the data" in said
    assert not (tmp_path / "new").exists()


def test_a_notebook_evaluates_what_it_has(folder: Path, part: Part) -> None:
    atoms, ensemble = ase.io.read(folder / "waters.xyz", ":"), huefield.load(folder / "mine.safetensors")
    results = [
        huefield.evaluate(ensemble, atoms, resamples=0),
        huefield.evaluate(folder / "mine.safetensors", str(folder / "waters.xyz"), resamples=0),
        huefield.evaluate([huefield.Calculator(ensemble), folder / "mine.safetensors"], part, resamples=0),
    ]
    first, second, both = results
    assert [each.name for each in (*first.evaluations, *second.evaluations, *both.evaluations)] == [
        "model",
        "mine",
        "model",
        "mine",
    ]
    assert len({each.evaluations[0].forces.nll for each in results}) == 1
    assert str(second) == repr(second) == second.table
    assert '<th scope="row">mine</th>' in second._repr_html_()
    with pytest.raises(huefield.HuefieldError, match="there is no model to evaluate"):
        huefield.evaluate([], part)
