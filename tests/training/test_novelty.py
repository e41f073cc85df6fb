"""Runs whose noise grows with the distance to their training data."""

from dataclasses import replace
from pathlib import Path

import pytest
from ase import Atoms

import huefield
from huefield import Ensemble, HuefieldError
from huefield.core.structure import TAG
from huefield.model.joint_calibration import CoherentCalibration
from huefield.noise.novelty import Growth
from huefield.training import assemble, train
from tests.training.helpers import config_for, waters, write_waters
from tests.training.test_train import largest_difference

LOCAL = {"model.noise": {"kind": "local"}, "stages.1.steps": 2, "stages.0.steps": 2}


def run(path: Path, folder: Path, **changes: object) -> Ensemble:
    given = config_for(path).model_dump(mode="json")
    return train(given, folder, overrides={**LOCAL, **changes}).ensemble


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run(write_waters(folder / "waters.xyz"), folder / "run")
    return folder


def squeezed(factor: float) -> Atoms:
    atoms = waters(1, seed=9)[0]
    atoms.positions *= factor
    return atoms


def uncertainty(ensemble: Ensemble, atoms: Atoms) -> float:
    return float(huefield.Calculator(ensemble.with_typical(None)).get_property("energy_uncertainty_aleatoric", atoms))


def test_noise_grows_far_from_the_training_data(finished: Path) -> None:
    grown = huefield.load(finished / "run" / "model.safetensors")
    assert grown.members.novelty is not None
    plain = replace(grown, members=replace(grown.members, novelty=None))
    ratios = [uncertainty(grown, squeezed(f)) / uncertainty(plain, squeezed(f)) for f in (1.0, 0.8, 0.7, 0.6)]
    assert 0.3 < ratios[0] < 3
    assert ratios[1] > 2 * ratios[0]
    assert ratios == sorted(ratios)


def test_the_mean_does_not_depend_on_it(finished: Path) -> None:
    grown = huefield.load(finished / "run" / "model.safetensors")
    plain = replace(grown, members=replace(grown.members, novelty=None))
    energies = [
        huefield.Calculator(each.with_typical(None)).get_potential_energy(squeezed(0.7)) for each in (grown, plain)
    ]
    assert energies[0] == energies[1]


def test_it_can_be_left_out(finished: Path, tmp_path: Path) -> None:
    found = run(finished / "waters.xyz", tmp_path, novelty=False)
    assert found.members.novelty is None
    grown = huefield.load(finished / "run" / "model.safetensors")
    assert largest_difference(found, replace(grown, members=replace(grown.members, novelty=None))) < 1e-6


def test_a_model_that_starts_from_another_has_points_of_its_own(finished: Path, tmp_path: Path) -> None:
    path = write_waters(tmp_path / "more.xyz", count=30, seed=4)
    start = str(finished / "run" / "model.safetensors")
    found = run(path, tmp_path / "run", start_from=start)
    assert found.members.novelty is not None
    assert found.members.novelty.config.points == (42, 21)  # 70 % of thirty waters


def test_its_calibration_leaves_the_members_as_they_are(finished: Path) -> None:
    found = huefield.calibrate(finished / "run" / "model.safetensors", finished / "waters.xyz").ensemble.calibration
    assert isinstance(found, CoherentCalibration)
    assert found.spread == 1.0
    assert found.noise != 1.0


def test_members_whose_noise_grows_in_other_ways_are_not_assembled(finished: Path, tmp_path: Path) -> None:
    new = huefield.load(finished / "run" / "model.safetensors")
    novelty = new.members.novelty
    assert novelty is not None
    older = replace(novelty, config=novelty.config.model_copy(update={"growth": Growth()}))
    huefield.save(replace(new, members=replace(new.members, novelty=older)), tmp_path / "older.safetensors")
    huefield.save(new, tmp_path / "new.safetensors")
    with pytest.raises(HuefieldError, match=r"grows in another way in .*older.safetensors than in .*train the older"):
        assemble(tmp_path, [tmp_path / "new.safetensors", tmp_path / "older.safetensors"])


def test_members_of_other_data_are_not_assembled(finished: Path, tmp_path: Path) -> None:
    path = write_waters(tmp_path / "more.xyz", count=30)
    given = {"references.kind": "given", "references.energies_ev": {TAG: {"H": -13.0, "O": -1974.0}}}
    for name, data in (("one", finished / "waters.xyz"), ("two", path)):
        run(data, tmp_path / name, **given)
    files = [tmp_path / name / "model.safetensors" for name in ("one", "two")]
    with pytest.raises(HuefieldError, match=r"two/model.safetensors was trained on other data than .*novelty: false"):
        assemble(tmp_path, files)
