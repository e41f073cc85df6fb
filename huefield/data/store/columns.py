"""Writing one column of a store, with its checksums; :mod:`huefield.data.store.format` has the format."""

import hashlib
import os
import zlib
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from huefield.data.store.format import CHUNK_BYTES, ColumnInfo, StoreError

WRITE_BYTES = 1_048_576
"""What is gathered of a column before it is written."""


class ColumnWriter:
    """Appends to a column and to its checksums; cuts both to ``size`` bytes of the column first."""

    def __init__(self, file: Path, dtype: np.dtype[Any], size: int = 0) -> None:
        self.size, self.dtype = size, dtype
        self._file, self._pending = file, bytearray()
        self._data = open_behind(file.with_suffix(".bin"), size)
        try:
            self._sums = open_behind(file.with_suffix(".crc"), size // CHUNK_BYTES * 4)
        except BaseException:
            self._data.close()
            raise
        self._data.seek(size // CHUNK_BYTES * CHUNK_BYTES)
        tail = self._data.read()
        self._sum, self._filled = zlib.crc32(tail), len(tail)

    def append(self, array: Shaped[np.ndarray, "..."]) -> None:
        """Add rows."""
        content = np.ascontiguousarray(array, self.dtype)
        self._pending += content.tobytes()
        self.size += content.nbytes
        if len(self._pending) >= WRITE_BYTES:
            self.flush()

    def append_zeros(self, num_bytes: int) -> None:
        """Add zeros, a part at a time."""
        for first in range(0, num_bytes, WRITE_BYTES):
            self.append(np.zeros(min(WRITE_BYTES, num_bytes - first), np.uint8).view(self.dtype))

    def flush(self) -> None:
        """Hand everything to the system."""
        content = bytes(self._pending)
        write_all(self._data, content)
        sums, first = [], 0
        while first < len(content):
            part = content[first : first + CHUNK_BYTES - self._filled]
            self._sum, self._filled, first = zlib.crc32(part, self._sum), self._filled + len(part), first + len(part)
            if self._filled == CHUNK_BYTES:
                sums.append(self._sum)
                self._sum = self._filled = 0
        write_all(self._sums, np.array(sums, "<u4").tobytes())
        self._pending.clear()

    def sync(self) -> None:
        """Have everything on the disk."""
        self.flush()
        os.fsync(self._data.fileno())
        os.fsync(self._sums.fileno())

    def finish(self, row: tuple[int, ...]) -> ColumnInfo:
        """End the column; nothing can be added."""
        self.flush()
        write_all(self._sums, np.array([self._sum] if self._filled else [], "<u4").tobytes())
        self.sync()
        digest = hashlib.sha256(self._file.with_suffix(".crc").read_bytes()).hexdigest()
        info = ColumnInfo(dtype=self.dtype.str, row=row, rows=0, crc_sha256=digest)
        return info.model_copy(update={"rows": self.size // info.row_bytes})

    def close(self) -> None:
        """Let go of the files."""
        self._data.close()
        self._sums.close()


def open_behind(file: Path, size: int) -> FileIO:
    """Open a file for writing behind its first ``size`` bytes, which must be there."""
    file.touch()
    opened = FileIO(file, "r+")
    found = os.fstat(opened.fileno()).st_size
    if found < size:
        opened.close()
        raise StoreError(f"{file} has {found} bytes, but the journal says {size}: start again without resuming")
    opened.truncate(size)
    opened.seek(size)
    return opened


def write_all(file: FileIO, content: bytes) -> None:
    """Write everything; an error names the file."""
    view = memoryview(content)
    while view:
        try:
            view = view[file.write(view) :]
        except OSError as error:
            error.filename = str(file.name)
            raise
