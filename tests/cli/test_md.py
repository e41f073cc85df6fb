"""Molecular dynamics from the command line."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from ase.io import read, write
from click.testing import Result
from typer.testing import CliRunner

from huefield import save
from huefield.ase.md import MDProgress
from huefield.cli.main import app
from huefield.cli.md import md_line, md_progress
from huefield.support.errors import HuefieldError
from tests.ase.md.test_run import ensemble, require_same
from tests.cli.test_main import in_terminal
from tests.paths import ROOT
from tests.training.helpers import waters


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    save(ensemble(), folder / "model.safetensors")
    write(folder / "start.xyz", waters(2), format="extxyz")
    return folder / "model.safetensors", folder / "start.xyz"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["md", *map(str, arguments)], catch_exceptions=False)


def test_a_run_that_ends_and_one_that_stops(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    common = (*inputs, "--temperature", 300, "--steps", 20, "--uncertainty-every", 1, "--out", tmp_path / "run")
    done = call(*common)
    assert done.exit_code == 0, done.output
    assert "No --threshold: the run continues however uncertain the forces are" in done.stderr
    assert done.stdout.startswith("Took 20 steps: 0.01 ps\n3 frames. Wrote ")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        *("trajectory.xyz", "log.csv", "md.png", "config.yaml", "checkpoint.safetensors", ".lock")
    }
    forgotten = call(*common, "--overwrite", "--threshold", 99.9, "--frame", 0)
    assert "99.9 eV/Å is far above any uncertainty of a useful model" in forgotten.stderr
    assert "did you mean 99.9%?" in forgotten.stderr
    stopped = call(*common, "--overwrite", "--threshold", 1e-9, "--refuse-above", 1, "--frame", 0)
    assert stopped.exit_code == 3
    assert stopped.stderr.startswith("Stopped at step 0 (0 fs): the uncertainty of forces is ")
    assert "1 frames, 1 uncertain structures. Wrote " in stopped.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", -5), r"--steps: Input should be greater than or equal to 1 \(got -5\)"),
        (("--temperature", -1), r"--temperature: Input should be greater than 0 \(got -1\.0\)"),
        (("--ensemble", "npt"), "npt needs a temperature: set temperature_kelvin"),
        (("--temperature", 300, "--barostat", 0), r"--barostat: Input should be greater than 0 \(got 0\.0\)"),
        (("--temperature", 300, "--save-every", 0), "--save-every: Input should be greater than or equal to 1"),
        (("--temperature", 300, "--threshold", "x%"), "--threshold: a threshold is a number in eV/Å"),
        (("--temperature", 300, "--frame", 7), r"start\.xyz has no frame 7"),
        (("--temperature", 300, "--ensemble", "npt"), "give the start a cell, or use nvt"),
    ],
)
def test_wrong_options_are_named(
    inputs: tuple[Path, Path], tmp_path: Path, options: tuple[object], message: str
) -> None:
    steps = () if "--steps" in options else ("--steps", 5)
    with pytest.raises(ValueError, match=message):
        call(*inputs, *steps, *options, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_options_that_are_settings(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    saving = ("--threshold", 1e-9, "--refuse-above", 1, "--on-threshold", "save", "--uncertainty-every", 1)
    options = ("--temperature", 300, "--steps", 7, *saving, "--save-every", 3, "--barostat", 250)
    done = call(*inputs, *options, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert [frame.info["step"] for frame in read(tmp_path / "run" / "uncertain.xyz", ":")] == [0, 3, 6]
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (written["save_every"], written["barostat_fs"]) == (3, 250.0)


def test_an_element_that_the_model_does_not_know(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    atoms = waters(1)[0]
    atoms.numbers[0] = 16
    atoms.calc = None
    write(tmp_path / "sulfur.xyz", atoms, format="extxyz")
    with pytest.raises(ValueError, match=r"sulfur\.xyz, last frame: .* contains S, .* trained for H, O only"):
        call(inputs[0], tmp_path / "sulfur.xyz", "--temperature", 300, "--steps", 5, "--out", tmp_path / "out")
    broken = waters(1)[0]
    broken.calc = None
    broken.positions[1] = np.nan
    write(tmp_path / "nan.xyz", broken, format="extxyz")
    with pytest.raises(ValueError, match=r"nan\.xyz, frame 0: positions of .*1 are NaN or infinite"):
        call(
            *(inputs[0], tmp_path / "nan.xyz", "--temperature", 300, "--steps", 5, "--out", tmp_path / "out"),
            *("--frame", 0),
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model", "start", "message"),
    [
        ("start.xyz", "model.safetensors", r"start\.xyz: not a huefield model.* the model comes before the data"),
        ("model.safetensors", "model.safetensors", "a file of structures is needed here: check the order"),
        ("text.txt", "start.xyz", r"text\.txt: not a huefield model"),
        ("model.safetensors", "text.txt", r"text\.txt: ASE does not know this kind of file"),
        ("model.safetensors", "empty.xyz", r"empty\.xyz has no structure"),
    ],
)
def test_wrong_files_are_named(inputs: tuple[Path, Path], tmp_path: Path, model: str, start: str, message: str) -> None:
    folder = inputs[0].parent
    (folder / "text.txt").write_text("hello world\n")
    (folder / "empty.xyz").write_text("")
    with pytest.raises(HuefieldError, match=message):
        call(folder / model, folder / start, "--temperature", 300, "--steps", 5, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


PROGRESS = MDProgress(200, 1000, 0.5, 310.4, -93.5, -93.25, 0.0312, 100.0)


def test_lines_of_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "0.100 ps, 310 K, E -93.250 eV, force uncertainty 0.0312 eV/Å, 100 steps/s (4.3 ns/day), 8 s left"
    assert md_line(PROGRESS) == expected
    assert md_line(MDProgress(0, 1000, 0.5, 310.4, -93.5, -93.25, None, None)) == "0.000 ps, 310 K, E -93.250 eV"
    with md_progress() as report:
        report("Resuming")
        report(PROGRESS)  # too early for a line
    assert capsys.readouterr().err == "Resuming\n"
    monkeypatch.setattr("huefield.support.pace.SECONDS_BETWEEN_LINES", 0.0)
    with md_progress() as report:
        report(PROGRESS)
    assert capsys.readouterr().err == f"step 200/1000, {expected}\n"


def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "160")
    with md_progress() as report:
        report("Resuming at step 100")
        report(PROGRESS)
    lines = terminal.lines()
    assert "Resuming at step 100" in lines
    assert "200/1000 0.100 ps, 310 K" in lines[-1]
    assert "━━━" in lines[-1]


@pytest.mark.slow
def test_killed_processes_change_nothing(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    def command(out: str) -> list[str]:
        often = ("--checkpoint-every", 50, "--every", 3)
        options = ("--temperature", 20, "--steps", 700, *often, "--out", tmp_path / out)
        return [sys.executable, "-m", "huefield", "md", *map(str, (*inputs, *options))]

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command("alone"), check=True, env=environment, timeout=300)
    for kill in range(4):
        log = tmp_path / "run" / "log.csv"
        child = subprocess.Popen(command("run"), env=environment)
        deadline = time.monotonic() + 120
        while child.poll() is None and time.monotonic() < deadline:
            if log.exists() and log.read_bytes().count(b"\n") > 50 + 57 * kill:
                break
            time.sleep(0.003)
        assert child.poll() is None, "the kill should fall before the end"
        child.kill()
        child.wait()
    subprocess.run(command("run"), check=True, env=environment, timeout=300)
    require_same(tmp_path / "run", tmp_path / "alone")
