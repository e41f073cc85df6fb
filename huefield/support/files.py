"""Atomic writing of files, and locks of folders."""

import errno
import fcntl
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from huefield.support.cleanup import cleaned_up_unless_finished
from huefield.support.errors import HuefieldError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and move it to ``path`` when the block succeeds.

    If the block fails or the process dies, ``path`` keeps its old content. A failed block leaves no temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    with cleaned_up_unless_finished(lambda: temporary.unlink(missing_ok=True)):
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        except OSError as error:
            error.filename = str(path) if error.filename is None else error.filename
            raise


def require_writable(folder: Path) -> None:
    """Create a folder if needed, and raise ``OSError`` if files cannot be written into it."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file, but a folder is needed: choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_text(path: Path) -> str:
    """The text of a file; raises if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise HuefieldError(f"{path} is not a text file: is it the right one?") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; raises if there is none."""
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise HuefieldError(f"{path} is damaged: it is not JSON ({error}). Restore it") from None
    if not isinstance(content, dict):
        raise HuefieldError(
            f"{path} is damaged: it must be a JSON object, but is a {type(content).__name__}. Restore it"
        )
    return content


def append_bytes(file: io.FileIO, content: bytes) -> None:
    """Write all bytes to an unbuffered file, which may accept fewer at a time; an error names the file."""
    left = memoryview(content)
    while len(left):
        try:
            taken = file.write(left)
        except OSError as error:
            error.filename = str(file.name)
            raise
        if not taken:
            raise OSError(errno.EIO, "the file accepts no more bytes", str(file.name))
        left = left[taken:]


def refusal(error: OSError, path: Path) -> tuple[str, str]:
    """Reason why the system refused to write to ``path``, and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        there = next(folder for folder in path.absolute().parents if folder.exists())
        free = shutil.disk_usage(there).free / 1e6
        return f"the disk is full, or your quota is used up ({free:.1f} MB free)", "make room"
    if error.errno == errno.EFBIG:
        return "the file exceeds the size limit (see ulimit -f)", "raise the limit"
    return str(error.strerror or error), "solve this problem"


LOCK = ".lock"


class FolderInUseError(HuefieldError):
    """Another process uses a folder."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder for this process while the block runs; raise if another process has locked it."""
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUseError(
                f"another process is at work in {folder}: wait for it, or choose another folder. Where srun or mpirun "
                "starts several processes, huefield train needs --distributed, and huefield md or neb a single one"
            ) from None
        yield


def require_free(folder: Path) -> None:
    """Raise if another process has locked a folder; a folder that does not exist is free."""
    if folder.exists():
        with alone_in(folder):
            pass


@contextmanager
def leaving_no_empty(folder: Path) -> Iterator[None]:
    """If the block fails, remove a folder that it created and left empty."""
    existed = folder.exists()

    def clean() -> None:
        if not existed:
            with suppress(OSError):  # there is something in it, or another process was first
                folder.rmdir()

    with cleaned_up_unless_finished(clean):
        yield


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
