"""Reading a packed store: only what is asked for is read, and it is checked when it is.

:mod:`huefield.data.store.format` has the format. The files are mapped into memory. Opening reads the manifest and looks
at the lengths of the files, nothing else; a part of a file is checked when it is first read, and never again.
"""

import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from pydantic import ValidationError

from huefield.core.structure import Block, Structure, row_ranges
from huefield.data.store.format import (
    COLUMNS,
    FORMAT,
    MANIFEST,
    SUFFIX,
    VERSION,
    ColumnInfo,
    ColumnSpec,
    Manifest,
    Provenance,
    StoreError,
    manifest_digest,
)
from huefield.data.store.publish import partial_path, replaced_path
from huefield.support.config import explain

RESIDENT_BYTES = 16_777_216
"""How much of a store may be mapped and read before its pages are given back."""
MEND = "copy the store again or convert its sources again"


class PageBudget:
    """Gives mapped pages back now and then, so that reading all of a store does not make the process as large as it."""

    def __init__(self) -> None:
        self._columns: dict[mmap.mmap, Bool[np.ndarray, " chunks"]] = {}
        self._mapped_bytes = 0

    def add(self, pages: mmap.mmap, mapped: Bool[np.ndarray, " chunks"]) -> None:
        """Watch over a file, of which ``mapped`` says what is in memory."""
        self._columns[pages] = mapped

    def spend(self, num_bytes: int) -> None:
        """Note that so much is mapped. Pages that are given back stay in the system's cache, and arrays stay valid."""
        self._mapped_bytes += num_bytes
        if self._mapped_bytes > RESIDENT_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            for pages, mapped in self._columns.items():
                pages.madvise(mmap.MADV_DONTNEED)
                mapped[:] = False
            self._mapped_bytes = num_bytes


class Column:
    """One array of a store. Each part of its file is checked when it is first read."""

    def __init__(
        self, file: Path, info: ColumnInfo, chunk_bytes: int, budget: PageBudget, describe: Callable[[int, int], str]
    ) -> None:
        self._file, self._info, self._chunk, self._budget, self._describe = file, info, chunk_bytes, budget, describe
        self._width = info.row_bytes
        self._checked = np.zeros(-(-info.rows * info.row_bytes // chunk_bytes), bool)
        self._mapped = np.zeros_like(self._checked)

    @cached_property
    def raw(self) -> Shaped[np.ndarray, "..."]:
        """The array, not checked."""
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
            raise StoreError(f"{file} is damaged: its SHA-256 is not the one in the manifest; {MEND}")
        return np.frombuffer(content, "<u4").astype(np.int64)

    def all(self) -> Shaped[np.ndarray, "..."]:
        """The whole array, checked."""
        self._read(np.flatnonzero(~self._checked))
        return self.raw

    def take(self, rows: Int[np.ndarray, " n"]) -> Shaped[np.ndarray, "..."]:
        """A copy of some rows."""
        self._touch(rows, rows + 1)
        return self.raw[rows]

    def take_ranges(self, first: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"]) -> Shaped[np.ndarray, "..."]:
        """A copy of the rows from each ``first`` to before its ``stop``."""
        self._touch(first, stop)
        if len(first) and np.array_equal(first[1:], stop[:-1]):
            return self.raw[first[0] : stop[-1]].copy()
        return self.raw[row_ranges(first, stop)]

    def _touch(self, first: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"]) -> None:
        """Check what was not, and count pages: the system maps those around the one asked for along with it."""
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
                f"({owners}): its CRC-32 is not the stored one; {MEND}"
            )
        self._checked[chunk] = True


def read_bytes(file: Path) -> bytes:
    """Read a small file of a store."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error.strerror}; {MEND}") from error


class Origin(NamedTuple):
    """Where a structure came from."""

    source: str
    frame: int


class Store:
    """Structures in a folder, of which only what is asked for is read. Made by :class:`StoreWriter`."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        budget = PageBudget()
        self._columns = {
            name: Column(path / name, info, manifest.chunk_bytes, budget, self._describe(COLUMNS[name]))
            for name, info in manifest.columns.items()
        }
        self._name = lru_cache(4096)(self._read_name)

    @classmethod
    def open(cls, path: str | Path) -> "Store":
        """Open a store; the time does not depend on its size."""
        folder = Path(path)
        manifest = read_manifest(folder)
        for name, info in manifest.columns.items():
            require_column(folder, name, info, manifest)
        return cls(folder, manifest)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store.open, (self.path,)

    def __len__(self) -> int:
        return self.manifest.structures

    def __getitem__(self, index: int) -> Structure:
        return self.block(np.array([index]))[0]

    def __iter__(self) -> Iterator[Structure]:
        return (structure for block in self.blocks() for structure in block)

    def block(self, indices: Int[np.ndarray, " n"]) -> Block:
        """The structures with these numbers, in this order; negative numbers count from the end.

        Its source is the store and its frames are the numbers, so that messages about it point here.
        """
        index = self._checked_indices(indices)
        starts = self._columns["starts"]
        first, stop = starts.take(index), starts.take(index + 1)
        atoms = int((stop - first).sum())
        groups, inverse = np.unique(self._columns["group"].take(index), return_inverse=True)
        names = [self._name("group", int(group)) for group in groups]

        def rows(name: str) -> Shaped[np.ndarray, "..."]:
            spec = COLUMNS[name]
            per_atom = spec.per == "atom"
            if name not in self._columns:
                return np.zeros(((atoms if per_atom else len(index)), *spec.row), self._dtype(spec))
            return self._columns[name].take_ranges(first, stop) if per_atom else self._columns[name].take(index)

        arrays = ("atomic_numbers", "positions", "cells", "pbc", "energy", "has_energy", "forces", "has_forces")
        return Block(
            sizes=stop - first,
            **{name: rows(name) for name in (*arrays, "stress", "has_stress")},
            groups=tuple(names[i] for i in inverse),
            frames=index,
            source=str(self.path),
        )

    def blocks(self, size: int = 4096) -> Iterator[Block]:
        """All structures in their order, ``size`` at a time."""
        for first in range(0, len(self), size):
            yield self.block(np.arange(first, min(first + size, len(self))))

    def column(self, name: str) -> Shaped[np.ndarray, "..."]:
        """A whole column as a read-only view; its first use reads and checks all of it."""
        if name not in COLUMNS:
            raise KeyError(f"a store has no column {name!r}; there are {', '.join(COLUMNS)}")
        if name in self._columns:
            return self._columns[name].all()
        spec = COLUMNS[name]
        rows = self.manifest.atoms if spec.per == "atom" else len(self)
        return np.broadcast_to(np.zeros((), self._dtype(spec)), (rows, *spec.row))

    @property
    def starts(self) -> Int[np.ndarray, " rows"]:
        """Row of the first atom of each structure, and behind the last one the number of atoms."""
        return self.column("starts")

    @cached_property
    def sizes(self) -> Int[np.ndarray, " n"]:
        """Atoms of each structure."""
        return np.diff(self.starts)

    @property
    def energy(self) -> Float[np.ndarray, " n"]:
        """Energies; zero where there is none."""
        return self.column("energy")

    @property
    def has_energy(self) -> Bool[np.ndarray, " n"]:
        """Which structures have an energy."""
        return self.column("has_energy")

    @property
    def has_forces(self) -> Bool[np.ndarray, " n"]:
        """Which structures have forces."""
        return self.column("has_forces")

    @property
    def has_stress(self) -> Bool[np.ndarray, " n"]:
        """Which structures have a stress."""
        return self.column("has_stress")

    @property
    def group_index(self) -> Int[np.ndarray, " n"]:
        """Number of the group of each structure, for :attr:`group_names`."""
        return self.column("group")

    @property
    def group_names(self) -> list[str]:
        """All groups, in the order in which they came."""
        return [self._name("group", i) for i in range(self.manifest.columns["group_starts"].rows - 1)]

    def group(self, index: int) -> str:
        """The group of a structure; empty where nothing was said."""
        return self._name("group", int(self._columns["group"].take(self._checked_indices(np.array([index])))[0]))

    def origin(self, index: int) -> Origin:
        """The file that a structure came from, and its number in it."""
        row = self._checked_indices(np.array([index]))
        source = self._name("source", int(self._columns["source"].take(row)[0]))
        return Origin(source, int(self._columns["frame"].take(row)[0]))

    @cached_property
    def provenance(self) -> Provenance:
        """What the store was made from."""
        file = self.path / "provenance.json"
        text = read_bytes(file)
        if hashlib.sha256(text).hexdigest() != self.manifest.provenance_sha256:
            raise StoreError(
                f"{file} is damaged: its SHA-256 is not the one in the manifest; convert the sources again"
            )
        return Provenance.model_validate_json(text)

    def verify(self) -> None:
        """Read and check everything."""
        for column in self._columns.values():
            column.all()
        _ = self.provenance

    def _checked_indices(self, indices: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        index = np.asarray(indices, np.int64)
        outside = (index < -len(self)) | (index >= len(self))
        if outside.any():
            raise IndexError(f"structure {index[outside][0]} is out of range: {self.path} has {len(self)}")
        return np.where(index < 0, index + len(self), index)

    def _dtype(self, spec: ColumnSpec) -> np.dtype[Any]:
        return np.dtype(self.manifest.precision if spec.dtype == "real" else spec.dtype)

    def _read_name(self, kind: str, number: int) -> str:
        starts = self._columns[f"{kind}_starts"].take(np.array([number, number + 1]))
        return self._columns[f"{kind}_names"].take_ranges(starts[:1], starts[1:]).tobytes().decode()

    def _describe(self, spec: ColumnSpec) -> Callable[[int, int], str]:
        """A function that says what some rows of a column belong to."""

        def structures(first: int, stop: int) -> str:
            if spec.per == "name":
                return f"names of the {spec.name.split('_')[0]}s"
            if spec.per == "atom":
                starts = self._columns["starts"].raw
                first = int(np.searchsorted(starts, first, "right")) - 1
                stop = int(np.searchsorted(starts, stop, "left"))
            return f"structures {first} to {min(stop, len(self)) - 1}"

        return structures


def is_store(path: Path) -> bool:
    """Whether a path is a store, or named like one: ``Store.open`` then says what is wrong with it."""
    return path.suffix == SUFFIX or (path / MANIFEST).is_file()


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a store."""
    file = folder / MANIFEST
    if not folder.is_dir():
        raise StoreError(f"there is no store at {folder}" + _what_there_is(folder))
    if not file.is_file():
        raise StoreError(
            f"{folder} is not a huefield store: it has no manifest.json; make one with `huefield data convert`"
        )
    try:
        content = json.loads(read_bytes(file))
    except ValueError as error:
        raise StoreError(f"{file} is damaged ({error}); convert the sources again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise StoreError(f"{folder} is not a huefield store: the format in manifest.json is {found!r}, not {FORMAT!r}")
    if content.get("version") != VERSION:
        raise StoreError(
            f"{folder} has version {content.get('version')!r} of the format, this huefield reads version {VERSION}; "
            "use the huefield that wrote it (see provenance.json), or convert the sources again"
        )
    if content.pop("sha256", None) != manifest_digest(content):
        raise StoreError(f"{file} is damaged: its SHA-256 does not agree with it; convert the sources again")
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        raise StoreError(explain(error, str(file))) from error


def _what_there_is(folder: Path) -> str:
    """What conversions that were cut off have left instead of a store."""
    if (replaced_path(folder) / MANIFEST).is_file():
        return (
            f": its replacement was cut off, and it is at {replaced_path(folder)}; run the same `convert` again, which "
            "moves it back first, or move it back yourself"
        )
    if partial_path(folder).is_dir():
        return f"; an unfinished conversion is at {partial_path(folder)}: run the same `convert` again to end it"
    return ""


def require_column(folder: Path, name: str, info: ColumnInfo, manifest: Manifest) -> None:
    """Raise unless the files of a column are what the manifest says."""
    if name not in COLUMNS:
        raise StoreError(f"{folder}: unknown column {name!r} in manifest.json; known are {', '.join(COLUMNS)}")
    spec = COLUMNS[name]
    expected_type = np.dtype(manifest.precision if spec.dtype == "real" else spec.dtype).newbyteorder("<").str
    if (info.dtype, info.row) != (expected_type, spec.row):
        raise StoreError(f"{folder}: column {name} is {info.dtype} {info.row}, not {expected_type} {spec.row}; {MEND}")
    size = info.rows * info.row_bytes
    for file, expected in ((f"{name}.bin", size), (f"{name}.crc", -(-size // manifest.chunk_bytes) * 4)):
        try:
            found = os.stat(folder / file).st_size
        except FileNotFoundError:
            raise StoreError(f"{folder / file} is missing; {MEND}") from None
        if found != expected:
            raise StoreError(
                f"{folder / file} has {found} bytes instead of {expected}: it was cut off or changed; {MEND}"
            )
