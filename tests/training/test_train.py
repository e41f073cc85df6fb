"""Whole training runs, small ones."""

import json
import shutil
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
import yaml
from ase.io import write

import huefield
from huefield.support.errors import HuefieldError
from huefield.support.files import alone_in
from huefield.training import (
    CheckpointError,
    TrainConfig,
    TrainingStoppedError,
    ValidationReport,
    parse_config,
    train,
)
from huefield.training.history import read_history
from tests.training.helpers import config_for, waters, write_waters


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in double precision."""
    folder = tmp_path_factory.mktemp("run")
    train(config_for(data, precision="float64"), folder)
    return folder


def model_of(folder: Path) -> huefield.Ensemble:
    with jax.enable_x64(True):
        return huefield.load(folder / "model.safetensors")


def largest_difference(first: huefield.Ensemble, second: huefield.Ensemble) -> float:
    leaves = [jax.tree.leaves(eqx.filter(e.members, eqx.is_array)) for e in (first, second)]
    pairs = zip(*leaves, strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)), initial=0.0)) for a, b in pairs)


def test_a_run_leaves_all_that_one_may_want_to_know(finished: Path, data: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names >= {
        "config.yaml",
        "references.json",
        "split.json",
        "history.jsonl",
        "checkpoints",
        "model.safetensors",
    }
    assert parse_config((finished / "config.yaml").read_text(), "config.yaml").model.potential.elements == ("H", "O")
    split = json.loads((finished / "split.json").read_text())
    assert len(split["train"]) == 14
    assert len(split["validation"]) == 6
    scores = json.loads((finished / "scores.json").read_text())["validation"]
    assert scores["energy"]["count"] == 6
    assert scores["forces"]["count"] == 6 * 9
    assert len(list((finished / "checkpoints").iterdir())) == 2


def test_a_finished_run_is_scored_again(finished: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()  # killed between the last checkpoint and the model
    told: list[str] = []
    train(config_for(data, precision="float64"), tmp_path / "run", report=lambda event: told.append(str(event)))
    assert "this run is finished: evaluating it again" in told
    for name in ("model.safetensors", "scores.json", "history.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (finished / name).read_bytes()


def test_a_model_without_checkpoints_is_not_trained_over(finished: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(ValueError, match="exists, but the checkpoints of its run do not"):
        train(config_for(data, precision="float64"), tmp_path / "run")
    assert (tmp_path / "run" / "history.jsonl").read_bytes() == (finished / "history.jsonl").read_bytes()


@pytest.mark.slow
def test_another_model_under_the_same_name_is_noticed(finished: Path, data: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.safetensors"
    shutil.copy(finished / "model.safetensors", old)
    stages = [{"kind": "nll", "steps": 2}]
    config = config_for(data, precision="float64", start_from=str(old), stages=stages)
    train(config, tmp_path / "run")
    with jax.enable_x64(True):
        huefield.save(model_of(finished).with_atom_energies({1: 0.0, 8: -1999.0}), old)
    with pytest.raises(CheckpointError, match="content of start_from"):
        train(config, tmp_path / "run")


def test_the_model_predicts_total_energies(finished: Path, data: Path) -> None:
    from huefield.core.structure import Structure
    from huefield.data import make_batch

    with jax.enable_x64(True):
        atoms = waters(3, seed=7)
        structures = [Structure(a.numbers.astype(np.uint8), a.positions) for a in atoms]
        prediction = model_of(finished).predict(make_batch(structures, 3.0, ()).graph)
    np.testing.assert_allclose(prediction.energy[:3], [a.get_potential_energy() for a in atoms], atol=3.0)


def test_history_tells_of_every_stage(finished: Path) -> None:
    events = read_history(finished / "history.jsonl")
    steps = [(e["kind"], e["step"]) for e in events if e["event"] == "steps"]
    assert steps == [(kind, step) for kind in ("squared_error", "beta_nll") for step in (2, 4, 6)]
    validations = [e for e in events if e["event"] == "validation"]
    assert [v["step"] for v in validations] == 2 * [0, 2, 4, 6]
    assert validations[0]["energy_nll"] == [None, None]
    assert np.isfinite(validations[-1]["force_nll"]).all()


@pytest.mark.slow
def test_training_lowers_the_error(data: Path, tmp_path: Path) -> None:
    seen: list[ValidationReport] = []
    stages = [{"kind": "squared_error", "steps": 60, "learning_rate": 3e-2}]
    config = config_for(data, stages=stages, validate_every=30, checkpoint_every=60, report_every=60, members=1)
    train(config, tmp_path, report=lambda e: seen.append(e) if isinstance(e, ValidationReport) else None)
    assert seen[-1].metrics.force_rmse[0] < 0.5 * seen[0].metrics.force_rmse[0]


def test_the_same_configuration_gives_the_same_bytes(data: Path, tmp_path: Path, finished: Path) -> None:
    train(config_for(data, precision="float64"), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()


@pytest.mark.parametrize("stop_after", [1, 9])
def test_a_stopped_run_goes_on_to_the_same_bytes(data: Path, tmp_path: Path, finished: Path, stop_after: int) -> None:
    config, asked = config_for(data, precision="float64"), iter(range(100))
    with pytest.raises(TrainingStoppedError, match="run the same command again to resume"):
        train(config, tmp_path, should_stop=lambda: next(asked) + 1 == stop_after)
    messages: list[object] = []
    train(config, tmp_path, report=messages.append)
    assert any("resuming" in str(m) for m in messages if isinstance(m, str))
    assert (tmp_path / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    times = [{k: v for k, v in e.items() if k != "time"} for e in read_history(tmp_path / "history.jsonl")]
    expected = [{k: v for k, v in e.items() if k != "time"} for e in read_history(finished / "history.jsonl")]
    assert json.dumps(times) == json.dumps(expected)


def test_a_damaged_checkpoint_is_passed_over(data: Path, tmp_path: Path, finished: Path) -> None:
    config, asked = config_for(data, precision="float64"), iter(range(100))
    with pytest.raises(TrainingStoppedError):
        train(config, tmp_path, should_stop=lambda: next(asked) == 8)
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    content = bytearray(newest.read_bytes())
    content[-5] ^= 1
    newest.write_bytes(bytes(content))
    messages: list[object] = []
    train(config, tmp_path, report=messages.append)
    assert any("damaged" in m and "before it" in m for m in messages if isinstance(m, str))
    assert (tmp_path / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()


def test_only_damaged_checkpoints_are_an_error(data: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000000004-0.safetensors").write_bytes(b"half a checkp")
    with pytest.raises(CheckpointError, match=r"all 1 checkpoints in .* are damaged"):
        train(config_for(data), tmp_path)


def test_changed_settings_are_named_before_anything_is_lost(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingStoppedError):
        train(config_for(data), tmp_path, should_stop=lambda: True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"batch_size: was 4, is 5"):
        train(config_for(data, batch_size=5), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_changed_data_are_noticed(data: Path, tmp_path: Path) -> None:
    mine = tmp_path / "waters.xyz"
    mine.write_bytes(data.read_bytes())
    with pytest.raises(TrainingStoppedError):
        train(config_for(mine), tmp_path / "run", should_stop=lambda: True)
    write_waters(mine, seed=3)
    with pytest.raises(CheckpointError, match=r"data\.train"):
        train(config_for(mine), tmp_path / "run")


def test_patience_ends_a_stage(data: Path, tmp_path: Path) -> None:
    stages = [{"kind": "squared_error", "steps": 400, "learning_rate": 0.3}]
    train(config_for(data, stages=stages, patience=2, members=1), tmp_path)
    steps = [e["step"] for e in read_history(tmp_path / "history.jsonl") if e["event"] == "steps"]
    assert steps[-1] < 400


def test_the_best_parameters_are_kept_not_the_last(data: Path, tmp_path: Path) -> None:
    stages = [{"kind": "squared_error", "steps": 30, "learning_rate": 0.3}]
    done = train(config_for(data, stages=stages, optimiser={}, members=1), tmp_path)
    validations = [e for e in read_history(tmp_path / "history.jsonl") if e["event"] == "validation"]
    best = min(v["criterion"][0] for v in validations)
    chosen = next(v for v in validations if v["criterion"][0] == best)
    assert done.scores["validation"].forces.rmse == pytest.approx(chosen["force_rmse"][0], rel=1e-4)
    assert chosen is not validations[-1]


@pytest.mark.slow
def test_white_noise_trains_too(data: Path, tmp_path: Path) -> None:
    noise = {"kind": "white", "pooling": True}
    model = {**config_for(data).model_dump(mode="json")["model"], "noise": noise}
    stages = [{"kind": "nll", "steps": 2, "initialise_noise": True, "reduction": "averages"}]
    done = train(config_for(data, model=model, stages=stages), tmp_path)
    assert np.isfinite(done.scores["validation"].forces.nll)


@pytest.mark.slow
def test_a_trained_mean_gets_error_bars(data: Path, tmp_path: Path) -> None:
    """Whatever data it is given: the energies of single atoms stay those of the mean, or totals would be off."""
    config, other = config_for(data), write_waters(tmp_path / "other.xyz", shift=-30.0)
    model = config.model_dump(mode="json")["model"]
    vanilla = {**model, "noise": {"kind": "vanilla"}}
    before = train(config_for(data, model=vanilla, stages=[{"kind": "squared_error", "steps": 6}]), tmp_path / "mean")
    frozen = {"freeze_mean": True, "noise_rate": 3.0}
    after = train(
        config_for(
            other,
            stages=[{"kind": "nll", "steps": 6, "initialise_noise": True}],
            optimiser=frozen,
            start_from=str(before.model),
        ),
        tmp_path / "noise",
    )
    assert after.scores["validation"].forces.rmse == pytest.approx(before.scores["validation"].forces.rmse, rel=1e-6)
    assert after.scores["validation"].energy.mae == pytest.approx(30.0, abs=3.0)
    assert after.ensemble.atom_energies == before.ensemble.atom_energies
    assert np.isfinite(after.scores["validation"].forces.nll)
    told = [e["gamma"] for e in read_history(tmp_path / "noise" / "history.jsonl") if e["event"] == "steps"]
    assert told[0] != told[-1]


class TestBadInput:
    def test_no_validation(self, data: Path) -> None:
        with pytest.raises(ValueError, match="there are no validation data"):
            config_for(data, data={"kind": "files", "train": [str(data)]})

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="nowhere"):
            train(config_for(tmp_path / "nowhere.xyz"), tmp_path)

    def test_an_element_that_training_lacks(self, data: Path, tmp_path: Path) -> None:
        strange = waters(2)
        for atoms in strange:
            atoms.symbols[0] = "S"
        write(tmp_path / "strange.xyz", strange, format="extxyz")
        source = {"kind": "files", "train": [str(data)], "validation": [str(tmp_path / "strange.xyz")]}
        with pytest.raises(ValueError, match=r"'validation' has S, but the training data have only H, O"):
            train(config_for(data, data=source), tmp_path / "run")

    def test_a_split_without_validation(self, data: Path, tmp_path: Path) -> None:
        split = {"kind": "random", "fractions": {"train": 0.7, "test": 0.3}}
        source = {"kind": "files", "train": [str(data)], "split": split}
        with pytest.raises(ValueError, match="no part 'validation'"):
            train(config_for(data, data=source), tmp_path / "run")

    def test_noise_stages_without_noise(self, data: Path) -> None:
        model = {**config_for(data).model_dump(mode="json")["model"], "noise": {"kind": "vanilla"}}
        with pytest.raises(ValueError, match="vanilla, which has none"):
            config_for(data, model=model)

    def test_a_member_that_is_not_there(self, data: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no member 2"):
            train(config_for(data), tmp_path, member=2)

    @pytest.mark.parametrize(
        ("change", "message"),
        [({"cutoff_angstrom": 2.5}, r"cutoff_angstrom: was 3.0, is 2.5"), ({"features": 5}, r"features: was 4, is 5")],
    )
    def test_another_architecture_to_start_from(
        self, data: Path, tmp_path: Path, finished: Path, change: dict[str, float], message: str
    ) -> None:
        model = {**config_for(data).model_dump(mode="json")["model"]}
        model["potential"] = {**model["potential"], **change}
        start = str(finished / "model.safetensors")
        with pytest.raises(ValueError, match=message):
            train(config_for(data, model=model, start_from=start), tmp_path)

    def test_too_few_members_to_start_from(self, data: Path, tmp_path: Path, finished: Path) -> None:
        start = str(finished / "model.safetensors")
        with pytest.raises(ValueError, match="no member 2 in the model to start from, which has 2"):
            train(config_for(data, members=3, start_from=start), tmp_path)

    def test_noise_to_initialise_without_noise(self, data: Path) -> None:
        model = {**config_for(data).model_dump(mode="json")["model"], "noise": {"kind": "vanilla"}}
        stages = [{"kind": "squared_error", "steps": 1, "initialise_noise": True}]
        with pytest.raises(ValueError, match="no levels to set"):
            config_for(data, model=model, stages=stages)

    def test_frozen_means_need_one_and_noise_stages(self, data: Path) -> None:
        with pytest.raises(ValueError, match="would train nothing"):
            config_for(data, optimiser={"freeze_mean": True})
        with pytest.raises(ValueError, match="needs a trained mean"):
            config_for(data, optimiser={"freeze_mean": True}, stages=[{"kind": "nll", "steps": 1}])

    def test_two_processes_in_one_folder(self, data: Path, tmp_path: Path) -> None:
        with alone_in(tmp_path), pytest.raises(ValueError, match="another process is at work"):
            train(config_for(data), tmp_path)

    def test_no_structure_with_labels(self, tmp_path: Path) -> None:
        bare = waters(8)
        for atoms in bare:
            atoms.calc = None
        write(tmp_path / "bare.xyz", bare, format="extxyz")
        with pytest.raises(ValueError, match="no structure for train has an energy or forces"):
            train(config_for(tmp_path / "bare.xyz"), tmp_path / "run")

    def test_given_references_are_of_one_data_set(self, data: Path, tmp_path: Path) -> None:
        references = {"kind": "given", "energies_ev": {"a": {"H": 0.0, "O": -2000.0}, "b": {"H": 1.0}}}
        with pytest.raises(ValueError, match="one data set"):
            train(config_for(data, references=references), tmp_path)


class TestConfig:
    def test_round_trip(self, data: Path) -> None:
        from huefield.training.config import to_yaml

        config = config_for(data)
        assert parse_config(to_yaml(config), "x") == config

    def test_overrides(self, data: Path) -> None:
        text = yaml.safe_dump(config_for(data).model_dump(mode="json"))
        changed = parse_config(
            text, "x", ["members=7", "model.potential.features=9", "stages.1.steps=11", "patience=null"]
        )
        assert isinstance(changed, TrainConfig)
        assert (changed.members, changed.model.potential.features, changed.stages[1].steps) == (7, 9, 11)

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("members", "KEY=VALUE"),
            ("stages.9.steps=1", "list of 2"),
            ("members.x=1", "has no keys"),
            ("seed=[", "YAML"),
        ],
    )
    def test_bad_overrides(self, data: Path, override: str, message: str) -> None:
        text = yaml.safe_dump(config_for(data).model_dump(mode="json"))
        with pytest.raises(ValueError, match=message):
            parse_config(text, "x", [override])

    def test_a_fault_of_an_override_is_not_blamed_on_the_file(self, data: Path) -> None:
        text = yaml.safe_dump(config_for(data).model_dump(mode="json"))
        with pytest.raises(
            HuefieldError, match=r"^override \(--set\): model\.potential\.cutoff_angstrom: .*greater than"
        ):
            parse_config(text, "mine.yaml", ["model.potential.cutoff_angstrom=0.01"])
        with pytest.raises(HuefieldError, match=r"^mine\.yaml: model\.potential\.layers: "):
            parse_config(text.replace("layers: ", "layers: -"), "mine.yaml")

    def test_an_unknown_key_names_the_known(self) -> None:
        with pytest.raises(
            ValueError, match=r"(?s)file.yaml: member: is not a known key; known are data, model, stages"
        ):
            parse_config("member: 3", "file.yaml")

    def test_not_a_mapping(self) -> None:
        with pytest.raises(ValueError, match="must be a mapping"):
            parse_config("- 1", "file.yaml")
