"""Files of named arrays: every damage is noticed."""

from pathlib import Path

import numpy as np
import pytest

from huefield.support.tensorfile import TensorFileError, checked_metadata, format_file, format_of, tensors_in

PATH = Path("some/file")
ARRAYS = {"b.weight": np.arange(6.0).reshape(2, 3), "a": np.array(7), "empty": np.zeros((0, 2), np.float32)}
CONTENT = format_file(ARRAYS, {"position": '{"step": 3}'}, "mark")


def read(content: bytes) -> dict[str, np.ndarray]:
    checked_metadata(PATH, content, "mark", "thing")
    return tensors_in(PATH, content)


def test_what_is_written_is_read_back() -> None:
    assert checked_metadata(PATH, CONTENT, "mark", "thing")["position"] == '{"step": 3}'
    found = read(CONTENT)
    assert set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_order_and_layout_of_arrays_do_not_matter() -> None:
    turned = {name: np.array(ARRAYS[name], order="F") for name in reversed(ARRAYS)}
    assert format_file(turned, {"position": '{"step": 3}'}, "mark") == CONTENT


@pytest.mark.parametrize("bit", [0, 5, 7])
def test_a_flipped_bit_in_any_byte_is_noticed(bit: int) -> None:
    for place in range(len(CONTENT)):
        damaged = bytearray(CONTENT)
        damaged[place] ^= 1 << bit
        with pytest.raises(TensorFileError, match="some/file"):
            read(bytes(damaged))


def test_every_truncation_and_extension_is_noticed() -> None:
    for content in (*(CONTENT[:size] for size in range(len(CONTENT))), CONTENT + b"\0"):
        with pytest.raises(TensorFileError, match="some/file"):
            read(content)


def test_a_file_of_another_kind_is_told_apart() -> None:
    with pytest.raises(TensorFileError, match="not a huefield model"):
        checked_metadata(PATH, CONTENT, "other mark", "model")


@pytest.mark.parametrize(
    ("content", "expected"),
    [(CONTENT, "mark"), (CONTENT[:-1], "mark"), (b"3\n\nH 0 0 0\n", None), (b"", None), (b"\2\0\0\0\0\0\0\0[]", None)],
)
def test_the_format_is_found_without_the_arrays(content: bytes, expected: str | None, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    assert format_of(tmp_path / "file") == expected
    assert format_of(tmp_path) is None
