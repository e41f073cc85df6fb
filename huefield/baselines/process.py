"""A baseline in another process, with one line of JSON for each structure and each result.

The other process may be a Python of another environment, so that models that need other packages, such as PyTorch, work
without being installed beside huefield. It reads a line

    {"numbers": [6, 1, ...], "positions": [[x, y, z], ...], "cell": [[...], [...], [...]], "pbc": [false, ...]}

in Å and writes a line ``{"energy": E, "forces": [[...], ...], "stress": [[...], ...]}`` in eV, eV/Å and eV/Å³, where
stress may be null, or ``{"error": "reason"}``. ``examples/foreign_baseline.py`` is such a process for any ASE
calculator.
"""

import json
import logging
import os
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from huefield.baselines.base import AbstractBaseline, BaselineError
from huefield.core.structure import BaselineResult, Structure
from huefield.support.errors import HuefieldError

LOG = logging.getLogger("huefield")
ENDING_SECONDS = 5.0
"""Time for a process that has closed its output to end by itself."""
CRASHES_WITHOUT_ANSWER = 3
"""Crashes, of a program that has never answered, after which the work ends."""
PATIENCE_SECONDS = 60.0
"""Time without an answer after which a message says that one is waited for; doubled after each message."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ProcessBaseline(AbstractBaseline):
    """Asks another process, which is started with the first structure and again after a crash."""

    def __init__(self, command: str | Sequence[str], title: str = "", *, one_thread: bool = False) -> None:
        """Remember the command.

        Args:
            command: program and arguments, or a line as for a shell.
            title: name of the baseline; empty for the command without its interpreter.
            one_thread: whether to limit numerical libraries of the process to one thread.
        """
        self.command = tuple(shlex.split(command) if isinstance(command, str) else command)
        if not self.command:
            raise HuefieldError("the command of the baseline is empty: name a program that computes it")
        self._title = title or _title_of(self.command)
        self._one_thread, self._lock = one_thread, threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._answered, self._crashes = False, 0

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process, which starts a process of its own."""
        return partial(ProcessBaseline, one_thread=self._one_thread), (self.command, self._title)

    @property
    def title(self) -> str:
        """The name of the baseline."""
        return self._title

    @property
    def identity(self) -> str:
        """The command."""
        return shlex.join(self.command)

    @property
    def worker_command(self) -> tuple[str, ...]:
        """The command, for further processes of it."""
        return self.command

    def _computed(self, structure: Structure) -> BaselineResult:
        with self._lock:
            try:
                return self._asked(structure)
            except BaselineError:
                raise
            except BaseException:
                self.close()  # its next answer would be that to this request
                raise

    def _asked(self, structure: Structure) -> BaselineResult:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - it has pipes
        try:
            process.stdin.write(json.dumps(request_of(structure)) + "\n")
            process.stdin.flush()
            with _saying_that_it_waits(self.title, len(structure)):
                line = process.stdout.readline()
        except (OSError, ValueError):  # the process has ended, or another thread has closed its pipes
            line = ""
        if not line:
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_SECONDS)  # it may be about to say why
            self.close()
            raise self._ended(process.returncode)
        self._answered = True
        return result_of(line, len(structure), self.title, self._how())

    def _ended(self, code: int | None) -> HuefieldError:
        """The error after a crash: that of one structure, or one that ends the work if the program itself is broken."""
        self._crashes += 1
        if not self._answered and self._crashes >= CRASHES_WITHOUT_ANSWER:
            return HuefieldError(
                f"the process of {self.title} ended {self._crashes} times without any answer (exit code {code}). Read "
                f"its messages above, or {self._how()}"
            )
        return BaselineError(f"the process of {self.title} ended (exit code {code}): {self._how()}")

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):  # a request may be unsent
                        stream.close()
            process.wait()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self.close()

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None:
            environment = {**os.environ, **(ONE_THREAD if self._one_thread else {})}
            try:
                self._process = subprocess.Popen(  # noqa: S603 - the user's own command
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise HuefieldError(f"cannot start {self.command[0]}: {error.strerror}; {self._how()}") from error
        return self._process

    def _how(self) -> str:
        return f"try the command by hand: {shlex.join(self.command)}"


@contextmanager
def _saying_that_it_waits(title: str, atoms: int) -> Iterator[None]:
    """Tell a user now and then that a program has not answered yet."""
    answered = threading.Event()

    def tell() -> None:
        waited = PATIENCE_SECONDS
        while not answered.wait(waited):
            LOG.warning("%s has not answered for %g s (structure with %d atoms)", title, waited, atoms)
            waited *= 2

    threading.Thread(target=tell, name="patience", daemon=True).start()
    try:
        yield
    finally:
        answered.set()


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _title_of(command: Sequence[str]) -> str:
    """The command without its interpreter and without folders."""
    program, *others = (os.path.basename(word) if word.startswith("/") else word for word in command)
    return " ".join(others if others and program.startswith("python") else [program, *others])


def request_of(structure: Structure) -> dict[str, Any]:
    """A structure as JSON types."""
    return {
        "numbers": structure.atomic_numbers.tolist(),
        "positions": structure.positions.tolist(),
        "cell": structure.cell.tolist(),
        "pbc": structure.pbc.tolist(),
    }


def structure_of(request: dict[str, Any]) -> Structure:
    """The structure of a request."""
    return Structure(
        np.array(request["numbers"], np.uint8),
        np.array(request["positions"], float).reshape(-1, 3),
        np.array(request["cell"], float),
        np.array(request["pbc"], bool),
    )


def reply_of(result: BaselineResult) -> dict[str, Any]:
    """A result as JSON types."""
    stress = None if result.stress is None else result.stress.tolist()
    return {"energy": result.energy, "forces": result.forces.tolist(), "stress": stress}


def result_of(line: str, atoms: int, title: str, advice: str = "") -> BaselineResult:
    """The result in a line of JSON."""
    try:
        reply = json.loads(line)
        if "error" in reply:
            raise BaselineError(str(reply["error"]))
        stress = None if reply.get("stress") is None else np.array(reply["stress"], float).reshape(3, 3)
        return BaselineResult(float(reply["energy"]), np.array(reply["forces"], float).reshape(atoms, 3), stress)
    except BaselineError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise HuefieldError(
            f"the process of {title} answered {line[:80].strip()!r} instead of a result for {atoms} atoms "
            f"({type(error).__name__}: {error}). Its standard output is for answers alone, one line each; {advice}"
        ) from None


def serve(
    compute: Callable[[Structure], BaselineResult], requests: Iterable[str], answer: Callable[[str], object]
) -> None:
    """Answer each line of requests."""
    for line in requests:
        try:
            reply = reply_of(compute(structure_of(json.loads(line))))
        except BaselineError as error:
            reply = {"error": str(error)}
        answer(json.dumps(reply) + "\n")
