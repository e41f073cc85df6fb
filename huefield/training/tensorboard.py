"""Curves of a run for TensorBoard: event files, written without TensorBoard.

A file is a row of TFRecords, each of them: length of the payload (8 bytes, little-endian), its masked CRC-32C, the
payload, and the masked CRC-32C of that. A payload is an ``Event`` in the encoding of protocol buffers, with the fields

=====================  =======================================================
1 ``wall_time``        double, seconds since 1970
2 ``step``             whole number
3 ``file_version``     text, in the first record only
5 ``summary``          ``Value`` (field 1) of ``tag`` (1) and ``simple_value`` (2)
=====================  =======================================================

A resumed run begins another file in the same folder; TensorBoard reads them one after the other.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

VERSION = "brain.Event:2"
POLYNOMIAL = 0x82F63B78
"""Of CRC-32C (Castagnoli), bits reversed."""
MASK = 0xA282EAD8
PLACES = ("stage", "kind", "step", "total_steps", "time", "improved")
"""Values of an event that are no curves."""
VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5
"""Wire types of protocol buffers."""


class TensorBoard:
    """Writes the events of a run as scalars, one curve for each member."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        self._file = (folder / name).open("xb")
        self._append(_double(1, now) + _bytes(3, VERSION.encode()))

    def write(self, event: str, **values: Any) -> None:
        """Append the scalars of an event of the history: a number, or one for each member."""
        if event not in ("steps", "validation"):
            return
        scalars = scalars_of(event, {name: value for name, value in values.items() if name not in PLACES})
        self._append(_double(1, values["time"]) + _varint(2, values["total_steps"]) + _bytes(5, summary(scalars)))

    def _append(self, payload: bytes) -> None:
        self._file.write(record(payload))
        self._file.flush()

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def scalars_of(event: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Scalars by tag, such as ``validation/force_rmse/member-0``; a value that is NaN is left out."""
    found = {
        f"{event}/{name}/member-{member}": float(value)
        for name, members in values.items()
        for member, value in enumerate(np.atleast_1d(members))
    }
    return {tag: value for tag, value in found.items() if not np.isnan(value)}


def summary(scalars: Mapping[str, float]) -> bytes:
    """A ``Summary`` message."""
    values = (_bytes(1, tag.encode()) + _key(2, FLOAT) + _single(value) for tag, value in scalars.items())
    return b"".join(_bytes(1, value) for value in values)


def record(payload: bytes) -> bytes:
    """A TFRecord."""
    length = struct.pack("<Q", len(payload))
    return length + struct.pack("<I", masked_crc(length)) + payload + struct.pack("<I", masked_crc(payload))


def masked_crc(content: bytes) -> int:
    """CRC-32C, turned and moved, as TFRecords have it."""
    crc = crc32c(content)
    return (((crc >> 15) | (crc << 17)) + MASK) & 0xFFFFFFFF


def crc32c(content: bytes) -> int:
    """The cyclic redundancy check of Castagnoli."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(_table_entry(byte) for byte in range(256))


def _single(value: float) -> bytes:
    """Single precision; what is too large for it is infinite."""
    with np.errstate(over="ignore"):
        return np.float32(value).astype("<f4").tobytes()


def _key(field: int, wire_type: int) -> bytes:
    return _whole(field << 3 | wire_type)


def _double(field: int, value: float) -> bytes:
    return _key(field, DOUBLE) + struct.pack("<d", value)


def _varint(field: int, value: int) -> bytes:
    return _key(field, VARINT) + _whole(value)


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, BYTES) + _whole(len(content)) + content


def _whole(value: int) -> bytes:
    """Seven bits to a byte, the lowest first; all but the last have the eighth bit set."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
