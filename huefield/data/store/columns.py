"""One column of a store: an array in a file, with a checksum for each chunk (:mod:`huefield.data.store.format`)."""

import hashlib
import mmap
import os
import zlib
from collections.abc import Callable
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

from huefield.core.structure import row_ranges
from huefield.data.store.format import CHUNK_BYTES, ColumnInfo, StoreError
from huefield.support.files import append_bytes

RESIDENT_BYTES = 16_777_216
"""Mapped bytes of a store above which its pages are released."""
WRITE_BYTES = 1_048_576
"""Bytes of a column that are collected before they are written."""
REMEDY = "copy the store again or convert its sources again"


class PageBudget:
    """Releases mapped pages from time to time, so that the process does not grow to the size of the store."""

    def __init__(self) -> None:
        self._columns: dict[mmap.mmap, Bool[np.ndarray, " chunks"]] = {}
        self._mapped_bytes = 0

    def add(self, pages: mmap.mmap, mapped: Bool[np.ndarray, " chunks"]) -> None:
        """Include a file; ``mapped`` marks the chunks that are in memory."""
        self._columns[pages] = mapped

    def spend(self, num_bytes: int) -> None:
        """Count mapped bytes. Released pages stay in the system's cache, and arrays stay valid."""
        self._mapped_bytes += num_bytes
        if self._mapped_bytes > RESIDENT_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            for pages, mapped in self._columns.items():
                pages.madvise(mmap.MADV_DONTNEED)
                mapped[:] = False
            self._mapped_bytes = num_bytes


class ColumnReader:
    """Reads a column through a memory map and verifies each chunk when it is first read.

    Args:
        file: the file without its suffix.
        info: type and size, as the manifest has them.
        chunk_bytes: bytes for each checksum.
        budget: limits the resident memory of all columns together.
        describe: names the structures that a range of rows belongs to, for messages.
    """

    def __init__(
        self, file: Path, info: ColumnInfo, chunk_bytes: int, budget: PageBudget, describe: Callable[[int, int], str]
    ) -> None:
        self._file, self._info, self._chunk, self._budget, self._describe = file, info, chunk_bytes, budget, describe
        self._width = info.row_bytes
        self._checked = np.zeros(-(-info.rows * info.row_bytes // chunk_bytes), bool)
        self._mapped = np.zeros_like(self._checked)

    @cached_property
    def raw(self) -> Shaped[np.ndarray, "..."]:
        """The whole array, not verified."""
        shape = (self._info.rows, *self._info.row)
        if not self._info.rows:
            return np.zeros(shape, self._info.dtype)
        with self._file.with_suffix(".bin").open("rb") as file:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._budget.add(pages, self._mapped)
        return np.frombuffer(pages, self._info.dtype).reshape(shape)

    @cached_property
    def _bytes(self) -> Shaped[np.ndarray, " bytes"]:
        return self.raw.reshape(-1).view(np.uint8)

    @cached_property
    def _sums(self) -> Int[np.ndarray, " chunks"]:
        file = self._file.with_suffix(".crc")
        content = read_bytes(file)
        if hashlib.sha256(content).hexdigest() != self._info.crc_sha256:
            raise StoreError(f"{file} is damaged: its SHA-256 is not the one in the manifest; {REMEDY}")
        return np.frombuffer(content, "<u4").astype(np.int64)

    def all(self) -> Shaped[np.ndarray, "..."]:
        """The whole array, verified."""
        self._read(np.flatnonzero(~self._checked))
        return self.raw

    def take(self, rows: Int[np.ndarray, " n"]) -> Shaped[np.ndarray, "..."]:
        """A copy of some rows."""
        self._touch(rows, rows + 1)
        return self.raw[rows]

    def take_ranges(self, first: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"]) -> Shaped[np.ndarray, "..."]:
        """A copy of the rows ``first[i]:stop[i]`` for each i, concatenated."""
        self._touch(first, stop)
        if len(first) and np.array_equal(first[1:], stop[:-1]):
            return self.raw[first[0] : stop[-1]].copy()
        return self.raw[row_ranges(first, stop)]

    def _touch(self, first: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"]) -> None:
        """Verify and count the chunks of some rows that are not mapped yet."""
        low, last = first * self._width // self._chunk, (stop * self._width - 1) // self._chunk
        chunks = low if np.array_equal(low, last) else row_ranges(low, last + 1)
        if not self._mapped[chunks].all():
            self._read(np.unique(chunks[~self._mapped[chunks]]))

    def _read(self, chunks: Int[np.ndarray, " c"]) -> None:
        for chunk in chunks.tolist():
            self._budget.spend(self._chunk)
            self._mapped[chunk] = True
            if not self._checked[chunk]:
                self._check(chunk)

    def _check(self, chunk: int) -> None:
        low = chunk * self._chunk
        content = self._bytes[low : low + self._chunk]
        if zlib.crc32(content.data) != self._sums[chunk]:
            owners = self._describe(low // self._width, -(-(low + len(content)) // self._width))
            raise StoreError(
                f"{self._file.with_suffix('.bin')} is damaged between bytes {low} and {low + len(content)} "
                f"({owners}): its CRC-32 is not the stored one; {REMEDY}"
            )
        self._checked[chunk] = True


class ColumnWriter:
    """Appends rows to a column, and their checksums; truncates both files to ``size`` bytes of the column first."""

    def __init__(self, file: Path, dtype: np.dtype[Any], size: int = 0) -> None:
        self.size, self.dtype = size, dtype
        self._file, self._pending = file, bytearray()
        self._data = open_at(file.with_suffix(".bin"), size)
        try:
            self._sums = open_at(file.with_suffix(".crc"), size // CHUNK_BYTES * 4)
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
        """Add zeros, in pieces of bounded size."""
        for first in range(0, num_bytes, WRITE_BYTES):
            self.append(np.zeros(min(WRITE_BYTES, num_bytes - first), np.uint8).view(self.dtype))

    def flush(self) -> None:
        """Pass everything to the operating system."""
        content = bytes(self._pending)
        append_bytes(self._data, content)
        sums, first = [], 0
        while first < len(content):
            part = content[first : first + CHUNK_BYTES - self._filled]
            self._sum, self._filled, first = zlib.crc32(part, self._sum), self._filled + len(part), first + len(part)
            if self._filled == CHUNK_BYTES:
                sums.append(self._sum)
                self._sum = self._filled = 0
        append_bytes(self._sums, np.array(sums, "<u4").tobytes())
        self._pending.clear()

    def sync(self) -> None:
        """Write everything to the disk."""
        self.flush()
        os.fsync(self._data.fileno())
        os.fsync(self._sums.fileno())

    def finish(self, row: tuple[int, ...]) -> ColumnInfo:
        """Complete the column; nothing can be added afterwards."""
        self.flush()
        append_bytes(self._sums, np.array([self._sum] if self._filled else [], "<u4").tobytes())
        self.sync()
        digest = hashlib.sha256(self._file.with_suffix(".crc").read_bytes()).hexdigest()
        info = ColumnInfo(dtype=self.dtype.str, row=row, rows=0, crc_sha256=digest)
        return info.model_copy(update={"rows": self.size // info.row_bytes})

    def close(self) -> None:
        """Close the files."""
        self._data.close()
        self._sums.close()


def read_bytes(file: Path) -> bytes:
    """Read a small file of a store."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error.strerror}; {REMEDY}") from error


def open_at(file: Path, size: int) -> FileIO:
    """Open a file for appending after its first ``size`` bytes, which must exist; the rest is cut off."""
    file.touch()
    opened = FileIO(file, "r+")
    found = os.fstat(opened.fileno()).st_size
    if found < size:
        opened.close()
        raise StoreError(f"{file} has {found} bytes, but the journal says {size}: start again with --no-resume")
    opened.truncate(size)
    opened.seek(size)
    return opened
