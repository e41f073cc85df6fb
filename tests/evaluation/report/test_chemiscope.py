import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from huefield.evaluation.report import chemiscope
from huefield.evaluation.report.chemiscope import NoViewerError, chemiscope_program


def test_the_program_is_chemiscopes_with_its_licences() -> None:
    assert "DefaultVisualizer" in chemiscope_program().script
    assert "chemiscope developers" in chemiscope_program().notices
    assert "jQuery" in chemiscope_program().notices


def test_importing_the_viewer_does_not_import_chemiscope() -> None:
    """It would take a second and bring all of Jupyter's widgets along."""
    program = "import sys, huefield.evaluation.report.viewer; sys.exit('chemiscope' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_chemiscope_without_the_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(chemiscope, "find_spec", lambda _: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    with pytest.raises(NoViewerError, match=r"chemiscope .* has no file .*chemiscope.min.js: install chemiscope 1.1"):
        chemiscope_program()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"DefaultVisualizer",
            r"chemiscope.min.js of chemiscope .* has no StructureVisualizer: install chemiscope",
        ),
        (b"\xff", r"chemiscope.min.js cannot be read \(.*codec can't decode"),
    ],
)
def test_another_program_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, message: str
) -> None:
    monkeypatch.setattr(chemiscope, "find_spec", lambda _: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    (tmp_path / chemiscope.SCRIPT).parent.mkdir(parents=True)
    (tmp_path / chemiscope.SCRIPT).write_bytes(content)
    with pytest.raises(NoViewerError, match=message):
        chemiscope_program()


def test_a_chemiscope_that_nobody_installed_has_no_licence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(chemiscope, "find_spec", lambda _: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    monkeypatch.setattr(chemiscope, "distribution", unknown)
    (tmp_path / chemiscope.SCRIPT).parent.mkdir(parents=True)
    (tmp_path / chemiscope.SCRIPT).write_text(" ".join(chemiscope.NEEDED))
    with pytest.raises(NoViewerError, match="the licence of chemiscope of unknown version"):
        chemiscope_program()


def test_no_chemiscope_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chemiscope, "find_spec", lambda _: None)
    with pytest.raises(NoViewerError, match="chemiscope is not installed"):
        chemiscope_program()
