"""Reading a packed store through memory maps; :mod:`huefield.data.store.format` has the format.

Opening reads the manifest and compares the lengths of the files. Each chunk of a file is verified once, when it is
first read.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Shaped
from pydantic import ValidationError

from huefield.core.structure import BaselineColumns, Block, Structure
from huefield.data.store.columns import REMEDY, ColumnReader, PageBudget, read_bytes
from huefield.data.store.format import (
    BASELINE,
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


class Origin(NamedTuple):
    """The file that a structure came from, and its number in it."""

    source: str
    frame: int


class Store:
    """Structures in a folder, read on demand. :class:`StoreWriter` makes one."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        budget = PageBudget()
        self._columns = {
            name: ColumnReader(path / name, info, manifest.chunk_bytes, budget, self._describe(COLUMNS[name]))
            for name, info in manifest.columns.items()
        }
        self._name = lru_cache(4096)(self._read_name)

    @classmethod
    def open(cls, path: str | Path) -> "Store":
        """Open a store, in a time that does not depend on its size."""
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

        The source of the block is the store and its frames are these numbers, so that messages refer to the store.
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
        columns: dict[str, Any] = {name: rows(name) for name in (*arrays, "stress", "has_stress")}
        if f"{BASELINE}known" in self._columns:
            columns["baseline"] = BaselineColumns(
                **{each.name: rows(BASELINE + each.name) for each in fields(BaselineColumns)}
            )
        return Block(
            sizes=stop - first,
            groups=tuple(names[i] for i in inverse),
            frames=index,
            source=str(self.path),
            **columns,
        )

    def blocks(self, size: int = 4096) -> Iterator[Block]:
        """All structures in order, ``size`` at a time."""
        for first in range(0, len(self), size):
            yield self.block(np.arange(first, min(first + size, len(self))))

    def column(self, name: str) -> Shaped[np.ndarray, "..."]:
        """A whole column as a read-only view; the first use reads and verifies all of it."""
        if name not in COLUMNS:
            raise KeyError(f"a store has no column {name!r}; there are {', '.join(COLUMNS)}")
        if name in self._columns:
            return self._columns[name].all()
        spec = COLUMNS[name]
        rows = self.manifest.atoms if spec.per == "atom" else len(self)
        return np.broadcast_to(np.zeros((), self._dtype(spec)), (rows, *spec.row))

    def origin(self, index: int) -> Origin:
        """The origin of a structure."""
        row = self._checked_indices(np.array([index]))
        source = self._name("source", int(self._columns["source"].take(row)[0]))
        return Origin(source, int(self._columns["frame"].take(row)[0]))

    @cached_property
    def provenance(self) -> Provenance:
        """The sources of the store and the settings of its conversion."""
        file = self.path / "provenance.json"
        text = read_bytes(file)
        if hashlib.sha256(text).hexdigest() != self.manifest.provenance_sha256:
            raise StoreError(
                f"{file} is damaged: its SHA-256 is not the one in the manifest; convert the sources again"
            )
        return Provenance.model_validate_json(text)

    def verify(self) -> None:
        """Read and verify everything."""
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
        """A function that names the structures that a range of rows belongs to."""

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
    """Read and verify the manifest of a store."""
    file = folder / MANIFEST
    if folder.is_file():
        raise StoreError(f"{folder} is a file, but a store is a folder: make one with `huefield data convert`")
    if not folder.is_dir():
        raise StoreError(f"there is no store at {folder}" + _advice(folder))
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
        raise StoreError(f"{file} is damaged: its SHA-256 is wrong; convert the sources again")
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        raise StoreError(explain(error, str(file))) from error


def _advice(folder: Path) -> str:
    """Advice after an interrupted conversion; completes a message."""
    if (replaced_path(folder) / MANIFEST).is_file():
        return (
            f": a conversion that replaces it was interrupted, and the store is at {replaced_path(folder)}; run the "
            "same `convert` again, which moves it back first, or move it back yourself"
        )
    if partial_path(folder).is_dir():
        return f"; an unfinished conversion is at {partial_path(folder)}: run the same `convert` again to finish it"
    return ""


def require_column(folder: Path, name: str, info: ColumnInfo, manifest: Manifest) -> None:
    """Raise unless the files of a column agree with the manifest."""
    if name not in COLUMNS:
        raise StoreError(f"{folder}: unknown column {name!r} in manifest.json; known are {', '.join(COLUMNS)}")
    spec = COLUMNS[name]
    expected_type = np.dtype(manifest.precision if spec.dtype == "real" else spec.dtype).newbyteorder("<").str
    if (info.dtype, info.row) != (expected_type, spec.row):
        raise StoreError(
            f"{folder}: column {name} is {info.dtype} {info.row}, not {expected_type} {spec.row}; {REMEDY}"
        )
    size = info.rows * info.row_bytes
    for file, expected in ((f"{name}.bin", size), (f"{name}.crc", -(-size // manifest.chunk_bytes) * 4)):
        try:
            found = os.stat(folder / file).st_size
        except FileNotFoundError:
            raise StoreError(f"{folder / file} is missing; {REMEDY}") from None
        if found != expected:
            raise StoreError(
                f"{folder / file} has {found} bytes instead of {expected}: it was truncated or changed; {REMEDY}"
            )
