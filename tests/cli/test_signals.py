"""SIGINT and SIGTERM: they end the program at once unless there is something to save."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest

import huefield
from huefield.cli import signals
from huefield.cli.signals import stopping_politely
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from tests.paths import ROOT
from tests.training.helpers import POTENTIAL, write_waters

BUSY = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"
"""Minutes in C without a bytecode, as a compilation of XLA has them."""


@contextmanager
def started(*arguments: object, log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, *map(str, arguments)]
    with log.open("wb") as file:
        child = subprocess.Popen(
            command, stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def wait_until(condition: Callable[[], bool], child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert child.poll() is None, "the program ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def compiles_for(seconds: float, log: Path) -> Callable[[], bool]:
    """Whether the last word in a log of JAX is for this long that XLA begins to compile."""

    def compiles() -> bool:
        begins = "Finished jaxpr to MLIR module conversion" in log.read_text().rstrip().rpartition("\n")[2]
        return begins and time.time() - log.stat().st_mtime > seconds

    return compiles


def program(body: str, folder: Path) -> Path:
    path = folder / "program.py"
    lines = ["import hashlib", "from pathlib import Path"]
    lines += ["from huefield.cli.signals import ending_at_once, stopping_politely"]
    lines += ["from huefield.support.files import replacing", "from huefield.support.folders import folder_for_results"]
    path.write_text("\n".join([*lines, body.replace("BUSY", BUSY)]))
    return path


def test_a_compilation_is_interrupted(tmp_path: Path) -> None:
    """A command that compiles a deep model: it ends before the compilation, and leaves nothing behind."""
    config = ForceField.Config.model_validate(
        {"potential": {**POTENTIAL, "layers": 8, "elements": ("H", "O")}, "noise": {"kind": "colored"}}
    )
    model, waters = tmp_path / "model.safetensors", write_waters(tmp_path / "waters.xyz", 3)
    huefield.save(Ensemble.build(config, 2, key=jax.random.key(0)), model)
    out, log = tmp_path / "new" / "out.xyz", tmp_path / "log"
    compiling = {"JAX_LOG_COMPILES": "1", "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    optimised = {"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    with started("-m", "huefield", "predict", model, waters, out, log=log, **compiling, **optimised) as child:
        wait_until(compiles_for(0.5, log), child)
        child.send_signal(signal.SIGINT)
        begun = time.monotonic()
        assert child.wait(60) == 130, log.read_text()[-1000:]
        assert time.monotonic() - begun < 5
    assert "structures" not in log.read_text()
    assert not out.parent.exists()


def test_an_unfinished_result_is_removed_while_the_program_is_busy(tmp_path: Path) -> None:
    out, log = tmp_path / "new" / "out.txt", tmp_path / "log"
    body = f"""
with ending_at_once(), folder_for_results(Path({str(out.parent)!r})), replacing(Path({str(out)!r})) as temporary:
    temporary.write_text("half")
    print("busy", flush=True)
    BUSY"""
    with started(program(body, tmp_path), log=log) as child:
        wait_until(lambda: "busy" in log.read_text(), child)
        assert [path.read_text() for path in out.parent.iterdir()] == ["half"]
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 143
    assert not out.parent.exists()


def test_a_program_with_something_to_save_ends_at_the_second_signal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    body = """
with stopping_politely("after this step") as should_stop:
    should_stop()
    print("busy", flush=True)
    BUSY"""
    with started(program(body, tmp_path), log=log) as child:
        wait_until(lambda: "busy" in log.read_text(), child)
        child.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1.5)
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_before_the_first_question_there_is_nothing_to_save(number: signal.Signals) -> None:
    with stopping_politely("after this step"), pytest.raises(SystemExit) as ended:
        signal.raise_signal(number)
    assert ended.value.code == 128 + number


def test_after_the_first_question_a_signal_waits_for_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stopping_politely("after this step") as should_stop:
        assert not should_stop()
        signal.raise_signal(signal.SIGTERM)
        assert should_stop()
        assert capsys.readouterr().err == "Stopping after this step; repeat to stop at once\n"
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_when_all_is_saved_a_signal_ends_the_program() -> None:
    with stopping_politely("after this step") as should_stop:
        should_stop()
        should_stop.all_saved()
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGINT)


def test_the_main_thread_may_wake_while_the_other_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler runs late, while the listening thread writes its message: one signal must not count twice."""
    listener, request = signals._Listener(), signals.StopRequest("after this step")
    listener.requests.append(request)
    request()
    read_end, write_end = os.pipe()
    os.write(write_end, bytes([signal.SIGTERM]))
    os.close(write_end)
    heard: list[str] = []

    def echo(message: str, **_: object) -> None:
        heard.append(message)
        listener._answer(signal.SIGTERM, None)

    monkeypatch.setattr(signals, "SECONDS_TO_ANSWER", 0.0)
    monkeypatch.setattr(signals.typer, "echo", echo)
    listener._watch(read_end)
    os.close(read_end)
    assert heard == ["Stopping after this step; repeat to stop at once"]
    assert request()
    with pytest.raises(signals.Interrupted):
        listener._answer(signal.SIGTERM, None)
