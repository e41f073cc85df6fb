"""The README's Python runs as it stands there, on what its commands make."""

import re
from pathlib import Path

import pytest

from huefield.apps.toy import ToyConfig, run_toy, write_toy

README = Path(__file__).parents[1] / "README.md"


def test_python_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_toy(run_toy(ToyConfig(members=2, steps=(5, 5, 5), grid_points=9)), tmp_path / "demo" / "toy")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        names: dict[str, object] = {}
        exec(block, names)  # noqa: S102
        assert names["joint"].covariance(0).shape == (2, 2)


def test_python_in_the_architecture_page_runs() -> None:
    page = README.parent / "docs" / "architecture.md"
    names: dict[str, object] = {"__name__": "architecture"}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(block, names)  # noqa: S102
    assert names["MyConfig"].model_validate({"potential": {"kind": "mlp"}, "noise": {"kind": "constant"}})
