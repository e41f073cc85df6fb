"""``--no-growth`` of the commands that predict."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ase.io import read, write
from click.testing import Result
from typer.testing import CliRunner

from huefield.ase.calculator import Calculator
from huefield.cli.main import app
from huefield.support.errors import HuefieldError
from tests.paths import ROOT
from tests.training.helpers import waters, write_waters

MODEL = ROOT / "tests" / "golden" / "model-v7.safetensors"
NOTE = "note: error bars do not grow with the distance to the training data (--no-growth)"


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_predict(tmp_path: Path) -> None:
    source = write_waters(tmp_path / "in.xyz", 2)
    for name, options in (("whole", ()), ("less", ("--no-growth",))):
        said = call("predict", MODEL, source, tmp_path / f"{name}.xyz", *options)
        assert (NOTE in said.stderr) == bool(options)
    whole, less = (read(tmp_path / f"{name}.xyz", ":") for name in ("whole", "less"))
    for one, other in zip(whole, less, strict=True):
        assert one.get_potential_energy() == pytest.approx(other.get_potential_energy(), rel=1e-6)
        assert one.info["energy_uncertainty"] != pytest.approx(other.info["energy_uncertainty"], rel=1e-3)
        assert [each.info["model"] for each in (one, other)] == ["model-v7", "model-v7, no growth"]


def test_evaluate(tmp_path: Path) -> None:
    source = write_waters(tmp_path / "in.xyz", 8)
    said = call("evaluate", MODEL, source, "--no-growth", "--resamples", 0, "--out", tmp_path / "out")
    assert "note: error bars of model-v7, no growth do not grow with the distance" in said.stderr
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert found["models"][0]["name"] == "model-v7, no growth"
    assert any("do not grow" in remark for remark in found["remarks"])
    for name in ("report.html", "table.md"):
        assert "model-v7, no growth" in (tmp_path / "out" / name).read_text()


def test_evaluate_refuses_it_for_predictions_in_files(tmp_path: Path) -> None:
    source = write_waters(tmp_path / "in.xyz", 2)
    result = CliRunner().invoke(app, ["evaluate", "--predictions", str(source), "--no-growth"])
    assert result.exit_code
    assert "--no-growth" in result.output
    assert "it has no effect here" in result.output


def test_runs_of_dynamics_are_not_resumed_with_the_other_setting(tmp_path: Path) -> None:
    write(tmp_path / "start.xyz", waters(1), format="extxyz")
    common = ("md", MODEL, tmp_path / "start.xyz", "--temperature", 300, "--steps", 2, "--out", tmp_path / "run")
    assert NOTE in call(*common, "--no-growth", "--refuse-above", 1e9).stderr
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["run"]["noise_grows"] is False
    with pytest.raises(HuefieldError, match="has a run with other settings: noise_grows was False and is True"):
        call(*common)
    with pytest.raises(
        HuefieldError, match=r"threshold of 99\.9% needs: .* With --no-growth they do not apply: give a"
    ):
        call(*common, "--no-growth", "--threshold", "99.9%")


def test_neb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the search for the path, which gets the calculator."""

    class FoundError(Exception):
        pass

    def search(calculator: Calculator, *arguments: Any, **options: Any) -> None:
        raise FoundError(calculator.ensemble.noise_grows)

    monkeypatch.setattr("huefield.ase.neb.find_and_save_path", search)
    write(tmp_path / "start.xyz", waters(1), format="extxyz")
    for options, grows in (((), True), (("--no-growth",), False)):
        with pytest.raises(FoundError) as found:
            call("neb", MODEL, tmp_path / "start.xyz", tmp_path / "start.xyz", *options)
        assert found.value.args == (grows,)
