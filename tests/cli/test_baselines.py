"""Baselines on the command line."""

import sys
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from typer.testing import CliRunner

import huefield
from huefield.cli.baselines import given_baseline, parse_baseline
from huefield.cli.main import app
from huefield.support.errors import HuefieldError
from huefield.training.config import to_yaml
from tests.baselines.test_process import SPRINGS
from tests.training.helpers import POTENTIAL, config_for, write_waters


@pytest.fixture
def waters(tmp_path: Path) -> Path:
    return write_waters(tmp_path / "waters.xyz")


@pytest.fixture
def command(tmp_path: Path) -> str:
    (tmp_path / "springs.py").write_text(SPRINGS)
    return f"{sys.executable} {tmp_path / 'springs.py'}"


def run(*words: object) -> str:
    found = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.slow
def test_a_program_is_corrected_from_training_to_dynamics(waters: Path, command: str, tmp_path: Path) -> None:
    settings = tmp_path / "run.yaml"
    settings.write_text(to_yaml(config_for(waters, model={"potential": POTENTIAL, "noise": {"kind": "local"}})))
    given = ("--baseline-command", command)
    run("train", settings, "--out", tmp_path / "run", *given)
    model = tmp_path / "run" / "model.safetensors"
    ensemble = huefield.load(model)
    assert ensemble.baseline is not None
    assert ensemble.baseline.config.kind == "ase"
    run("calibrate", model, tmp_path / "run", *given)
    calibrated = tmp_path / "run" / "model-calibrated.safetensors"
    table = run("evaluate", calibrated, waters, "--out", tmp_path / "evaluation", "--resamples", 0, *given)
    assert "| springs.py alone |" in table
    assert "springs.py alone" in (tmp_path / "evaluation" / "report.html").read_text()
    run("predict", calibrated, waters, tmp_path / "out.extxyz", *given)
    first = ase.io.read(tmp_path / "out.extxyz", 0)
    assert isinstance(first, Atoms)
    assert np.isfinite(first.get_potential_energy())
    md = ("md", calibrated, waters, "--temperature", 10, "--steps", 3, "--out", tmp_path / "md", *given)
    run(*md)
    with pytest.raises(HuefieldError, match="which huefield cannot compute by itself"):
        run("md", calibrated, waters, "--temperature", 10, "--steps", 3, "--out", tmp_path / "other")


def test_columns_are_written_and_learnt(waters: Path, command: str, tmp_path: Path) -> None:
    columns = tmp_path / "columns.extxyz"
    said = run("data", "baseline", waters, columns, "--baseline-command", command)
    assert "20 structures with results of springs.py" in said
    settings = tmp_path / "run.yaml"
    settings.write_text(to_yaml(config_for(columns)))
    run("train", settings, "--out", tmp_path / "run", "--baseline", "columns")
    ensemble = huefield.load(tmp_path / "run" / "model.safetensors")
    assert ensemble.baseline is not None
    assert ensemble.baseline.config.kind == "columns"


def test_configurations_are_printed_with_a_baseline() -> None:
    assert 'kind: "tblite"' in run("config", "--baseline", "gfn1-xtb")
    assert "baseline: null" in run("config")


@pytest.mark.parametrize(
    ("text", "message"),
    [("PM6", "--baseline"), ("{", "--baseline is not JSON"), ('{"kind": "tblite", "methode": "x"}', "methode")],
)
def test_wrong_baselines_are_named(text: str, message: str) -> None:
    with pytest.raises(HuefieldError, match=message):
        parse_baseline(text)


def test_a_baseline_to_compute_is_named_once_and_can_be_computed() -> None:
    assert given_baseline(None, None) is None
    with pytest.raises(HuefieldError, match="not with both"):
        given_baseline("GFN2-xTB", "python")
    for kind in ("columns", "ase"):
        with pytest.raises(HuefieldError, match=f"the baseline {kind} cannot be computed here"):
            given_baseline(kind, None)
    found = given_baseline("gfn2-xtb", None)
    assert found is not None
    assert found.title == "GFN2-xTB"
