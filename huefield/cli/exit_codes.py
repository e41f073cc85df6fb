"""Exit codes of all commands."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Outcome of a command, for scripts."""

    SUCCESS = 0
    ERROR = 1
    """Something is wrong with the input, the command failed for lack of disk space, or a path did not converge."""
    USAGE = 2
    """Unknown command or option (set by typer)."""
    LIMIT = 3
    """``md`` stopped at its threshold, or ``reproduce --against`` found different numbers."""
    EXPLODED = 4
    """``md`` reached a structure that the model cannot predict."""
    BUG = 70
    """Internal error; EX_SOFTWARE of sysexits.h."""
    INTERRUPTED = 130
    """SIGINT (Ctrl-C), or a signal after which the command saved its state. SIGTERM with nothing to save: 143."""


SUMMARY = (
    "Exit codes: 0 success, 1 error, 2 wrong usage, 3 md stopped at its threshold or reproduce found different "
    "numbers, 4 md exploded, 70 bug, 130 interrupted (143 by SIGTERM with nothing to save)."
)
