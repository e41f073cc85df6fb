"""Putting a finished store in its place so that at every moment there is a store, or one that comes back by itself.

Where the system can exchange two folders in one step (Linux on most file systems) the old store is there until the new
one is. Elsewhere the old one is first moved aside, to ``NAME.hues.replaced``; should the work end just then,
:func:`restore_replaced` moves it back.
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
"""``AT_FDCWD`` of Linux: paths are meant as usual."""
EXCHANGE = 2
"""``RENAME_EXCHANGE`` of Linux."""


def partial_path(dest: Path) -> Path:
    """Where a store is while it is written."""
    return dest.with_name(dest.name + ".partial")


def replaced_path(dest: Path) -> Path:
    """Where a store is while another takes its place, if the two cannot be exchanged."""
    return dest.with_name(dest.name + ".replaced")


def publish(partial: Path, dest: Path) -> None:
    """Move a finished store to its place, and remove the one that it replaces."""
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
        with suppress(OSError, StoreError):  # the new store is in its place; the next writer tries again
            remove_store(old)


def restore_replaced(dest: Path) -> None:
    """Undo what a replacement left that was cut off: move the old store back, or remove it if the new one is there."""
    old = replaced_path(dest)
    if not old.exists():
        return
    require_ours(old)
    if dest.exists() or not (old / MANIFEST).exists():
        remove_store(old)
    else:
        old.rename(dest)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; whether the system can do that."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # not Linux, or an old one
        return False
    paths = (AT_WORKING_FOLDER, os.fsencode(one), AT_WORKING_FOLDER, os.fsencode(other))
    return rename(*paths, EXCHANGE) == 0


def require_ours(folder: Path) -> None:
    """Raise if a folder holds what no conversion wrote, so that nothing of the user's is ever removed."""
    found = {file.name for file in folder.iterdir()} - OUR_FILES
    foreign = sorted(name for name in found if not name.startswith("."))
    if foreign:
        raise StoreError(f"{folder} holds {foreign[0]!r}, which no conversion wrote: move it away")


def remove_store(folder: Path) -> None:
    """Remove a folder of ours, the manifest first: without it nobody takes the rest for a store."""
    require_ours(folder)
    (folder / MANIFEST).unlink(missing_ok=True)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def _sync(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
