import json
from pathlib import Path

import ase.io
import numpy as np
import pytest

from huefield.data.dataset import open_part
from huefield.data.opening import open_data
from huefield.data.runs import is_run, part_of_run
from huefield.support.errors import HuefieldError
from huefield.training import assemble, train
from tests.training.helpers import POTENTIAL, config_for, write_waters

VANILLA = {"potential": POTENTIAL, "noise": {"kind": "vanilla"}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_waters(tmp_path_factory.mktemp("data") / "waters.xyz")


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    stages = [{"kind": "squared_error", "steps": 1}]
    train(config_for(data, stages=stages, model=VANILLA), folder, member=0)
    return folder


def test_the_validation_data_of_a_run(run: Path, data: Path) -> None:
    assert is_run(run)
    assert is_run(run / "member-0")
    chosen = json.loads((run / "member-0" / "split.json").read_text())["validation"]
    expected = open_part("all", [data]).block(np.array(chosen))
    found = part_of_run(run, "validation")
    np.testing.assert_array_equal(found.block(np.arange(len(found))).positions, expected.positions)


def test_the_folder_of_a_run_is_opened_like_a_file(run: Path) -> None:
    found, expected = open_data(run, usual_part="validation"), part_of_run(run, "validation")
    np.testing.assert_array_equal(found.indices, expected.indices)
    assert open_data(str(run), part="train").name == "train"


@pytest.mark.parametrize(("content", "message"), [("- 1\n", "does not name the data"), ("data: {kind: x}\n", "kind")])
def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(HuefieldError, match=rf"config.yaml.*{message}"):
        part_of_run(tmp_path, "test")


def test_parts_that_are_not_there(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no part 'test', but train, validation: choose one with --part"):
        part_of_run(run, "test")
    assert not is_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="it is not the folder of a run"):
        part_of_run(tmp_path, "validation")


def test_data_that_have_changed_are_refused(run: Path, data: Path) -> None:
    """Or structures that were trained on may be calibrated with."""
    kept = data.read_bytes()
    write_waters(data, seed=5)
    try:
        with pytest.raises(ValueError, match=r"data of .* have changed since the run"):
            part_of_run(run, "validation")
    finally:
        data.write_bytes(kept)


def test_remarks_on_the_data_of_a_run_are_warnings(run: Path, data: Path) -> None:
    """A charge leaves the structures, and with them the digests, unchanged."""
    images = ase.io.read(data, ":")
    images[0].info["charge"] = 1
    before = data.read_bytes()
    ase.io.write(data, images, format="extxyz")
    try:
        with pytest.warns(UserWarning, match="a charge, which models do not take as input"):
            open_data(run, part="validation")
    finally:
        data.write_bytes(before)


def test_damaged_digests_are_named(run: Path) -> None:
    digests = run / "member-0" / "digests.json"
    kept = digests.read_bytes()
    digests.write_bytes(kept[:20])
    try:
        with pytest.raises(HuefieldError, match=r"digests\.json is damaged: it is not JSON"):
            part_of_run(run, "validation")
    finally:
        digests.write_bytes(kept)


def test_an_old_run_that_validated_on_training_structures_is_read(data: Path, tmp_path: Path) -> None:
    """Such data are refused today; a run from before must still be evaluated and assembled."""
    shared = {"kind": "files", "train": [str(data)], "validation": [str(data)], "allow_shared": True}
    stages = [{"kind": "squared_error", "steps": 1}]
    train(config_for(data, stages=stages, model=VANILLA, data=shared, members=1), tmp_path / "run", member=0)
    config = tmp_path / "run" / "member-0" / "config.yaml"
    config.write_text(config.read_text().replace("allow_shared: true", "allow_shared: false"))
    assert len(part_of_run(tmp_path / "run", "validation")) == 20
    assert assemble(tmp_path / "run").ensemble.num_members == 1
