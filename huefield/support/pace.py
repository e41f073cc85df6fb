"""Time for people: how often to print a line about long work, and durations in words."""

import math
import time

SECONDS_BETWEEN_LINES = 5.0
"""Shortest time between two lines about long work."""


class NowAndThen:
    """Says whether it is time for another line."""

    def __init__(self, *, at_once: bool) -> None:
        """Start the clock; with ``at_once``, the first line is due at once."""
        self._last = -math.inf if at_once else time.monotonic()

    def due(self, anyway: bool = False) -> bool:
        """Whether a few seconds have passed since the last line; always with ``anyway``."""
        if not anyway and time.monotonic() - self._last < SECONDS_BETWEEN_LINES:
            return False
        self._last = time.monotonic()
        return True


def duration(seconds: float) -> str:
    """A time for people, in two units at most, such as 1 h 05 min."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
