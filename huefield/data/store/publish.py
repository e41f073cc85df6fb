"""Publishing a finished store without a moment at which the old store could be lost.

Linux exchanges two folders in one step on most file systems. Elsewhere the old store is first moved to
``NAME.hues.replaced``; if the process ends just then, the next writer moves it back (:func:`restore_replaced`).
"""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from huefield.data.store.format import COLUMNS, MANIFEST, StoreError

OUR_FILES = frozenset(
    {f"{name}{suffix}" for name in COLUMNS for suffix in (".bin", ".crc")}
    | {"journal.json", "provenance.json", MANIFEST, "faults.txt"}
)
AT_WORKING_FOLDER = -100
"""``AT_FDCWD`` of Linux: relative paths start at the working folder."""
EXCHANGE = 2
"""``RENAME_EXCHANGE`` of Linux."""


def partial_path(dest: Path) -> Path:
    """The folder of a store while it is written."""
    return dest.with_name(dest.name + ".partial")


def replaced_path(dest: Path) -> Path:
    """The folder of an old store while a new one replaces it, if the two cannot be exchanged."""
    return dest.with_name(dest.name + ".replaced")


def publish(partial: Path, dest: Path) -> None:
    """Move a finished store to its destination, and remove the store that it replaces."""
    old = replaced_path(dest)
    if not dest.exists():
        partial.rename(dest)
    elif exchange(partial, dest):
        partial.rename(old)
    else:
        dest.rename(old)
        try:
            partial.rename(dest)
        except BaseException:
            old.rename(dest)
            raise
    _sync(dest.parent)
    if old.exists():
        with suppress(OSError, StoreError):  # the new store is published; the next writer tries again
            remove_store(old)


def restore_replaced(dest: Path) -> None:
    """Clean up after an interrupted replacement: move the old store back, or remove it if the new one is there."""
    old = replaced_path(dest)
    if not old.exists():
        return
    require_ours(old)
    if dest.exists() or not (old / MANIFEST).exists():
        remove_store(old)
    else:
        old.rename(dest)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; return whether the system could."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # not Linux, or an old one
        return False
    paths = (AT_WORKING_FOLDER, os.fsencode(one), AT_WORKING_FOLDER, os.fsencode(other))
    return rename(*paths, EXCHANGE) == 0


def require_ours(folder: Path) -> None:
    """Raise if a folder holds a file that no conversion wrote, so that no file of the user is ever removed."""
    found = {file.name for file in folder.iterdir()} - OUR_FILES
    foreign = sorted(name for name in found if not name.startswith("."))
    if foreign:
        raise StoreError(f"{folder} holds {foreign[0]!r}, which no conversion wrote: move that file away")


def remove_store(folder: Path) -> None:
    """Remove a store, the manifest first: without it the rest is not taken for a store."""
    require_ours(folder)
    (folder / MANIFEST).unlink(missing_ok=True)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def _sync(folder: Path) -> None:
    """Write the entries of a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
