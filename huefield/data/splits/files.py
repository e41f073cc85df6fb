"""Splits from files: our own, and lists of indices or names that others wrote."""

import json
from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Int
from pydantic import ValidationError

from huefield.data.splits.splits import Split, SplitError, SplitFile, SplitOrigin, official_split
from huefield.support.config import explain


def split_from_file(path: str | Path, n: int | None = None) -> Split:
    """Read a split from a file.

    The file is JSON (written by :meth:`Split.save`, or lists of indices from 0 by part name), npz (arrays of indices by
    part name), or txt (the name of a part on each line, one line per structure, empty for a structure in no part).

    Args:
        path: the file.
        n: number of structures; None to take it from the file, if it has it.
    """
    path = Path(path)
    readers = {".json": _read_json, ".npz": _read_npz, ".txt": _read_names}
    try:
        if path.suffix not in readers:
            raise SplitError(f"a split file ends in one of {list(readers)}, not in {path.suffix!r}")
        split = readers[path.suffix](path, n)
        if n not in (None, split.num_structures):
            raise SplitError(f"the split has {split.num_structures} structures, but the data have {n}")
    except SplitError as error:
        raise SplitError(f"{path}: {error}") from None
    return split


def _from_lists(parts: Mapping[str, Int[np.ndarray, " _"]], n: int | None) -> Split:
    if n is None:
        raise SplitError("the file has indices, but not the number of structures: pass n")
    return Split(parts, n, SplitOrigin(method="file"))


def _read_json(path: Path, n: int | None) -> Split:
    try:
        content = json.loads(path.read_bytes())
        ours = isinstance(content, dict) and "format" in content
        wrapped = content if ours else {"num_structures": n or 0, "origin": {"method": "file"}, "parts": content}
        file = SplitFile.model_validate(wrapped)
    except ValidationError as error:
        raise SplitError("not a split:\n" + explain(error, path.name)) from None
    except (ValueError, RecursionError) as error:
        raise SplitError(f"not JSON, or cut off ({error})") from None
    parts = {name: np.array(part, np.int64) for name, part in file.parts.items()}
    return Split(parts, file.num_structures, file.origin) if ours else _from_lists(parts, n)


def _read_npz(path: Path, n: int | None) -> Split:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            parts = dict(arrays)
    except (ValueError, TypeError, AttributeError, EOFError, BadZipFile) as error:
        raise SplitError(f"not an npz file of index arrays, or cut off ({error})") from None
    return _from_lists(parts, n)


def _read_names(path: Path, n: int | None) -> Split:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise SplitError(f"not a text file ({error})") from None
    split = official_split([line.strip() for line in lines])
    return Split(split.parts, split.num_structures, SplitOrigin(method="file"))
