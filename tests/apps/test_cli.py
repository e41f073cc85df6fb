import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HUEFIELD = Path(sys.executable).with_name("huefield")


def run(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, arguments)], capture_output=True, text=True, timeout=120, **options)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['huefield', '--help']\nfrom huefield.apps.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'jax', 'numpy', 'matplotlib', 'equinox', 'pydantic', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = run(sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr
    assert "toy" in result.stdout


def test_importing_huefield_imports_nothing_heavy() -> None:
    result = run(sys.executable, "-c", "import sys, huefield; assert 'jax' not in sys.modules; huefield.Ensemble")
    assert result.returncode == 0, result.stderr


def test_version_and_module_entry_point() -> None:
    import huefield

    for command in ([HUEFIELD], [sys.executable, "-m", "huefield"]):
        result = run(*command, "--version")
        assert result.stdout.strip() == f"huefield {huefield.__version__}", result.stderr


def test_unknown_attribute_lists_what_there_is() -> None:
    import huefield

    with pytest.raises(AttributeError, match=r"no attribute 'Ensembl'; it has .*'Ensemble'"):
        huefield.Ensembl  # noqa: B018


def test_unknown_noise_lists_the_known_ones(tmp_path: Path) -> None:
    result = run(HUEFIELD, "toy", "--noise", "pink", "--out", tmp_path / "out")
    assert result.returncode == 2
    assert "colored" in result.stderr
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    start = time.monotonic()
    result = run(HUEFIELD, "toy", "--out", tmp_path / "taken")
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert "taken" in result.stderr
    assert "Traceback" not in result.stderr
    assert time.monotonic() - start < 60
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_output_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    result = run(HUEFIELD, "toy", "--out", tmp_path / "out")
    assert result.returncode == 1
    assert "Permission denied" in result.stderr


@pytest.mark.slow
def test_toy_from_the_command_line(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        result = run(HUEFIELD, "toy", "--out", tmp_path / folder, "--members", "2", "--seed", "7")
        assert result.returncode == 0, result.stderr
        assert "NLLStage 2000/2000" in result.stderr
    first, second = ((tmp_path / folder / "toy-colored.json").read_text() for folder in ("a", "b"))
    assert first == second
    assert json.loads(first)["config"]["seed"] == 7
