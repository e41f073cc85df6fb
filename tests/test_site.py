"""The site: every page is in it, links to source lead somewhere, quoted messages exist, the first code runs."""

import ast
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.paths import ROOT
from tests.test_readme import python_of, run_code, write_model
from tests.training.helpers import waters

DOCS = ROOT / "docs"
PAGES = [path for path in sorted([*DOCS.rglob("*.md"), *DOCS.rglob("*.rst")]) if "_build" not in path.parts]


Extension = Callable[[str], ModuleType]


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> Extension:
    """Modules of docs/_ext, which need the extra docs."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "_ext")
    return importlib.import_module


def listed(page: Path) -> set[Path]:
    """Pages in the tables of contents of a page."""
    blocks = re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL)
    names = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    return {next(page.parent.glob(f"{name}.[mr][ds]*")) for name in names}


def test_every_page_is_in_the_table_of_contents() -> None:
    index, api = DOCS / "index.md", DOCS / "api" / "index.md"
    assert listed(index) | listed(api) | {index} == set(PAGES)


def test_every_package_that_users_import_from_has_a_page() -> None:
    described = {name for page in PAGES for name in re.findall(r"automodule:: ([\w.]+)", page.read_text())}
    exporting = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "huefield").rglob("__init__.py")
        if re.search(r"^from huefield.* import (\w+) as \1$", path.read_text(), re.MULTILINE)
    }
    again = {"huefield.data.batches", "huefield.data.readers", "huefield.data.splits", "huefield.data.store"}
    internal = {"huefield.predict.files", "huefield.evaluation.report"}
    inner = {name for name in exporting if name.startswith(("huefield.cli", "huefield.make_data", "huefield.demo"))}
    assert described == {*(exporting - again - internal - inner), "huefield"}


class TestSourcePages:
    def test_a_method_is_found_after_its_class(self, extension: Extension) -> None:
        text = "def save():\n    pass\n\nclass Model:\n    def load(self):\n        pass\n\n    def save(self):\n"
        line_of = extension("source_pages").line_of
        assert (line_of("save", text), line_of("Model.save", text), line_of("Model.gone", text)) == (1, 8, None)

    def test_addresses(self, extension: Extension) -> None:
        source_page = extension("source_pages").source_page
        path = ROOT / "huefield" / "core" / "gaussian.py"
        line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if text.startswith("class Gaussian"))
        assert source_page(path, "Gaussian") == f"source/huefield/core/gaussian.py.html#line-{line}"
        assert source_page(path, "some words") == "source/huefield/core/gaussian.py.html"


def test_signatures_are_shortened(extension: Extension) -> None:
    plain = extension("api_pages").plain
    assert plain("(n: Annotated[int, Ge(ge=1), Le(le=9)] = 5, *, x: float)") == "(n: int = 5, *, x: float)"
    assert plain("Annotated[tuple[Annotated[A | B, Field(x=1)], ...], MinLen(1)]") == "tuple[A | B, ...]"


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        ('<a href="#here">x</a><a href="a.html#here">x</a><a href="https://example.org/x">x</a>', []),
        ('<a href="b.html">x</a>', ["a.html: b.html: there is no b.html"]),
        ('<a href="#gone">x</a>', ["a.html: #gone: a.html has no #gone"]),
    ],
)
def test_broken_links_are_found(tmp_path: Path, extension: Extension, body: str, faults: list[str]) -> None:
    (tmp_path / "a.html").write_text(f'<p id="here">{body}</p>')
    assert extension("check_links").broken(tmp_path) == faults


def messages() -> str:
    """All texts of the program, with … for what is filled in."""
    found = []
    for path in (ROOT / "huefield").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_messages_of_the_faq_exist() -> None:
    text = messages()
    quoted = re.findall(r"^### `(.+)`$", (DOCS / "faq.md").read_text(), re.MULTILINE)
    assert len(quoted) > 10
    missing = [message for message in quoted if not all(part.strip() in text for part in pieces(message))]
    assert missing == []


def pieces(message: str) -> list[str]:
    """Constant parts of a quoted message."""
    found = [part for part in message.split("…") if len(part.strip()) > 3]
    assert found
    return found


def test_python_of_the_first_page_is_that_of_the_readme_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, use = python_of(DOCS / "index.md")
    assert start == python_of(ROOT / "README.md")[0]
    write_model(tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    before = "from huefield import Calculator\nfrom tests.training.helpers import waters\n"
    names = run_code(f"{before}structures, calculator = waters(1), Calculator('model.safetensors')\n{use}")
    assert names["uncertainty"] > 0
    assert len(waters(1)) == 1
