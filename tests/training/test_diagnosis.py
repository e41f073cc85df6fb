"""Bad labels in a file: the run ends with the name of the file and the number of the frame."""

from pathlib import Path

import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from safetensors.numpy import load_file

from huefield.training import TrainingDivergedError, train
from tests.training.helpers import config_for, waters, write_waters


def write_with_a_huge_force(path: Path, frame: int, force: float) -> Path:
    frames = waters(6, seed=1)
    energy, forces = frames[frame].get_potential_energy(), frames[frame].get_forces().copy()
    forces[2, 1] = force
    frames[frame].calc = SinglePointCalculator(frames[frame], energy=energy, forces=forces)
    write(path, frames, format="extxyz")
    return path


@pytest.mark.slow
def test_a_force_that_no_network_can_learn_is_found(tmp_path: Path) -> None:
    good, validation = write_waters(tmp_path / "good.xyz", 4), write_waters(tmp_path / "validation.xyz", 3, seed=2)
    bad = write_with_a_huge_force(tmp_path / "bad.xyz", 3, 1e30)
    files = {"train": [str(good), str(bad)], "validation": [str(validation)]}
    data = {"kind": "files", **files, "allow_labels": True}
    stages = [{"kind": "squared_error", "steps": 30}]
    config = config_for(good, data=data, stages=stages, batch_size=10, report_every=10, members=1)
    with pytest.raises(TrainingDivergedError) as error:
        train(config, tmp_path / "run")
    lines = str(error.value).splitlines()
    assert "member 0 diverged at step 10" in lines[0]
    assert lines[1].startswith(f"  frame 3 of {bad}: force term inf (error 1e+30 eV/Å), energy term")
    assert lines[-1].endswith("with a smaller learning rate, or without those structures")
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        arrays = {name: a for name, a in load_file(path).items() if not name.startswith("best_score")}
        assert all(np.isfinite(array).all() for array in arrays.values())
