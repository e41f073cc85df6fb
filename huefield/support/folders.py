"""Folders for results, which are removed if there are no results."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huefield.support.cleanup import cleaned_up_unless_finished
from huefield.support.files import LOCK, require_writable


@contextmanager
def folder_for_results(folder: Path) -> Iterator[None]:
    """Create a folder to write into while the block runs; raise ``OSError`` at once if that is not possible.

    If the block fails, folders that were created here are removed, unless they contain more than a lock.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]

    def clean() -> None:
        if folder in made and folder.exists() and [path.name for path in folder.iterdir()] == [LOCK]:
            (folder / LOCK).unlink()
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()

    with cleaned_up_unless_finished(clean):
        require_writable(folder)
        yield
