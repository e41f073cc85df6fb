"""Results of a baseline in a file that grows line by line, so that an interrupted computation can be resumed."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

import numpy as np

from huefield.baselines.process import reply_of, result_of
from huefield.core.structure import BaselineResult, Structure
from huefield.support.errors import HuefieldError
from huefield.support.files import write_bytes


def key_of(structure: Structure) -> str:
    """A hash of atoms, positions and cell."""
    hasher = hashlib.sha256()
    for array, kind in ((structure.atomic_numbers, "u1"), (structure.positions, "<f8"), (structure.cell, "<f8")):
        hasher.update(np.ascontiguousarray(array, kind).tobytes())
    hasher.update(structure.pbc.tobytes())
    return hasher.hexdigest()


class ResultLog:
    """Results by structure. The first line identifies the baseline; each further line has one result."""

    def __init__(self, path: Path, identity: str) -> None:
        """Read the results of an earlier run, if there are any of the same baseline.

        Args:
            path: the file.
            identity: text that identifies the baseline and its settings.
        """
        self.path, self._identity = path, " ".join(identity.split())
        self._known: dict[str, str] = {}
        self._file: TextIOWrapper | None = None
        if path.exists():
            self._read()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, structure: Structure) -> BaselineResult | None:
        """The result for a structure; None if there is none."""
        line = self._known.get(key_of(structure))
        return None if line is None else result_of(line, len(structure), str(self.path))

    def add(self, structure: Structure, result: BaselineResult) -> None:
        """Append a result."""
        line = json.dumps(reply_of(result))
        self._known[key_of(structure)] = line
        if self._file is not None:
            self._file.write(f"{key_of(structure)} {line}\n")
            self._file.flush()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Open the file for appending, without a last line that was cut off."""
        lines = [f"{key} {line}\n" for key, line in self._known.items()]
        write_bytes(self.path, "".join([self._identity + "\n", *lines]).encode())
        with self.path.open("a", encoding="utf-8") as self._file:
            try:
                yield
            finally:
                self._file = None
                if not self._known:
                    self.path.unlink()  # nothing to resume from

    def _read(self) -> None:
        identity, *lines = self.path.read_text(encoding="utf-8").splitlines() or [""]
        if identity != self._identity:
            raise HuefieldError(
                f"{self.path} has results of another baseline ({identity[:200]}): remove it, or choose another folder"
            )
        for line in lines:
            key, _, reply = line.partition(" ")
            if _is_whole(reply):
                self._known[key] = reply


def _is_whole(reply: str) -> bool:
    """Whether a line was written to its end."""
    try:
        return isinstance(json.loads(reply), dict)
    except json.JSONDecodeError:
        return False
