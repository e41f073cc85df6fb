"""Ctrl-C and SIGTERM, handled even while XLA compiles.

Python runs signal handlers in the main thread, which compiled code may keep busy for minutes. The interpreter however
writes the number of each signal into a pipe at once (``signal.set_wakeup_fd``). A thread reads the pipe and ends the
process if the main thread does not answer and has nothing to save.

XLA answers while it compiles, but its threads continue to compile; they would crash the interpreter when it shuts down.
``main`` therefore ends the process without a shutdown (:func:`end`) once files are closed and removed.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from huefield.support.cleanup import clean_up

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SECONDS_TO_ANSWER = 0.5
"""Time limit for the main thread to run its signal handler before it counts as busy in C++."""
SECONDS_TO_END = 5.0
"""Time limit for the main thread to unwind: an exception may get lost in a callback of the garbage collector."""


class Interrupted(SystemExit):
    """A signal ends the program; the exit code is 128 plus its number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class StopRequest:
    """Says whether SIGINT or SIGTERM came. Work that can be resumed asks after each step.

    Before the first call there is nothing to save, so a signal ends the program at once. After it, a signal waits
    for the next call; a second signal ends the program at once.
    """

    def __init__(self, when: str) -> None:
        self.when, self.received, self._begun = when, False, False

    def __call__(self) -> bool:
        """Whether to save and stop now."""
        self._begun = True
        return self.received

    def all_saved(self) -> None:
        """Note that everything is on the disk, as before the first question."""
        self._begun = False

    def announce(self) -> None:
        """Tell the user that a signal was handled."""
        typer.echo(f"Stopping {self.when}; repeat to stop at once", err=True)

    @property
    def defers(self) -> bool:
        """Whether a signal that comes now waits for the next question."""
        return self._begun and not self.received


class _Listener:
    """Hears signals in the main thread, and in a thread of its own while the main thread is busy."""

    def __init__(self) -> None:
        self.requests: list[StopRequest] = []
        self._answered = threading.Event()
        self._ending = False
        self._deferred: set[int] = set()
        self._lock = threading.RLock()  # a handler may interrupt another one

    @contextmanager
    def listening(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._answer) for number in SIGNALS}
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        wakeup_before = signal.set_wakeup_fd(write_end)
        thread = threading.Thread(target=self._watch, args=(read_end,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(write_end)  # ends the thread
            thread.join()
            os.close(read_end)

    def _answer(self, number: int, frame: Any) -> None:
        """Handle a signal in the main thread, unless the other thread has done so."""
        with self._lock:
            if number in self._deferred:
                self._deferred.remove(number)
                return
            request = self._defer()
            self._ending = request is None
            self._answered.set()
        if request is None:
            raise Interrupted(number)
        request.announce()

    def _watch(self, read_end: int) -> None:
        while content := os.read(read_end, 1):
            if content[0] in SIGNALS:
                self._hear(content[0], read_end)

    def _hear(self, number: int, read_end: int) -> None:
        """Wait for the answer of the main thread, or answer in its place."""
        self._answered.wait(SECONDS_TO_ANSWER)
        with self._lock:
            answered, request = self._answered.is_set(), None
            self._answered.clear()
            if not answered and (request := self._defer()):
                self._deferred.add(number)
        if request is not None:
            request.announce()
        elif not answered or (self._ending and not _closed_within(read_end, SECONDS_TO_END)):
            end(128 + number)

    def _defer(self) -> StopRequest | None:
        """Pass a signal on to the work that has something to save, and return its request; None if there is none."""
        request = self.requests[-1] if self.requests else None
        if request is None or not request.defers:
            return None
        request.received = True
        return request


_listeners: list[_Listener] = []
"""The listener of this process, if it listens: there is one pipe for signals."""


@contextmanager
def ending_at_once() -> Iterator[None]:
    """End the program at SIGINT or SIGTERM, with exit code 130 or 143, even in the middle of a compilation."""
    if _listeners:
        yield
        return
    listener = _Listener()
    _listeners.append(listener)
    try:
        with listener.listening():
            yield
    finally:
        _listeners.remove(listener)


@contextmanager
def stopping_politely(when: str) -> Iterator[StopRequest]:
    """Give a function that says whether SIGINT or SIGTERM came, for work that saves its state before it stops.

    Args:
        when: completes "Stopping ..." for the user.
    """
    with ending_at_once():
        request = StopRequest(when)
        _listeners[0].requests.append(request)
        try:
            yield request
        finally:
            _listeners[0].requests.remove(request)


def _closed_within(read_end: int, seconds: float) -> bool:
    """Whether the other end of a pipe is closed within this time; other signals that come meanwhile change nothing."""
    deadline = time.monotonic() + seconds
    while select.select([read_end], [], [], max(deadline - time.monotonic(), 0.0))[0]:
        if not os.read(read_end, 1):
            return True
    return False


def end(code: int) -> NoReturn:
    """End the process now, from any thread, without temporary files and with a visible cursor."""
    clean_up()
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")  # progress bars hide the cursor
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
