"""Members that are trained one by one."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import huefield
from huefield import HuefieldError
from huefield.data.runs import CONFIG
from huefield.support.files import alone_in
from huefield.training import assemble, train
from huefield.training.assembly import SAME_EV
from huefield.training.checkpoint import CHECKPOINTS
from huefield.training.outcome import CANDIDATES, MODEL, SCORES, Candidates
from tests.training.helpers import config_for, write_waters
from tests.training.test_train import largest_difference, model_of


@pytest.fixture(scope="module")
def apart(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("apart")
    for member in (0, 1):
        train(config_for(data, precision="float64"), folder, member=member)
    shutil.copytree(folder / "member-0", folder / "member-0-old")  # a backup, which is no member
    (folder / "member-0.log").write_text("step 1")
    return folder


@pytest.fixture
def copy(apart: Path, tmp_path: Path) -> Path:
    """To do harm to."""
    shutil.copytree(apart, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
def test_members_are_the_same_as_among_others(data: Path, apart: Path, tmp_path: Path) -> None:
    """With the same choice among them, and the same scores."""
    told: list[list[str]] = [[], []]
    made = assemble(apart, report=lambda event: told[0].append(str(event)))
    train(
        config_for(data, precision="float64"),
        tmp_path,
        report=lambda event: told[1].append(event) if isinstance(event, str) else None,
    )
    assert made.model == apart / MODEL
    assert made.ensemble.num_members == 2
    assert told[1][0].endswith("for validation; 2 members")
    assert "structures of H, O for training" in told[1][0]
    assert told[1][1].startswith("warning: the compositions")  # all are water
    assert told[0] == told[1][2:]
    for name in (MODEL, *Candidates.files()):
        with jax.enable_x64(True):
            first, second = (huefield.load(folder / name) for folder in (apart, tmp_path))
        assert largest_difference(first, second) < 1e-10
        assert first.atom_energies == second.atom_energies
    scores = [json.loads((folder / SCORES).read_text())["validation"]["forces"] for folder in (apart, tmp_path)]
    remarks = [each.pop("remarks") for each in scores]
    assert remarks[0] == remarks[1]
    np.testing.assert_allclose(*[list(each.values()) for each in scores], rtol=1e-8)


def test_all_members_are_not_begun_beside_those_trained_alone(data: Path, tmp_path: Path) -> None:
    (tmp_path / "member-1").mkdir()
    (tmp_path / "member-1" / CONFIG).touch()
    with pytest.raises(ValueError, match=r"trained alone \(1\): train the others with --member, then use"):
        train(config_for(data), tmp_path)
    (tmp_path / MODEL).touch()
    with pytest.raises(ValueError, match=r"trained alone \(1\): they are assembled already"):
        train(config_for(data), tmp_path)


def test_members_are_not_trained_alone_beside_a_run_of_all(data: Path, tmp_path: Path) -> None:
    (tmp_path / CHECKPOINTS).mkdir()
    with pytest.raises(ValueError, match="has a run of all members: resume it without --member"):
        train(config_for(data), tmp_path, member=0)


@pytest.mark.slow
def test_the_best_of_each_where_the_configuration_says_so(data: Path, tmp_path: Path) -> None:
    config = config_for(data, selection="member", members=1)
    train(config, tmp_path, member=0)
    assert not (tmp_path / "member-0" / CANDIDATES).exists()
    assemble(tmp_path)
    assert (tmp_path / MODEL).read_bytes() == (tmp_path / "member-0" / MODEL).read_bytes()


def test_files_are_put_together_as_they_are(copy: Path) -> None:
    (copy / SCORES).write_text("{}")
    (copy / CANDIDATES).mkdir(exist_ok=True)
    made = assemble(copy, [copy / "member-1" / MODEL, copy / "member-0" / MODEL])
    assert made.scores == {}
    assert not (copy / SCORES).exists(), "those are of another model"
    assert not (copy / CANDIDATES).exists()
    with jax.enable_x64(True):
        alone = huefield.Ensemble.from_members([model_of(copy).member(0)])
        assert largest_difference(alone, model_of(copy / "member-1")) == 0


def test_missing_members(copy: Path) -> None:
    shutil.rmtree(copy / "member-0")
    with pytest.raises(ValueError, match="members 0 of 2 are not trained yet"):
        assemble(copy)
    assert assemble(copy, allow_missing=True).ensemble.num_members == 1
    for name in ("member-1", "member-0-old"):
        shutil.rmtree(copy / name)
    (copy / "begun" / "member-1").mkdir(parents=True)
    (copy / "begun" / "member-1" / CONFIG).touch()
    with pytest.raises(ValueError, match="is finished: run the command of member-1 again"):
        assemble(copy / "begun")
    with pytest.raises(ValueError, match="no trained member"):
        assemble(copy)


def test_a_file_named_twice(copy: Path) -> None:
    with pytest.raises(ValueError, match="named twice"):
        assemble(copy, 2 * [copy / "member-0" / MODEL])


@pytest.mark.parametrize("name", ["config.yaml", "digests.json", *Candidates.files()])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / "member-1" / name).unlink()
    with pytest.raises(ValueError, match=rf"member-1/{name} is missing: train that member again"):
        assemble(copy)


def test_other_settings_and_other_data_are_named(copy: Path) -> None:
    config, digests = (copy / "member-1" / name for name in ("config.yaml", "digests.json"))
    before = digests.read_text()
    digests.write_text(before.replace("a", "b"))
    with pytest.raises(ValueError, match=r"member-1 was trained with other data than .*member-0"):
        assemble(copy)
    digests.write_text(before)
    config.write_text(config.read_text().replace("batch_size: 4", "batch_size: 5"))
    with pytest.raises(ValueError, match=r"member-1 was trained with other settings .*: batch_size: was 4, is 5"):
        assemble(copy)


def test_data_that_changed_since_are_noticed(copy: Path, data: Path, tmp_path: Path) -> None:
    """A file that has grown would be split anew, and models chosen by what they were trained on."""
    other = write_waters(tmp_path / "grown.xyz", 30)
    for member in (0, 1):
        config = copy / f"member-{member}" / "config.yaml"
        config.write_text(config.read_text().replace(str(data), str(other)))
    with pytest.raises(ValueError, match="data for train are not those that the members were trained with"):
        assemble(copy)
    other.unlink()
    with pytest.raises(ValueError, match=r"cannot be read from .*name the model files"):
        assemble(copy)


def test_energies_of_single_atoms_must_be_the_same_to_rounding(copy: Path) -> None:
    paths = [copy / f"member-{member}" / MODEL for member in (0, 1)]
    with jax.enable_x64(True):
        model = huefield.load(paths[1])
        for change, same in ((0.1 * SAME_EV, True), (10 * SAME_EV, False)):
            energies = {number: energy + change for number, energy in model.atom_energies}
            huefield.save(model.with_atom_energies(energies), paths[1])
            if same:
                assert assemble(copy, paths).ensemble.num_members == 2
            else:
                with pytest.raises(ValueError, match="other energies of isolated atoms"):
                    assemble(copy, paths)


def test_other_precisions_are_named(copy: Path) -> None:
    paths = [copy / f"member-{member}" / MODEL for member in (0, 1)]
    huefield.save(huefield.load(paths[1], dtype="float32"), paths[1])
    with pytest.raises(ValueError, match=r"member-1.* has float32, but .* float64"):
        assemble(copy, paths)


def test_not_while_another_process_is_at_work(copy: Path) -> None:
    with alone_in(copy), pytest.raises(HuefieldError, match="another process is at work"):
        assemble(copy)
