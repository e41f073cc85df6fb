"""Event files, read back by hand."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from huefield.training.tensorboard import TensorBoard, crc32c, masked_crc


def records(path: Path) -> Iterator[bytes]:
    content, place = path.read_bytes(), 0
    while place < len(content):
        length, length_crc = struct.unpack_from("<QI", content, place)
        payload = content[place + 12 : place + 12 + length]
        (payload_crc,) = struct.unpack_from("<I", content, place + 12 + length)
        assert length_crc == masked_crc(content[place : place + 8])
        assert payload_crc == masked_crc(payload)
        yield payload
        place += 16 + length


def whole(content: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = content[place]
        value, place, shift = value | (byte & 0x7F) << shift, place + 1, shift + 7
        if byte < 0x80:
            return value, place


def fields(message: bytes) -> list[tuple[int, Any]]:
    """Numbers and values of the fields of a message."""
    found, place = [], 0
    while place < len(message):
        key, place = whole(message, place)
        value: Any
        match key & 7:
            case 0:
                value, place = whole(message, place)
            case 1:
                value, place = struct.unpack_from("<d", message, place)[0], place + 8
            case 2:
                length, place = whole(message, place)
                value, place = message[place : place + length], place + length
            case 5:
                value, place = struct.unpack_from("<f", message, place)[0], place + 4
        found.append((key >> 3, value))
    return found


def scalars(path: Path) -> dict[tuple[str, int], float]:
    """All scalars of a file by tag and step."""
    found = {}
    for payload in list(records(path))[1:]:
        event = dict(fields(payload))
        for _, value in fields(event[5]):
            entry = dict(fields(value))
            found[entry[1].decode(), event[2]] = entry[2]
    return found


@pytest.mark.parametrize(
    ("content", "crc"), [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)]
)
def test_crc_has_the_published_check_values(content: bytes, crc: int) -> None:
    assert crc32c(content) == crc


def test_scalars_of_each_member_are_read_back(tmp_path: Path) -> None:
    at = {"stage": 0, "kind": "nll", "time": 1.5e9}
    with TensorBoard(tmp_path) as board:
        board.write("steps", **at, step=100, total_steps=300, loss=np.array([1.5, -2.0]), gamma=np.array([3.0, 4.0]))
        board.write("rollback", **at, step=100, total_steps=300, to_step=0, members=np.array([1]))
        board.write(
            "validation", **at, step=7, total_steps=10**7, improved=np.array([True]), nll=np.array([np.nan, 1e99])
        )
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("events.out.tfevents.")
    first = dict(fields(next(records(path))))
    assert first[3] == b"brain.Event:2"
    assert [dict(fields(r)).get(1) for r in records(path)][1:] == [1.5e9, 1.5e9]
    assert scalars(path) == {
        ("steps/loss/member-0", 300): 1.5,
        ("steps/loss/member-1", 300): -2.0,
        ("steps/gamma/member-0", 300): 3.0,
        ("steps/gamma/member-1", 300): 4.0,
        ("validation/nll/member-1", 10**7): np.inf,
    }


def test_a_resumed_run_writes_another_file(tmp_path: Path) -> None:
    for _ in range(2):
        with TensorBoard(tmp_path):
            pass
    assert len(list(tmp_path.iterdir())) == 2
