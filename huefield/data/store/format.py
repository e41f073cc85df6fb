"""The format of the packed store.

``NAME.hues`` is a folder. Each array (column) is one file ``COLUMN.bin`` of little-endian numbers without a header;
``COLUMN.crc`` has the CRC-32 of each 64 KiB of it. ``manifest.json`` has the lengths and types of the columns and the
SHA-256 of each ``.crc`` file, of ``provenance.json`` and of itself. ``faults.txt`` lists bad frames.

| rows | columns |
|---|---|
| structures | ``energy``, ``has_energy``, ``has_forces``, ``has_stress``, ``cells``, ``pbc``, ``stress`` |
| structures and one more | ``starts``, the row of the first atom of each |
| structures | ``group`` and ``source`` (numbers of names), ``frame`` (number in the source) |
| structures | ``baseline_energy``, ``baseline_stress``, ``baseline_known``, ``baseline_has_stress`` |
| atoms, those of a structure together | ``atomic_numbers``, ``positions``, ``forces``, ``baseline_forces`` |
| bytes of UTF-8 | ``group_names``, ``source_names`` |
| names and one more | ``group_starts``, ``source_starts``, the first byte of each name |

``cells``, ``pbc``, ``stress``, ``forces`` and those of a baseline exist only if a structure has them; otherwise they
count as zero.
"""

import hashlib
import json
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

FORMAT = "huefield-store"
VERSION = 1
SUFFIX = ".hues"
MANIFEST = "manifest.json"
CHUNK_BYTES = 65_536


class StoreError(HuefieldError):
    """A store cannot be used; the message names the file, the problem and the cure."""


class ColumnInfo(FrozenConfig):
    """Type, size and checksum of a column."""

    dtype: str
    row: tuple[int, ...]
    rows: int = Field(ge=0)
    crc_sha256: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.row, dtype=int))


class ColumnSpec(NamedTuple):
    """Type and shape of a column; ``real`` stands for the precision of the store."""

    name: str
    dtype: str
    row: tuple[int, ...] = ()
    per: str = "structure"
    optional: bool = False


COLUMNS = {
    spec.name: spec
    for spec in (
        ColumnSpec("starts", "<i8"),
        ColumnSpec("atomic_numbers", "|u1", (), "atom"),
        ColumnSpec("positions", "real", (3,), "atom"),
        ColumnSpec("forces", "real", (3,), "atom", optional=True),
        ColumnSpec("energy", "<f8"),
        ColumnSpec("has_energy", "|b1"),
        ColumnSpec("has_forces", "|b1"),
        ColumnSpec("has_stress", "|b1"),
        ColumnSpec("cells", "<f8", (3, 3), optional=True),
        ColumnSpec("pbc", "|b1", (3,), optional=True),
        ColumnSpec("stress", "<f8", (3, 3), optional=True),
        ColumnSpec("baseline_energy", "<f8", optional=True),
        ColumnSpec("baseline_forces", "real", (3,), "atom", optional=True),
        ColumnSpec("baseline_stress", "<f8", (3, 3), optional=True),
        ColumnSpec("baseline_known", "|b1", optional=True),
        ColumnSpec("baseline_has_stress", "|b1", optional=True),
        ColumnSpec("group", "<i4"),
        ColumnSpec("source", "<i4"),
        ColumnSpec("frame", "<i8"),
        ColumnSpec("group_names", "|u1", (), "name"),
        ColumnSpec("group_starts", "<i8", (), "name"),
        ColumnSpec("source_names", "|u1", (), "name"),
        ColumnSpec("source_starts", "<i8", (), "name"),
    )
}


BASELINE = "baseline_"
"""Prefix of columns with the fields of :class:`~huefield.core.structure.BaselineColumns`."""


class SourceInfo(FrozenConfig):
    """A file that a store was made from."""

    path: str
    bytes: int
    modified_ns: int
    reader: dict[str, Any] | None = Field(None, description="configuration of the reader; None for a store")
    official_parts: dict[str, str] = Field({}, description="part of each formula in the official split, if it has one")


class Provenance(FrozenConfig):
    """Sources and settings of a conversion: stores with the same provenance are identical, bit for bit."""

    huefield: str = Field(description="version that converted")
    precision: str
    sources: tuple[SourceInfo, ...]


class Manifest(FrozenConfig):
    """Contents of a store."""

    format: str = FORMAT
    version: int = VERSION
    structures: int = Field(ge=0)
    atoms: int = Field(ge=0)
    faults: int = Field(0, ge=0, description="frames that could not be used")
    left_out: int = Field(0, ge=0, description="structures that a reader left out by its own rules")
    precision: str = Field(pattern="^float(32|64)$")
    chunk_bytes: int = Field(CHUNK_BYTES, gt=0)
    columns: dict[str, ColumnInfo]
    provenance_sha256: str


class ReadingPosition(FrozenConfig):
    """How far the sources have been read: the number of a source, and counts of its structures and faults so far."""

    source: int = 0
    structures: int = 0
    faults: int = 0
    rules: int = Field(0, description="how often its reader reported structures that it left out")


class Journal(FrozenConfig):
    """A state in which all files are consistent."""

    structures: int
    atoms: int
    faults: int
    faults_bytes: int
    left_out: int
    position: ReadingPosition
    column_bytes: dict[str, int]


def manifest_digest(content: dict[str, Any]) -> str:
    """SHA-256 of a manifest without its own checksum."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
