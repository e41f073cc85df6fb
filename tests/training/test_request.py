"""Training from what people have: presets, files, structures in memory."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms

import huefield
from huefield.data.dataset import BundledData, FileData
from huefield.data.readers.ase_files import AseReader
from huefield.data.runs import is_run, part_of_run
from huefield.data.splits.config import RandomSplit
from huefield.support.errors import HuefieldError
from huefield.training import TrainConfig, Trained, TrainingStoppedError, train
from huefield.training.config import to_yaml
from huefield.training.presets import preset
from huefield.training.request import resolved
from tests.training.helpers import POTENTIAL, config_for, waters

QUICK: dict[str, Any] = {
    "model": {"potential": POTENTIAL, "noise": {"kind": "colored"}},
    "stages": [{"kind": "nll", "steps": 2, "learning_rate": 1e-3, "initialise_noise": True}],
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run on structures in memory, in a relative folder."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("notebook")
        monkeypatch.chdir(folder)
        found = train("tiny", data=waters(20), members=2, **QUICK)
    return Trained(found.ensemble, folder / found.model, found.scores, found.validation)


def test_atoms_in_memory_are_kept_with_the_run(trained: Trained, tmp_path: Path) -> None:
    assert trained.folder.name == "huefield-run"
    assert is_run(trained.folder)
    assert len(trained.validation) == 2
    shutil.copytree(trained.folder, tmp_path / "moved")
    shutil.move(trained.folder / "structures.hues", tmp_path / "elsewhere")
    try:
        part = part_of_run(tmp_path / "moved", "validation")
    finally:
        shutil.move(tmp_path / "elsewhere", trained.folder / "structures.hues")
    np.testing.assert_array_equal(part.block(np.arange(2)).energy, trained.validation.block(np.arange(2)).energy)


def test_the_result_prints_errors_and_the_model(trained: Trained) -> None:
    lines = repr(trained).splitlines()
    assert lines[0].split() == ["energy", "[eV]", "MAE", "RMSE", "NLL", "RZV", "RMV"]
    assert lines[1].startswith("      validation")
    assert lines[-1] == f"{trained.model}: 2 members"
    assert trained.model.is_file()


def test_a_calculator_takes_the_result(trained: Trained) -> None:
    atoms = waters(1, seed=5)[0]
    atoms.calc = huefield.Calculator(trained, warn_above=None)
    assert atoms.get_potential_energy() == pytest.approx(-2000.0, abs=50.0)


def test_a_folder_of_another_run_is_not_used() -> None:
    for name in ("huefield-run", "huefield-run-2"):
        Path(name).mkdir()
        (Path(name) / "precious").touch()
    found = train("tiny", data=waters(12), members=1, **QUICK)
    assert found.folder == Path("huefield-run-3")


def test_a_run_on_atoms_is_resumed_and_other_atoms_are_refused(tmp_path: Path) -> None:
    frames, told = waters(12), []
    with pytest.raises(TrainingStoppedError):
        train("tiny", "run", data=frames, members=1, should_stop=lambda: True, **QUICK)
    with pytest.raises(HuefieldError, match="run has a run with other structures: choose another folder"):
        train("tiny", "run", data=waters(12, seed=1), members=1, **QUICK)
    train("tiny", "run", data=frames, members=1, report=told.append, **QUICK)
    assert any("resuming" in event for event in told if isinstance(event, str))


def test_a_failure_before_the_run_leaves_nothing(tmp_path: Path) -> None:
    bad = waters(12)
    bad[3].calc.results["forces"][0] = 1e7
    with pytest.raises(HuefieldError, match=r"frame 3 of .* has a force of"):
        train("tiny", data=bad, **QUICK)
    assert list(tmp_path.iterdir()) == []
    Path("mine").mkdir()
    (Path("mine") / "notes.txt").touch()
    with pytest.raises(HuefieldError, match="members"):
        train("tiny", "mine", data=bad, members=0)
    assert [path.name for path in Path("mine").iterdir()] == ["notes.txt"]


def test_charges_of_atoms_in_memory_are_named() -> None:
    frames, told = waters(12), []
    frames[4].info["charge"] = 1
    frames[5].calc.results["forces"][0] = 1e7
    with pytest.raises(HuefieldError):
        train("tiny", data=frames, report=told.append, **QUICK)
    assert next(event for event in told if "a charge" in str(event)).startswith("warning: atoms, frame 4:")


class TestResolved:
    def test_a_configuration_is_taken_as_it_is(self, data: Path) -> None:
        config = config_for(data)
        assert resolved(config, None, None, (), Path("run")) is config

    def test_a_preset_has_the_bundled_data_by_default(self) -> None:
        assert resolved("small", None, None, (), Path("run")) == preset("small", BundledData())

    def test_a_file_of_settings(self, data: Path) -> None:
        Path("mine.yaml").write_text(to_yaml(config_for(data)))
        for given in ("mine.yaml", Path("mine.yaml")):
            assert resolved(given, None, None, (), Path("run")) == config_for(data)

    @pytest.mark.parametrize("many", [False, True])
    def test_files_replace_those_of_the_configuration_and_keep_its_split(self, data: Path, many: bool) -> None:
        config = resolved(config_for(data), ["a.xyz", "b.xyz"] if many else "a.xyz", None, (), Path("run"))
        assert config.data.train == ((Path("a.xyz"), Path("b.xyz")) if many else (Path("a.xyz"),))
        assert config.data.split == config_for(data).data.split

    def test_files_with_a_preset_are_split_at_random(self) -> None:
        config = resolved("tiny", "a.xyz", None, (), Path("run"))
        assert config.data.split.fractions == {"train": 0.9, "validation": 0.1}

    def test_validation_data_of_their_own(self, data: Path) -> None:
        config = resolved(config_for(data), "a.xyz", waters(3), (), Path("run"))
        assert config.data.split is None
        assert config.data.validation == (Path.cwd() / "run" / "validation.hues",)

    def test_a_configuration_of_data(self, data: Path) -> None:
        given = FileData(train=("a.xyz",), validation=("b.xyz",))
        assert resolved("tiny", given, None, (), Path("run")).data == given
        with pytest.raises(HuefieldError, match="cannot be combined with a data configuration: set its key"):
            resolved("tiny", given, "c.xyz", (), Path("run"))

    def test_settings_by_place_and_by_name(self, data: Path) -> None:
        overrides: Any = ({"stages.1.steps": 11, "model.potential.features": 9}, {"members": 7})
        config = resolved(config_for(data), None, None, overrides, Path("run"))
        assert (config.stages[1].steps, config.model.potential.features, config.members) == (11, 9, 7)
        model = config_for(data).model
        assert resolved("tiny", None, None, ({"model": model},), Path("run")).model == model

    def test_wrong_settings_are_named(self) -> None:
        with pytest.raises(HuefieldError, match="membres: is not a known key; known are data, model"):
            resolved("tiny", None, None, ({"membres": 3},), Path("run"))

    @pytest.mark.parametrize(
        ("config", "data", "message"),
        [
            ("huge", None, r"huge is neither a file nor a preset \(paper, small, tiny\)"),
            ("tiny", [1, 2], r"structures are ase\.Atoms or paths of files, but these are int"),
            ("tiny", [Atoms("H"), "a.xyz"], r"ase\.Atoms or paths of files, but these are Atoms, str"),
            ("tiny", [], "there are no structures: the list is empty"),
        ],
    )
    def test_what_is_no_configuration_or_data(self, config: str, data: Any, message: str) -> None:
        with pytest.raises(HuefieldError, match=message):
            resolved(config, data, None, (), Path("run"))

    def test_a_store_of_the_users_is_not_overwritten(self, data: Path, tmp_path: Path) -> None:
        from huefield.data.convert import convert

        store = convert([data], tmp_path / "run" / "structures.hues").path
        with pytest.raises(HuefieldError, match="exists and was not written by huefield"):
            train("tiny", "run", data=waters(4))
        assert store.exists()

    def test_a_configuration_of_mappings(self, data: Path) -> None:
        content = config_for(data).model_dump(mode="json")
        assert resolved(content, None, None, ({"members": 3},), Path("run")).members == 3
        assert content["members"] == 2
        assert isinstance(resolved(content, None, None, (), Path("run")), TrainConfig)


@pytest.mark.parametrize("source", ["small", "file"])
def test_settings_of_the_data_hold_for_files_that_replace_those_of_the_configuration(source: str) -> None:
    Path("config.yaml").write_text(to_yaml(config_for(Path("other.xyz"))))
    overrides = ["data.reader.energy_unit=hartree", "data.split.seed=7", "data.limits.train=3"]
    chosen = resolved("small" if source == "small" else "config.yaml", "x.xyz", None, [overrides, {}], Path())
    assert isinstance(chosen.data, FileData)
    assert chosen.data.train == (Path("x.xyz"),)
    assert chosen.data.reader == AseReader(energy_unit="hartree")
    assert isinstance(chosen.data.split, RandomSplit)
    assert chosen.data.split.seed == 7
    assert chosen.data.limits == {"train": 3}


def test_files_for_validation_among_the_overrides_replace_the_default_split() -> None:
    chosen = resolved("small", "x.xyz", None, [{"data.validation": ["v.xyz"]}], Path())
    assert isinstance(chosen.data, FileData)
    assert (chosen.data.validation, chosen.data.split) == ((Path("v.xyz"),), None)


def test_a_broken_store_in_the_folder_does_not_hide_the_error(tmp_path: Path) -> None:
    (tmp_path / "run" / "structures.hues").mkdir(parents=True)
    (tmp_path / "run" / "structures.hues" / "manifest.json").write_text("{")
    with pytest.raises(HuefieldError, match="missing is neither a file nor a preset"):
        train("missing", tmp_path / "run")


@pytest.mark.parametrize("content", [b"2\n\nH 0 0 0\nH 0 0 1\n", b"\x93\xff\xfe"])
def test_a_data_file_is_no_configuration(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(HuefieldError, match=r"a\.npz is a data file, not a configuration: .*--data"):
        train(tmp_path / "a.npz", tmp_path / "run")
