import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from huefield.cli.progress import (
    convert_progress,
    make_line,
    make_progress,
    seconds_left,
)
from huefield.data.convert import ConvertProgress
from huefield.make_data import MakeProgress
from huefield.support.pace import NowAndThen, duration

HUEFIELD = Path(sys.executable).with_name("huefield")


def run(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, arguments)], capture_output=True, text=True, timeout=120, **options)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['huefield', '--help']\nfrom huefield.cli import main\n"
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


@pytest.mark.parametrize(
    ("error", "code", "said", "not_said"),
    [
        ("huefield.HuefieldError('the file is empty')", 1, "error: the file is empty\n", "Traceback"),
        ("OSError('the disk is full')", 1, "error: the disk is full\n", "Traceback"),
        (
            "RuntimeError('RESOURCE_EXHAUSTED: Out of memory')",
            1,
            "error: out of memory: reduce",
            "Traceback",
        ),
        ("MemoryError()", 1, "error: out of memory: reduce batch_size, members", "Traceback"),
        ("RuntimeError('no such device')", 70, "This is a bug in huefield", "error: no such"),
        ("ValueError('shapes differ')", 70, "This is a bug in huefield", "error: shapes differ"),
    ],
)
def test_only_errors_that_a_user_can_mend_are_one_line(error: str, code: int, said: str, not_said: str) -> None:
    program = (
        "import huefield, huefield.cli\nimport sys\ncli = sys.modules['huefield.cli.main']\n"
        f"def app():\n    raise {error}\n"
        "cli.app = app\ncli.main()\n"
    )
    result = run(sys.executable, "-c", program)
    assert result.returncode == code
    assert said in result.stderr
    assert not_said not in result.stderr
    assert ("Traceback" in result.stderr) == (code == 70)


def test_version_and_module_entry_point() -> None:
    import huefield

    for command in ([HUEFIELD], [sys.executable, "-m", "huefield"]):
        result = run(*command, "--version")
        assert result.stdout.strip() == f"huefield {huefield.__version__}", result.stderr


def test_unknown_attribute_lists_the_known_ones() -> None:
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
        assert "nll 2000/2000" in result.stderr
    first, second = ((tmp_path / folder / "toy-colored.json").read_text() for folder in ("a", "b"))
    assert first == second
    assert json.loads(first)["config"]["seed"] == 7


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Everything that was shown, one state after the other, without codes for colours and places."""
        return [line for line in re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", self.getvalue()).splitlines() if line.strip()]


def in_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """From now on stderr is a terminal. (A fixture would come too early: pytest sets stderr again before the test.)"""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return stream


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (59.0, "59 s"), (59.5, "1 min 00 s"), (125, "2 min 05 s"), (3900, "1 h 05 min")]
)
def test_durations_are_in_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("left", "seconds"), [(10, None), (8, 240.0), (0, 0.0), (12, None)])
def test_remaining_time_is_extrapolated(left: int, seconds: float | None) -> None:
    """Sixty seconds after there were ten; two more may be there where results were removed."""
    assert seconds_left(60.0, 10, left) == seconds


def test_progress_lines_are_seconds_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr("huefield.support.pace.time.monotonic", lambda: clock)
    eager, patient = NowAndThen(at_once=True), NowAndThen(at_once=False)
    assert (eager.due(), eager.due(), patient.due()) == (True, False, False)
    clock = 104.0
    assert (eager.due(), eager.due(anyway=True)) == (False, True)
    clock = 105.0
    assert (eager.due(), patient.due(), patient.due()) == (False, True, False)


def test_data_making_shows_rate_and_remaining_time() -> None:
    progress = MakeProgress("labelling", done=30, total=50, resumed=20, seconds=100.0)
    assert (progress.rate, progress.seconds_left) == (0.1, 200.0)
    assert make_line(progress) == "30/50, 6.0/min, 3 min 20 s left"
    assert make_line(MakeProgress("labelling", done=50, total=50, resumed=0, seconds=10.0)) == "50/50, 5.0/s"
    assert make_line(MakeProgress("labelling", done=20, total=50, resumed=20)) == "20/50"


def test_making_data_without_a_terminal_prints_the_beginning_and_twenty_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with make_progress() as report:
        for done in range(101):
            report(MakeProgress("sampling", done, 100, seconds=float(done)))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert (lines[0], lines[1]) == ("sampling 0/100", "sampling 5/100, 1.0/s, 1 min 35 s left")
    assert lines[-1] == "sampling 100/100, 1.0/s"


def test_making_data_in_a_terminal_draws_a_bar_for_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_terminal(monkeypatch)
    with make_progress() as report:
        for stage in ("sampling", "labelling"):
            for done in range(4):
                report(MakeProgress(stage, done, 3, seconds=60.0 * done))
    last = terminal.lines()[-2:]
    assert all("━━━" in line and "3/3, 1.0/min" in line for line in last)
    assert "sampling" in last[0]
    assert "labelling" in last[1]


def test_converting_in_a_terminal_draws_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_terminal(monkeypatch)
    with convert_progress() as report:
        report(ConvertProgress("a.xyz", 1, 1, structures=500, resumed=300, faults=2, seconds=2.0))
    line = terminal.lines()[-1]
    assert "file 1/1 ━━━" in line
    assert "500 structures, 100/s, 2 bad" in line


def test_warnings_are_printed_without_code() -> None:
    code = (
        "import sys, warnings\nsys.argv = ['huefield', '--version']\nfrom huefield.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nwarnings.warn('it is late', stacklevel=1)\n"
    )
    result = run(sys.executable, "-c", code)
    assert result.stderr == "warning: it is late\n"


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.xyz").write_text("1\n\nH 0 0 0\n")
    files = tmp_path / "gone.safetensors", tmp_path / "in.xyz", tmp_path / "out.xyz"
    result = run(sys.executable, "-m", "huefield", "predict", *files)
    assert result.stderr.strip() == f"error: there is no model file {files[0]}"
