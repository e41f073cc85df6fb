"""Removal of unfinished results, whether a block fails or the process has to end in the middle of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_pending: dict[object, Callable[[], None]] = {}
"""Clean-up functions of open blocks; a process has one set of temporary files."""


@contextmanager
def cleaned_up_unless_finished(clean: Callable[[], None]) -> Iterator[None]:
    """Call ``clean`` if the block raises, or if :func:`clean_up` is called in it."""
    key = object()
    _pending[key] = clean
    try:
        yield
    except BaseException:
        clean()
        raise
    finally:
        del _pending[key]


def clean_up() -> None:
    """Clean up after all open blocks, innermost first, from any thread: the process is about to end."""
    for clean in reversed(list(_pending.values())):
        with suppress(Exception):
            clean()
