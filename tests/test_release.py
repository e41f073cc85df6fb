"""Release files: what wheel and sdist contain, and that recipes and versions agree."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import huefield
from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DATA = (
    "data/bundled/gfn2_xtb.npz",
    "data/bundled/wb97x_6_31g_d.json",
    "evaluation/report/templates/page.html",
    "py.typed",
)
CONDA_NAMES = {"matplotlib": "matplotlib-base"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist, built without a network."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True, capture_output=True
    )
    return folder


def files_of_the_package() -> set[str]:
    """All files of the package, which the repository has beside compiled ones."""
    found = (path for path in (ROOT / "huefield").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in found}


class TestBuild:
    def test_the_wheel_has_the_package_and_its_data(self, built: Path) -> None:
        with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
            names = set(wheel.namelist())
        assert files_of_the_package() <= names
        assert {f"huefield/{name}" for name in DATA} <= names
        assert {name.split("/")[0] for name in names} == {"huefield", f"huefield-{huefield.__version__}.dist-info"}

    def test_the_sdist_has_what_a_packager_needs(self, built: Path) -> None:
        with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
            names = {name.split("/", 1)[1] for name in sdist.getnames()}
        assert files_of_the_package() <= names
        wanted = (
            "pyproject.toml",
            "LICENSE",
            "README.md",
            "CHANGELOG.md",
            "SECURITY.md",
            "requirements.lock",
            "tests/paths.py",
            "conda/recipe.yaml",
            "Containerfile",
            "benchmarks/study.py",
        )
        assert set(wanted) <= names
        assert not any("_build" in name for name in names)

    @pytest.mark.slow
    def test_the_wheel_works_in_a_bare_environment(self, built: Path, tmp_path: Path) -> None:
        """The locked versions of the dependencies and nothing else: no extra, no file of the repository."""
        subprocess.run([sys.executable, "-m", "venv", tmp_path / "bare"], check=True)
        python = tmp_path / "bare" / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "requirements.lock"]
        subprocess.run([*pip, next(built.glob("*.whl"))], check=True)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

        def run(*arguments: str) -> str:
            command = [tmp_path / "bare" / "bin" / "huefield", *arguments]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert "Commands" in run("--help")
        assert huefield.__version__ in run("--version")
        stages = [f"stages.{stage}.steps=2" for stage in range(3)]
        run("train", "tiny", "--out", "run", *(word for each in ["members=1", *stages] for word in ("--set", each)))
        assert "part validation   299 structures" in run("data", "info", "run")
        run("evaluate", "run/model.safetensors", "run", "--part", "validation", "--out", "evaluation")
        assert (tmp_path / "evaluation" / "report.html").exists()


class TestRecipes:
    @pytest.fixture
    def conda(self) -> Any:
        return yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())

    def test_conda_needs_what_the_project_needs(self, conda: Any) -> None:
        wanted = {
            re.sub(r"^[\w-]+", lambda name: CONDA_NAMES.get(name[0], name[0]), each) for each in PROJECT["dependencies"]
        }
        python, *others = conda["requirements"]["run"]
        assert {each.replace(" ", "") for each in others} == wanted
        assert python.replace("python ", "") == PROJECT["requires-python"]

    def test_versions_agree(self, conda: Any) -> None:
        citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
        assert conda["context"]["version"] == citation["version"] == huefield.__version__

    def test_the_container_takes_the_lock_and_a_supported_python(self) -> None:
        text = (ROOT / "Containerfile").read_text()
        copied = [line.split()[1] for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line]
        assert copied
        assert all((ROOT / source).exists() for source in copied)
        assert "--constraint requirements.lock" in text
        assert 'ENTRYPOINT ["huefield"]' in text
        version = re.search(r"python:3\.(\d+)-slim", text)
        assert version is not None
        assert int(version[1]) >= int(PROJECT["requires-python"].removeprefix(">=3."))


def test_the_lock_has_exact_versions_and_no_address() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.!+]+( ; .*)?", line)] == []


def test_the_lock_has_every_extra_of_development() -> None:
    locked = {line.split("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()}
    extras = PROJECT["optional-dependencies"]
    names = {re.split(r"[<>=\[]", each)[0].lower() for extra in ("dev", "docs") for each in extras[extra]}
    assert names <= locked


def test_the_package_is_typed_and_known_by_its_version() -> None:
    assert (ROOT / "huefield" / "py.typed").exists()
    assert importlib.metadata.version("huefield") == huefield.__version__


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_templates_of_issues_are_valid(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.name != "config.yml":
        assert {"name", "description", "body"} <= set(form)
        ids = [entry["id"] for entry in form["body"]]
        assert len(ids) == len(set(ids))
        assert all(entry["attributes"]["label"] for entry in form["body"])
