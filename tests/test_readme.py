"""Python in the README and the documentation runs as written; links and figures exist."""

import ast
import re
from pathlib import Path
from typing import Any

import jax
import pytest
from ase.build import molecule
from ase.io import write

from huefield import Ensemble, ForceField, save
from huefield.model.calibration import ScaleCalibration
from huefield.model.joint_calibration import EnergyForcesCalibration
from huefield.model.typical import TypicalUncertainty
from huefield.reproduce.toy import ToyConfig, run_toy, write_toy
from huefield.training.config import to_yaml
from tests.ase.test_calculator import typical
from tests.training.helpers import POTENTIAL, config_for, write_waters

README = Path(__file__).parents[1] / "README.md"


def test_python_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "demo" / "colored" / "calibrated.safetensors")
    monkeypatch.chdir(tmp_path)
    _, in_ase = python_of(README)
    assert len(in_ase.splitlines()) <= 13
    calc = run_code(in_ase)["calc"]
    assert calc.results["energy_uncertainty"] > 0


def test_from_a_list_of_atoms_to_a_calibrated_calculator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In six lines, as written in the README but for a smaller preset and fewer steps."""
    write_waters(tmp_path / "YOURS.xyz", 60)
    (tmp_path / "quick.yaml").write_text(to_yaml(config_for(tmp_path / "YOURS.xyz")))
    monkeypatch.chdir(tmp_path)
    code = python_of(README)[0]
    assert len([line for line in code.splitlines() if line]) <= 6
    names = run_code(code.replace('"small"', '"quick.yaml"'))
    water = names["structures"][0]
    water.calc = names["calculator"]
    assert water.get_potential_energy() < 0
    assert names["calculator"].get_property("energy_uncertainty", water) > 0
    assert names["calibrated"].ensemble.calibration is not None


def test_python_in_the_page_about_the_method_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_toy(run_toy(ToyConfig(members=2, steps=(5, 5, 5), grid_points=9)), tmp_path / "demo" / "toy")
    monkeypatch.chdir(tmp_path)
    (toy,) = python_of(README.parent / "docs" / "method.md")
    assert run_code(toy)["joint"].covariance(0).shape == (2, 2)


def test_python_in_the_page_about_ase_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "run" / "model-calibrated.safetensors")
    monkeypatch.chdir(tmp_path)
    names = run_code("\n".join(python_of(README.parent / "docs" / "ase.md")))
    assert names["covariance"].total.shape == (2, 2)


def test_python_in_the_page_about_dynamics_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example runs with fewer steps."""
    write_model(tmp_path / "model.safetensors", typical(1e9, 1e9))
    write(tmp_path / "start.xyz", molecule("H2O"))
    monkeypatch.chdir(tmp_path)
    (code,) = python_of(README.parent / "docs" / "md.md")
    assert "steps=10_000" in code
    result = run_code(code.replace("10_000", "5"))["result"]
    assert (result.ended, result.step, result.saved) == ("finished", 5, 0)


def python_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def write_model(path: Path, typical: TypicalUncertainty | None = None) -> None:
    """Save an untrained model with everything that a trained one has."""
    potential = {**POTENTIAL, "elements": ["H", "C", "N", "O"]}
    config = ForceField.Config.model_validate({"potential": potential, "noise": {"kind": "local"}})
    path.parent.mkdir(parents=True, exist_ok=True)
    calibration = EnergyForcesCalibration(energy=ScaleCalibration(factor=4.0), forces=ScaleCalibration(factor=0.25))
    made = Ensemble.build(config, 2, key=jax.random.key(0)).with_calibration(calibration)
    save(made.with_typical(typical), path)


def run_code(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    return names


def test_python_in_the_architecture_page_runs() -> None:
    names: dict[str, object] = {"__name__": "architecture"}
    for block in python_of(README.parent / "docs" / "architecture.md"):
        exec(block, names)  # noqa: S102
    assert names["MyConfig"].model_validate({"potential": {"kind": "mlp"}, "noise": {"kind": "constant"}})


@pytest.mark.parametrize("page", [README, *sorted((README.parent / "docs").rglob("*.md"))], ids=lambda page: page.stem)
def test_links_of_pages_exist(page: Path) -> None:
    """Linked files exist, and linked modules define the function or class of the link."""
    for name, target in re.findall(r"\[([^\]]+)\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
        path = page.parent / target
        assert path.exists(), f"{page.name} links to {target}"
        if path.suffix == ".py" and name.startswith("`"):
            symbol = name.strip("`").split(".")[-1]
            assert re.search(rf"^\s*(def|class) {symbol}\b", path.read_text(), re.MULTILINE), f"{name} in {target}"


@pytest.mark.parametrize("page", [README, *sorted((README.parent / "docs").glob("*.md"))], ids=lambda page: page.stem)
def test_imports_in_pages_work(page: Path) -> None:
    """Imports of all examples, also of those that need data and are not run."""
    for block in python_of(page):
        imports = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Import | ast.ImportFrom)]
        run_code("\n".join(map(ast.unparse, imports)))
