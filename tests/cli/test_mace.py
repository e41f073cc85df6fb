"""MACE in every command: train, calibrate, evaluate, dynamics, a path, and ASE."""

from pathlib import Path

import numpy as np
import pytest
from ase.io import read, write
from click.testing import Result
from typer.testing import CliRunner

from huefield.ase.calculator import Calculator
from huefield.cli.main import app
from huefield.support.errors import HuefieldError
from huefield.training import parse_config
from huefield.training.config import to_yaml
from tests.training.helpers import config_for, waters, write_waters

SIZES = ("channels=4", "layers=1", "max_degree=1", "radial_widths=[6]", "radial_functions=4", "neighbours=2")


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.slow
def test_from_training_to_a_path(tmp_path: Path) -> None:
    config, run = tmp_path / "c.yaml", tmp_path / "run"
    config.write_text(to_yaml(config_for(write_waters(tmp_path / "waters.xyz", 40))))
    sets = [f"--set=model.potential.{each}" for each in ("kind=mace", *SIZES)]
    call("train", config, "--out", run, "--set=model.noise={kind: local}", *sets)
    model, calibrated = run / "model.safetensors", run / "model-calibrated.safetensors"
    call("calibrate", model, run)
    call("evaluate", calibrated, run, "--part", "validation", "--out", tmp_path / "evaluation")
    ends = [tmp_path / "one.xyz", tmp_path / "two.xyz"]
    for path, atoms in zip(ends, waters(2), strict=True):
        write(path, atoms)
    call("md", calibrated, ends[0], "--temperature", 300, "--steps", 5, "--out", tmp_path / "md")
    call("neb", calibrated, *ends, "--images", 3, "--fmax", 100, "--out", tmp_path / "neb")
    atoms = read(ends[0])
    atoms.calc = Calculator(calibrated)
    assert np.isfinite(atoms.get_forces()).all()
    assert atoms.calc.get_property("energy_uncertainty", atoms) > 0


def test_another_kind_of_potential_keeps_elements_and_cutoff(tmp_path: Path) -> None:
    text = to_yaml(config_for(tmp_path / "a.xyz"))
    potential = parse_config(text, "x", ["model.potential.channels=4", "model.potential.kind=mace"]).model.potential
    assert (potential.kind, potential.channels, potential.cutoff_angstrom) == ("mace", 4, 3.0)
    assert parse_config(text, "x", ["model.potential.kind=painn"]).model.potential.features == 4
    with pytest.raises(HuefieldError, match=r"model.potential.features: is not a known key; known are .*channels"):
        parse_config(text, "x", ["model.potential.kind=mace", "model.potential.features=4"])
    with pytest.raises(HuefieldError, match=r"'mace', 'mlp', 'painn'"):
        parse_config(text, "x", ["model.potential.kind=make"])
