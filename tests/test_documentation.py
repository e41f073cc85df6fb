"""Commands and options that the documentation names exist in the command line."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from huefield.cli.main import app
from tests.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAM = typer.main.get_command(app)
OF_MACE = (
    "--config --config_type_weights --ema_decay --energy_key --energy_weight --forces_weight --model --r_max "
    "--restart_latest --swa --valid_file --valid_fraction"
)
OTHER_PROGRAMS = {"--strict", "--wheel-dir", "--cpus-per-task"}
"""Options of mypy, pip and Slurm."""


def commands(text: str) -> Iterator[str]:
    """Commands of huefield in code blocks and inline code, without comments."""
    fenced = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    blocks = [block for language, block in fenced.findall(text) if language in ("", "bash")]
    inline = re.findall(r"`(huefield [^`]+)`", fenced.sub("", text))
    for line in [line for block in blocks for line in block.replace("\\\n", " ").splitlines()] + inline:
        words = re.sub(r"(^|\s)#.*", "", line)
        found = re.search(r"(?:^|\s|/)huefield (.*)", words)
        if found:
            yield found[1].split(" > ")[0].replace("…", "").replace("...", "").strip()


def problem(line: str) -> str | None:
    """Error of the command line for a command, or None. With --help, options are parsed and nothing runs."""
    words, names, command = shlex.split(line), list[str](), PROGRAM
    while words and words[0] in subcommands(command):
        names.append(words.pop(0))
        command = subcommands(command)[names[-1]]
    if subcommands(command) and words and not words[0].startswith("-"):
        return f"no command {words[0]!r}"
    result = CliRunner().invoke(app, [*names, "--help", *words])
    return None if result.exit_code == 0 else result.output


def subcommands(command: Any) -> dict[str, Any]:
    return getattr(command, "commands", {})


def all_options(command: Any) -> set[str]:
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union({"--help"}, *map(all_options, subcommands(command).values()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
class TestPages:
    def test_commands_exist(self, page: Path) -> None:
        found = {line: problem(line) for line in commands(page.read_text())}
        assert {line: fault for line, fault in found.items() if fault} == {}

    def test_options_in_the_text_exist(self, page: Path) -> None:
        named = {option for code in re.findall(r"`([^`\n]+)`", page.read_text()) for option in OPTION.findall(code)}
        others = OTHER_PROGRAMS | (set(OF_MACE.split()) if page.name == "from-other-codes.md" else set())
        assert named - all_options(PROGRAM) - others == set()


OPTION = re.compile(r"(?:^|(?<=\s))--[a-z][a-z0-9_-]*")


class TestChecks:
    def test_commands_are_found_in_all_notations(self) -> None:
        block = ".venv/bin/huefield md A B --steps 3   # NVT\nhuefield train x \\\n  --out y\n"
        text = f"```\n{block}```\nSee `huefield data info X`."
        assert list(commands(text)) == ["md A B --steps 3", "train x    --out y", "data info X"]

    @pytest.mark.parametrize(
        ("line", "fault"),
        [
            ("frobnicate X", "no command 'frobnicate'"),
            ("data frobnicate X", "no command 'frobnicate'"),
            ("train x.yaml --frobnicate", "No such option: --frobnicate"),
            ("md MODEL START --temperature", "requires an argument"),
        ],
    )
    def test_faults_are_found(self, line: str, fault: str) -> None:
        assert fault in str(problem(line))

    def test_enough_commands_are_checked(self) -> None:
        assert sum(len(list(commands(page.read_text()))) for page in PAGES) > 40


class TestArchitecture:
    PAGE = (ROOT / "docs" / "architecture.md").read_text()

    def test_the_map_has_every_folder_and_no_other(self) -> None:
        named = {name.rstrip("/") for name in re.findall(r"`(huefield/[a-z_/]+)`", self.PAGE)}
        folders = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "huefield").glob("*/**/__init__.py")}
        assert named == folders

    def test_files_of_the_page_exist(self) -> None:
        files = re.findall(r"`(huefield/[a-z_/]+\.py)`", self.PAGE)
        assert files
        assert [file for file in files if not (ROOT / file).exists()] == []

    def test_questions_name_functions_that_exist(self) -> None:
        """The functions are checked with all links of pages (tests/test_readme.py)."""
        questions = [line for line in self.PAGE.splitlines() if line.startswith("| Where ")]
        assert len(questions) >= 10
        assert all(re.search(r"\| \[`[\w.]+`\]\(\.\./huefield/[\w/]+\.py\)", line) for line in questions)
