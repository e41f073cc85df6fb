"""Training on two data sets of different reference energies, and everything that can be done with the model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.io import read, write
from typer.testing import CliRunner

import huefield
from huefield.cli.main import app
from huefield.core.structure import TAG
from huefield.data.convert import convert
from huefield.data.dataset import FileData
from huefield.data.references import AtomicReferences
from huefield.predict.file import predict_file
from huefield.support.errors import HuefieldError
from huefield.training import TrainConfig, Trained, assemble, train
from huefield.training.checkpoint import CheckpointError
from huefield.training.config import parse_config, validated
from huefield.training.datachecks import overview, require_trainable
from huefield.training.feed import prepare
from huefield.training.presets import commented_yaml, preset
from tests.training.helpers import config_for, waters, write_waters

SHIFT = -30.0
SPLIT = {"kind": "random", "fractions": {"train": 0.6, "validation": 0.2, "test": 0.2}}
SHORT = [{"kind": "squared_error", "steps": 4, "learning_rate": 1e-2}]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file, and a store whose total energies are 30 eV lower."""
    folder = tmp_path_factory.mktemp("sets")
    low = write_waters(folder / "low.xyz", 20, seed=1, shift=SHIFT)
    return write_waters(folder / "high.xyz", 20), convert([low], folder / "low.hues").path


def data_of(files: tuple[Path, Path], **low: Any) -> dict[str, Any]:
    entries = [{"path": str(files[0]), "tag": "high"}, {"path": str(files[1]), "tag": "low", **low}]
    return {"kind": "files", "train": entries, "split": SPLIT}


def config(files: tuple[Path, Path], low: dict[str, Any] | None = None, **changes: Any) -> TrainConfig:
    return config_for(files[0], **{"data": data_of(files, **(low or {})), "stages": SHORT, **changes})


@pytest.fixture(scope="module")
def trained(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(config(files), tmp_path_factory.mktemp("run"), report=lambda event: None)


def test_the_model_has_the_references_of_both_and_predicts_the_first(trained: Trained) -> None:
    ensemble = trained.ensemble
    assert ensemble.datasets is not None
    assert (ensemble.datasets.tags, ensemble.datasets.chosen) == (("high", "low"), "high")
    water = np.array([8, 1, 1])
    gap = ensemble.isolated_energies(water, "low").sum() - ensemble.isolated_energies(water, "high").sum()
    assert gap == pytest.approx(SHIFT, abs=1.0)
    assert huefield.load(trained.model).datasets == ensemble.datasets
    recorded = AtomicReferences.load(trained.folder / "references.json")
    assert list(recorded.energies_ev) == ["high", "low"]


def test_scores_name_the_data_sets(trained: Trained) -> None:
    expected = [f"{part}{tag}" for part in ("validation", "test") for tag in ("", "/high", "/low")]
    assert list(trained.scores) == expected
    assert list(json.loads((trained.folder / "scores.json").read_text())) == expected
    lines = trained.table().splitlines()
    assert [line.split()[0] for line in lines[1:7]] == expected
    assert len({len(line) for line in lines}) == 1
    counts = [trained.scores[name].energy.count for name in expected]
    assert counts == [8, 4, 4, 8, 4, 4]
    assert trained.scores["validation"].energy.rmse < 3.0 < abs(SHIFT)


def test_structures_of_the_run_are_evaluated_with_their_own_references(trained: Trained) -> None:
    whole = huefield.evaluate(trained, trained.folder, resamples=0)
    by_set = {each.label: each for each in whole.evaluations[0].datasets}
    assert set(by_set) == {"high", "low"}
    for tag, found in by_set.items():
        assert found.energy is not None
        assert found.energy.rmse == pytest.approx(trained.scores[f"test/{tag}"].energy.rmse, rel=1e-6)
        alone = huefield.evaluate(trained, trained.folder, resamples=0, dataset=tag).evaluations[0]
        assert alone.energy is not None
        assert (alone.energy.count, alone.energy.rmse) == (4, pytest.approx(found.energy.rmse, rel=1e-6))
    assert "By data set:" in whole.table
    with pytest.raises(HuefieldError, match="test has no structure of data set 'other', but of high, low"):
        huefield.evaluate(trained, trained.folder, dataset="other")


def test_structures_of_a_file_belong_to_the_data_set_that_is_named(trained: Trained, tmp_path: Path) -> None:
    file = write_waters(tmp_path / "new.xyz", 5, seed=9, shift=SHIFT)
    errors = {}
    for tag in ("high", "low"):
        found = huefield.evaluate(trained, file, dataset=tag, resamples=0).evaluations[0]
        assert found.energy is not None
        errors[tag] = found.energy.mae
    assert errors["low"] < 3.0
    assert errors["high"] == pytest.approx(abs(SHIFT), abs=3.0)


def test_calibration_takes_the_structures_of_a_data_set(trained: Trained) -> None:
    check = huefield.calibrate(trained, method="scale", fit_fraction=0.5)
    assert check.ensemble.datasets == trained.ensemble.datasets
    assert {each.label for each in check.check.evaluations[1].datasets} == {"high", "low"}
    assert "Data set low:" in check.check.text()


def test_predictions_are_those_of_the_data_set(trained: Trained, tmp_path: Path) -> None:
    source = write_waters(tmp_path / "in.xyz", 2)
    energies = {}
    for tag in ("high", "low"):
        predict_file(trained, source, tmp_path / f"{tag}.extxyz", dataset=tag)
        energies[tag] = read(tmp_path / f"{tag}.extxyz").get_potential_energy()
    isolated = [trained.ensemble.isolated_energies(np.array([8, 1, 1]), tag).sum() for tag in ("high", "low")]
    assert energies["low"] - energies["high"] == pytest.approx(isolated[1] - isolated[0], abs=1e-6)


def test_the_main_data_set_can_be_another(files: tuple[Path, Path], tmp_path: Path) -> None:
    data = {**data_of(files), "main": "low"}
    made = train(config(files, data=data, members=1), tmp_path, report=lambda event: None)
    assert made.ensemble.datasets is not None
    assert made.ensemble.datasets.tags == ("low", "high")


def test_a_single_tag_trains_as_no_tag_to_the_last_bit(files: tuple[Path, Path], tmp_path: Path) -> None:
    plain, tagged = (
        train(config(files, data={"kind": "files", "train": [entry], "split": SPLIT}), tmp_path / name,
              report=lambda event: None)
        for name, entry in (("plain", str(files[0])), ("tagged", {"path": str(files[0]), "tag": "pbe"}))
    )  # fmt: skip
    assert plain.model.read_bytes() == tagged.model.read_bytes()
    assert list(plain.scores) == list(tagged.scores) == ["validation", "test"]


@pytest.mark.slow
def test_weights_of_one_change_nothing_and_others_do(files: tuple[Path, Path], tmp_path: Path) -> None:
    found = {}
    for name, low in (("none", {}), ("one", {"weight": 1.0}), ("two", {"weight": 2.0})):
        found[name] = train(config(files, low), tmp_path / name, report=lambda event: None).model.read_bytes()
    assert found["none"] == found["one"]
    assert found["none"] != found["two"]


def test_weights_belong_to_the_structures_of_their_data_set(files: tuple[Path, Path]) -> None:
    parts = FileData.model_validate(data_of(files)).load()
    references = AtomicReferences({tag: {1: 0.0, 8: 0.0} for tag in ("high", "low")})
    prepared = prepare(parts["train"], 3.0, references, {"high": 1.0, "low": 0.25})
    weights = prepared.batch(np.array([0, 23]), prepared.shape_for([np.array([0, 23])], ())).labels.weight
    assert weights is not None
    np.testing.assert_array_equal(np.asarray(weights)[:2], [1.0, 0.25])
    plain = prepare(parts["train"], 3.0, references, {"high": 1.0, "low": 1.0})
    assert plain.weights is None
    assert plain.batch(np.array([0]), plain.shape_for([np.array([0])], ())).labels.weight is None


def test_a_changed_weight_or_tag_is_named_on_resume(files: tuple[Path, Path], tmp_path: Path) -> None:
    train(config(files, members=1), tmp_path, report=lambda event: None)
    with pytest.raises(CheckpointError, match=r"data\.train\.1\.weight: was None, is 3\.0"):
        train(config(files, {"weight": 3.0}, members=1), tmp_path, report=lambda event: None)
    with pytest.raises(CheckpointError, match=r"data\.train\.1\.tag: was 'low', is 'lower'"):
        train(config(files, {"tag": "lower"}, members=1), tmp_path, report=lambda event: None)


def test_members_trained_alone_make_the_same(files: tuple[Path, Path], tmp_path: Path, trained: Trained) -> None:
    for member in range(2):
        train(config(files), tmp_path, member=member, report=lambda event: None)
    made = assemble(tmp_path)
    assert made.ensemble.datasets == trained.ensemble.datasets
    assert list(made.scores) == list(trained.scores)
    for name, scores in made.scores.items():
        assert scores.energy.rmse == pytest.approx(trained.scores[name].energy.rmse, rel=1e-3)


def test_a_pooled_model_can_be_trained_further(files: tuple[Path, Path], tmp_path: Path, trained: Trained) -> None:
    more = train(config(files, start_from=str(trained.model)), tmp_path, report=lambda event: None)
    assert more.ensemble.datasets == trained.ensemble.datasets


class TestChecks:
    def test_a_data_set_without_validation_structures_is_named(self, files: tuple[Path, Path], tmp_path: Path) -> None:
        split = tmp_path / "split.json"
        split.write_text(json.dumps({"train": list(range(30)), "validation": [30, 31]}))
        data = {**data_of(files), "split": {"kind": "file", "path": str(split)}}
        with pytest.raises(HuefieldError, match="no structures of data set 'high' for validation: split at random"):
            require_trainable(FileData.model_validate(data).load())

    def test_an_element_of_validation_only_is_named_with_its_data_set(self, tmp_path: Path) -> None:
        strange = waters(2, seed=4)
        for atoms in strange:
            atoms.set_chemical_symbols(["S", "H", "H"])
        write(tmp_path / "strange.xyz", strange, format="extxyz")
        train_files = [write_waters(tmp_path / "a.xyz", 4), write_waters(tmp_path / "b.xyz", 4, seed=1)]
        more = write_waters(tmp_path / "c.xyz", 2, seed=2)
        data = {
            "train": [{"path": path, "tag": tag} for path, tag in zip(train_files, ("a", "b"), strict=True)],
            "validation": [{"path": more, "tag": "a"}, {"path": tmp_path / "strange.xyz", "tag": "b"}],
        }
        with pytest.raises(HuefieldError, match="data set 'b' has S for validation, but only H, O for training"):
            require_trainable(FileData.model_validate(data).load())

    def test_the_overview_lists_the_data_sets(self, files: tuple[Path, Path], tmp_path: Path) -> None:
        forces = waters(10, seed=3)
        for atoms in forces:
            del atoms.calc.results["energy"]
        write(tmp_path / "forces.xyz", forces, format="extxyz")
        data = data_of((files[0], tmp_path / "forces.xyz"))
        parts = FileData.model_validate(data).load()
        references = AtomicReferences({"high": {1: 0.0}, "low": {1: 0.0}}, underdetermined=("high",))
        lines = list(overview(parts, references, range(1), 1))
        assert lines[1] == "data sets: high (12 + 4 structures), low (6 + 2 structures)"
        assert any("compositions of the training data in high do not determine" in line for line in lines)
        assert "warning: data set 'low' has no energies: only forces are learnt from it" in lines


def test_a_set_of_forces_only_is_trained_with_the_main_references(files: tuple[Path, Path], tmp_path: Path) -> None:
    forces = waters(10, seed=3)
    for atoms in forces:
        del atoms.calc.results["energy"]
    write(tmp_path / "forces.xyz", forces, format="extxyz")
    data = data_of((files[0], tmp_path / "forces.xyz"))
    made = train(config(files, data=data, members=1), tmp_path / "run", report=lambda event: None)
    assert made.ensemble.datasets is not None
    assert made.ensemble.datasets.energies("low") == made.ensemble.datasets.energies("high")
    assert made.scores["test/low"].energy.count == 0
    assert made.scores["test/low"].forces.count == 18


def test_a_configuration_with_tags_can_be_printed_and_read(files: tuple[Path, Path]) -> None:
    chosen = preset("tiny", FileData.model_validate(data_of(files, weight=0.5)))
    again = parse_config(commented_yaml(chosen, "title"), "text")
    assert again.data == chosen.data
    assert TAG not in chosen.data.datasets


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": -1}, r"data\.train\.1\.weight: Input should be greater than 0 \(got -1\)"),
        ({"tags": "x"}, r"data\.train\.1\.tags: is not a known key; known are path, tag, weight, reader"),
    ],
)
def test_a_wrong_entry_is_named_by_its_key(files: tuple[Path, Path], change: dict[str, Any], message: str) -> None:
    content = {"data": data_of(files, **change), "model": {"potential": {"kind": "painn"}}, "stages": SHORT}
    with pytest.raises(HuefieldError, match=message):
        validated(content, "test")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


class TestCommandLine:
    @pytest.mark.slow
    def test_evaluate_and_calibrate_one_data_set(self, trained: Trained, tmp_path: Path) -> None:
        both = run("evaluate", trained.model, trained.folder, "--out", tmp_path / "both", "--resamples", 0)
        assert "By data set:" in both
        assert ">By data set<" in (tmp_path / "both" / "report.html").read_text()
        low = ("--out", tmp_path / "low", "--resamples", 0, "--dataset", "low")
        assert "By data set:" not in run("evaluate", trained.model, trained.folder, *low)
        out = tmp_path / "calibrated.safetensors"
        told = run("calibrate", trained.model, trained.folder, "--method", "scale", "--out", out, "--dataset", "low")
        assert "fitted to 2 structures; metrics of the 2 others" in told
        calibrated = huefield.load(out)
        assert calibrated.datasets is not None
        assert calibrated.datasets.chosen == "low"

    def test_predict_and_dynamics_of_a_data_set(self, trained: Trained, tmp_path: Path) -> None:
        start = write_waters(tmp_path / "start.xyz", 1)
        for tag in ("high", "low"):
            run("predict", trained.model, start, tmp_path / f"{tag}.xyz", "--dataset", tag)
            settings = ("--steps", 1, "--temperature", 10, "--timestep", 0.1)
            run("md", trained.model, start, "--out", tmp_path / tag, "--dataset", tag, *settings)
        for name in ("{}.xyz", "{}/trajectory.xyz"):
            high, low = (read(tmp_path / name.format(tag), 0).get_potential_energy() for tag in ("high", "low"))
            assert low - high == pytest.approx(SHIFT, abs=1.0)

    def test_an_unknown_data_set_is_an_error_with_the_known_ones(self, trained: Trained, tmp_path: Path) -> None:
        start = write_waters(tmp_path / "start.xyz", 5)
        commands: list[tuple[object, ...]] = [
            ("predict", trained.model, start, tmp_path / "out.xyz"),
            ("md", trained.model, start, "--out", tmp_path / "md", "--steps", 1, "--temperature", 10),
            ("neb", trained.model, start, start, "--out", tmp_path / "neb"),
            ("evaluate", trained.model, start, "--out", tmp_path / "evaluation"),
            ("calibrate", trained.model, start),
        ]
        for command in commands:
            with pytest.raises(HuefieldError, match="does not know the data set 'x': it was trained on high, low"):
                run(*command, "--dataset", "x")

    def test_it_has_no_effect_on_predictions_of_others(self, tmp_path: Path) -> None:
        for command in ("evaluate", "calibrate"):
            given = [command, "--predictions", str(tmp_path / "a.xyz"), "--dataset", "x"]
            assert "it has no effect here" in " ".join(CliRunner().invoke(app, given).output.split())

    def test_data_info_of_a_run_lists_its_data_sets(self, trained: Trained) -> None:
        lines = run("data", "info", trained.folder).splitlines()
        assert "structures        40 (0 periodic)" in lines
        assert "part train        24 structures: 12 of high, 12 of low" in lines
        assert "part test         8 structures: 4 of high, 4 of low" in lines
        references = [line for line in lines if line.startswith("references")]
        assert [line.split()[1] for line in references] == ["high:", "low:"]


def test_data_sets_over_a_baseline_have_references_of_their_own(tmp_path: Path) -> None:
    """The baseline has one scale of energies, so that the references are those of the differences."""
    entries = []
    for tag, seed, shift in (("high", 0, 0.0), ("low", 1, SHIFT)):
        frames = waters(20, seed=seed, shift=shift)
        for atoms in frames:
            atoms.info["baseline_energy"] = 0.5 * (atoms.get_potential_energy() - shift)
            atoms.arrays["baseline_forces"] = 0.5 * atoms.get_forces()
        write(tmp_path / f"{tag}.xyz", frames, format="extxyz")
        entries.append({"path": str(tmp_path / f"{tag}.xyz"), "tag": tag})
    data = {"kind": "files", "train": entries, "split": SPLIT}
    changes = {"data": data, "stages": SHORT, "members": 1, "baseline": {"kind": "columns"}}
    made = train(config_for(tmp_path, **changes), tmp_path / "run", report=lambda event: None)
    water = np.array([8, 1, 1])
    isolated = {tag: made.ensemble.isolated_energies(water, tag).sum() for tag in ("high", "low")}
    assert isolated["high"] == pytest.approx(-1000.0, abs=1.0)
    assert isolated["low"] - isolated["high"] == pytest.approx(SHIFT, abs=1.0)
    for tag in ("high", "low"):
        assert made.scores[f"test/{tag}"].energy.rmse < 3.0
    huefield.save(made.ensemble, tmp_path / "model.safetensors")
    loaded = huefield.load(tmp_path / "model.safetensors")
    assert (loaded.baseline, loaded.datasets) == (made.ensemble.baseline, made.ensemble.datasets)
