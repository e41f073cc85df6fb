"""Training from the command line."""

import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from huefield.cli.main import app
from huefield.data.dataset import BundledData
from huefield.training import StepReport, ValidationReport, parse_config, progress
from huefield.training.config import to_yaml
from huefield.training.presets import example_data, noise_of_kind, preset
from huefield.training.validation import MemberMetrics
from tests.cli.test_main import HUEFIELD, in_terminal, run
from tests.cli.test_signals import BUSY, started, wait_until
from tests.training.helpers import config_for, write_waters


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


@pytest.mark.parametrize("name", ["paper", "small", "tiny"])
def test_config_prints_the_preset(name: str) -> None:
    assert parse_config(call("config", "--preset", name).stdout, "x") == preset(name, BundledData())


@pytest.mark.parametrize("noise", ["vanilla", "white", "colored", "local", "local_white"])
def test_config_takes_data_and_noise(noise: str) -> None:
    printed = call("config", "--preset", "tiny", "--data", "my.xyz", "--noise", noise).stdout
    assert parse_config(printed, "x") == preset("tiny", example_data(Path("my.xyz")), noise_of_kind(noise))


def test_config_keeps_the_noise_of_the_preset_if_it_is_of_that_kind() -> None:
    assert (
        call("config", "--preset", "paper", "--noise", "colored").stdout == call("config", "--preset", "paper").stdout
    )


def test_a_wrong_configuration_is_one_line_for_each_fault(tmp_path: Path) -> None:
    text = to_yaml(config_for(tmp_path / "a.xyz")).replace("members: 2", "members: 0").replace("seed:", "sed:")
    (tmp_path / "c.yaml").write_text(text)
    result = run(HUEFIELD, "train", tmp_path / "c.yaml", "--out", tmp_path / "out")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    assert any("c.yaml: sed: is not a known key; known are data, model" in line for line in lines)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="members") as error:
        parse_config(text.replace("sed:", "seed:").replace("batch_size: 4", "batch_size: many"), "c.yaml")
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert "members: Input should be greater than or equal to 1 (got 0)" in lines[0]
    assert "batch_size: " in lines[1]


@pytest.mark.slow
def test_a_member_alone_put_together_and_drawn(tmp_path: Path) -> None:
    """What a job array does."""
    data = write_waters(tmp_path / "waters.xyz", 8)
    stages = [{"kind": "nll", "steps": 2, "initialise_noise": True}]
    (tmp_path / "c.yaml").write_text(to_yaml(config_for(data, stages=stages)))
    result = call("train", tmp_path / "c.yaml", "--out", tmp_path / "run", "--member", 1, "--set", "seed=5")
    assert result.exit_code == 0, result.output
    assert re.search(r"energy \[eV\] +MAE +RMSE +NLL +RZV +RMV\n +validation +\d", result.stdout)
    folder = tmp_path / "run" / "member-1"
    assert f"Wrote {folder}/model.safetensors" in result.stdout
    assert f"huefield assemble {tmp_path}/run" in result.stdout
    assert "nll 2/2, " in result.stderr
    assert "at step 2" in result.stderr
    assert parse_config((folder / "config.yaml").read_text(), "x").seed == 5
    assert "NaN" not in (folder / "scores.json").read_text()
    with pytest.raises(ValueError, match="members 0 of 2 are not trained yet"):
        call("assemble", tmp_path / "run")
    some = call("assemble", tmp_path / "run", "--allow-missing")
    assert some.stdout.splitlines()[:-1] == result.stdout.splitlines()[:4]  # the same scores
    assert some.stdout.splitlines()[-1] == f"{tmp_path}/run/model.safetensors: 1 member"
    drawn = call("history", folder)
    assert drawn.exit_code == 0
    assert (folder / "history.png").read_bytes().startswith(b"\x89PNG")


SLOW_COMPILER = """
import hashlib, sys
from pathlib import Path
from huefield.cli import main
from huefield.training.program import StageProgram

config, out, compiling = sys.argv[1:]
step = StageProgram.step

def slow(self, states, batch):
    if self.stage.kind == "beta_nll":
        Path(compiling).touch()
        BUSY
    return step(self, states, batch)

StageProgram.step = slow
sys.argv = ["huefield", "train", config, "--out", out]
main()
"""


def test_sigterm_ends_a_compilation_when_everything_is_saved(tmp_path: Path) -> None:
    """The second stage has begun, and its first step compiles: the checkpoint has all that there is."""
    data = write_waters(tmp_path / "waters.xyz", 8)
    (tmp_path / "c.yaml").write_text(to_yaml(config_for(data, members=1, validate_every=6, checkpoint_every=6)))
    (tmp_path / "program.py").write_text(SLOW_COMPILER.replace("BUSY", BUSY))
    compiling, log = tmp_path / "compiling", tmp_path / "log"
    with started(tmp_path / "program.py", tmp_path / "c.yaml", tmp_path / "run", compiling, log=log) as child:
        wait_until(compiling.exists, child)
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 143, log.read_text()[-1000:]
    assert (tmp_path / "run" / "checkpoints" / "step-000000006-1.safetensors").exists()
    assert "Traceback" not in log.read_text()


def test_train_takes_a_preset_and_data(tmp_path: Path) -> None:
    data = write_waters(tmp_path / "waters.xyz", 12)
    stages = "stages=[{kind: squared_error, steps: 1}]"
    model = "model={potential: {kind: painn, features: 4, layers: 1}, noise: {kind: vanilla}}"
    result = call(
        "train",
        "tiny",
        "--data",
        data,
        "--out",
        tmp_path / "run",
        "--set",
        stages,
        "--set",
        model,
        "--set",
        "members=1",
    )
    assert result.exit_code == 0, result.output
    assert f"Wrote {tmp_path}/run/model.safetensors" in result.stdout
    assert parse_config((tmp_path / "run" / "config.yaml").read_text(), "x").data.train == (data,)


def steps(stage: int, name: str, step: int) -> StepReport:
    losses = np.array([-1234.5, 5678.9, 1.0])
    noise = {"gamma": np.array([0.001234, 1.0, 98765.0])}
    return StepReport(stage, name, step, 2_000_000, 28.123, losses, losses**2, np.array([0, 12, 0]), noise)


def validation(stage: int, noisy: bool) -> ValidationReport:
    numbers = [np.array([0.0123, 0.5])] * 2 + [np.array([-2.5, -1.5]) if noisy else np.full(2, np.nan)] * 3
    return ValidationReport(
        stage, "nll", 1_999_999, MemberMetrics(np.zeros(2), *numbers, *numbers), np.array([True, False])
    )


def test_without_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.run_progress() as report:
        for event in (steps(0, "squared_error", 1), "resuming", validation(0, False), validation(0, True)):
            report(event)
    first, message, head, silent, line = capsys.readouterr().err.splitlines()
    assert first.startswith("squared_error 1/2000000, 28.1/s, 19 h 45 min left, loss 1.48e+03 (-1.23e+03 to 5.68e+03)")
    assert first.endswith("12 steps skipped")
    assert message == "resuming"
    assert " ".join(silent.split()) == "at step 1999999 256.1 256.1 - - | 256.1 256.1 - - | 1 of 2"
    assert " ".join(line.split()) == "at step 1999999 256.1 256.1 -2.00 -2.00 | 256.1 256.1 -2.00 -2.00 | 1 of 2"
    assert len({len(text) for text in (head, silent, line)}) == 1


def test_in_a_terminal_everything_fits_into_a_hundred_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "100")
    with progress.run_progress() as report:
        for stage, name in enumerate(("squared_error", "beta_nll", "nll")):
            report(steps(stage, name, 1_000_000))
            report(validation(stage, True))
            report(steps(stage, name, 2_000_000))
    lines = terminal.lines()
    assert max(map(len, lines)) <= 100
    assert not [line for line in lines if "…" in line]
    last = "\n".join(lines[-5:])
    for name in ("squared_error", "beta_nll", "nll"):
        assert re.search(rf"{name} +━━━+ 2000000/2000000 28.1/s", last)
    assert "12 steps skipped" in last
    assert sys.stderr is terminal


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ("huefield.HuefieldError('no data')", 1, "error: no data\n"),
        ("RuntimeError('Gloo: connection closed')", 1, "error: another process of the job has ended: Gloo"),
        ("ValueError('shapes differ')", 70, "This is a bug in huefield"),
    ],
)
def test_a_failed_process_of_a_job_shows_bugs_with_a_traceback(error: str, code: int, said: str) -> None:
    program = (
        f"import huefield\nfrom huefield.cli.train import ending_the_job\nwith ending_the_job(True):\n    raise {error}"
    )
    result = run(sys.executable, "-c", program)
    assert result.returncode == code
    assert said in result.stderr
    assert ("Traceback" in result.stderr) == (code == 70)
    assert "The job ends: start the job again" in result.stderr


def test_a_model_in_place_of_a_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xa0\xff\x00")
    result = run(HUEFIELD, "train", tmp_path / "model.safetensors", "--out", tmp_path / "out")
    assert result.returncode == 1
    assert "model.safetensors is not a text file" in result.stderr
