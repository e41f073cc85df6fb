"""Named arrays and metadata in one safetensors file with a checksum, the format of models and checkpoints.

The metadata have ``format`` (the kind of file), further entries of the caller, and ``sha256``, the digest of the whole
file with these 64 characters replaced by zeros. Safetensors itself does not detect flipped bits.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as format_tensors

from huefield.support.errors import HuefieldError

_BLANK = "0" * 64
LONGEST_HEADER = 100_000_000
"""Bytes of the longest header that safetensors permits."""


class TensorFileError(HuefieldError):
    """A file cannot be used; the message names the file and the reason."""


def format_file(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str], mark: str) -> bytes:
    """Content of a file with the format ``mark``. Equal arrays and metadata give equal bytes."""
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in tensors.items()}
    content = format_tensors(contiguous, {**metadata, "format": mark, "sha256": _BLANK})
    blank = _with_sorted_header(content)
    digest = hashlib.sha256(blank).hexdigest()
    return blank.replace(_digest_entry(_BLANK), _digest_entry(digest), 1)


def checked_metadata(path: Path, content: bytes, mark: str, kind: str) -> dict[str, str]:
    """Metadata of a file, after a check of its format ``mark`` and its checksum; ``kind`` names it in messages."""
    metadata, expected_size = _header(path, content, kind)
    if metadata.get("format") != mark:
        raise TensorFileError(f"{path}: not a huefield {kind}, but another safetensors file")
    if len(content) != expected_size:
        raise TensorFileError(
            f"{path}: the file is damaged: it has {len(content)} bytes but should have {expected_size}; copy it again"
        )
    digest = metadata.get("sha256", "")
    blank = content.replace(_digest_entry(digest), _digest_entry(_BLANK), 1)
    if len(digest) != len(_BLANK) or hashlib.sha256(blank).hexdigest() != digest:
        raise TensorFileError(f"{path}: the file is damaged: its content does not match its checksum; copy it again")
    return metadata


def format_of(path: Path) -> str | None:
    """The format mark of a file that :func:`format_file` made, found in its header; None for all other files."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= LONGEST_HEADER else {}
        return str(header["__metadata__"]["format"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def tensors_in(path: Path, content: bytes) -> dict[str, np.ndarray]:
    """Arrays of a file."""
    try:
        return parse_tensors(content)
    except SafetensorError as error:
        raise TensorFileError(f"{path}: the parameters cannot be read: {error}") from error


def _with_sorted_header(content: bytes) -> bytes:
    """The safetensors file with sorted header keys."""
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _digest_entry(digest: str) -> bytes:
    """The checksum as it appears in the header; inside a JSON string the quotes would be escaped."""
    return f'"sha256":"{digest}"'.encode()


def _header(path: Path, content: bytes, kind: str) -> tuple[dict[str, str], int]:
    """Metadata of a safetensors file, and the size of the file according to its header."""
    length = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + length])
        metadata = header.pop("__metadata__", {})
        "".join(metadata.values()).encode()  # raises unless every value is text
        ends = [entry["data_offsets"][1] for entry in header.values()]
        return metadata, 8 + length + max(ends, default=0)
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError):
        raise TensorFileError(
            f"{path}: not a huefield {kind}, or one that is damaged or cut off ({len(content)} bytes)"
        ) from None
