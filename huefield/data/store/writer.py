"""Writing a packed store: complete or absent, and resumable.

During writing the folder is ``NAME.hues.partial``. Its ``journal.json`` has the lengths of all files in the last
consistent state; a resumed conversion cuts off the rest, which a kill may have left incomplete. Memory grows with the
number of different groups and sources, not with the number of structures.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from jaxtyping import Shaped
from pydantic import ValidationError

from huefield.core.structure import BaselineColumns, Block
from huefield.data.readers.base import Fault, LeftOut
from huefield.data.store.columns import ColumnWriter, open_at
from huefield.data.store.format import (
    BASELINE,
    COLUMNS,
    MANIFEST,
    SUFFIX,
    ColumnSpec,
    Journal,
    Manifest,
    Provenance,
    ReadingPosition,
    StoreError,
    manifest_digest,
)
from huefield.data.store.publish import partial_path, publish, remove_store, require_ours, restore_replaced
from huefield.support.errors import HuefieldError
from huefield.support.files import append_bytes, refusal, write_bytes

NOTHING_YET = Journal(
    structures=0, atoms=0, faults=0, faults_bytes=0, left_out=0, position=ReadingPosition(), column_bytes={}
)


class StoreWriter:
    """Writes a store; a context manager, in which :meth:`finish` publishes the store.

    Without :meth:`finish`, everything that was appended is kept for the next writer with the same destination and
    provenance, whose :attr:`position` says where to resume.

    Args:
        dest: the folder ``NAME.hues``.
        provenance: the sources and the settings of the conversion.
        resume: whether to continue an interrupted conversion; otherwise it is deleted.
        overwrite: whether a store may be replaced.
        journal_every: structures between two journals, after which a kill loses nothing.
    """

    def __init__(
        self,
        dest: Path,
        provenance: Provenance,
        *,
        resume: bool = True,
        overwrite: bool = False,
        journal_every: int = 50_000,
    ) -> None:
        _require_destination(dest, overwrite)
        self.dest, self.partial = dest, partial_path(dest)
        self._precision, self._every, self._torn, self._done = provenance.precision, journal_every, False, False
        self._safe = 0
        try:
            self.partial.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _failure(error, self.partial, self._safe) from error
        self._files = ExitStack()
        self._files.callback(os.close, _locked(self.partial))
        self._columns: dict[str, ColumnWriter] = {}
        try:
            restore_replaced(dest)
            _require_destination(dest, overwrite)
            self._start(provenance, resume)
        except BaseException:
            self._files.close()
            raise

    def _start(self, provenance: Provenance, resume: bool) -> None:
        journal = _journal_of(self.partial, provenance) if resume else None
        _clear(self.partial, keep=journal)
        self._safe = journal.structures if journal else 0
        with self._writing():
            if journal is None:
                write_bytes(self.partial / "provenance.json", provenance.model_dump_json(indent=1).encode())
            self._open_all(journal or NOTHING_YET)

    def _open_all(self, state: Journal) -> None:
        self.structures, self.atoms, self.faults, self.position = (
            state.structures, state.atoms, state.faults, state.position,
        )  # fmt: skip
        self.left_out = state.left_out
        self._faults = self._files.enter_context(open_at(self.partial / "faults.txt", state.faults_bytes))
        for spec in COLUMNS.values():
            if spec.name in state.column_bytes or not spec.optional:
                self._open(spec, state.column_bytes.get(spec.name))
        self._names = {kind: self._read_names(kind) for kind in ("group", "source")}

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and not (self._done or self.structures or self.faults):
                self.discard()  # nothing was read, so there is nothing to resume
            elif not (self._torn or self._done):
                self.journal()
        finally:
            self._files.close()

    def append(self, block: Block, source: int = 0) -> None:
        """Add structures of the source with this number in the provenance."""
        if not len(block):
            return
        with self._writing():
            for spec in COLUMNS.values():
                if spec.name not in self._columns and _present(spec.name, block):
                    self._open(spec, None)
                    rows = self.atoms if spec.per == "atom" else self.structures
                    self._columns[spec.name].append_zeros(rows * int(np.prod(spec.row)) * self._dtype(spec).itemsize)
            numbers = {"group": self._number("group", block.groups), "source": self._number("source", [block.source])}
            arrays = {
                "starts": self.atoms + block.starts[1:],
                "group": numbers["group"],
                "source": np.broadcast_to(numbers["source"], len(block)),
                "frame": block.frames,
            }
            for name in self._columns.keys() - arrays.keys():
                if COLUMNS[name].per != "name":
                    self._columns[name].append(_values(name, block))
            for name, array in arrays.items():
                self._columns[name].append(array)
            self.structures += len(block)
            self.atoms += int(block.sizes.sum())
            self._move(source, structures=len(block))
        if self.structures - self._safe >= self._every:
            self.journal()

    def note(self, fault: Fault, source: int = 0) -> None:
        """List a bad frame, which is left out."""
        with self._writing():
            append_bytes(self._faults, (" ".join(str(fault).splitlines()) + "\n").encode())
            self.faults += 1
            self._move(source, faults=1)

    def leave_out(self, left_out: LeftOut, source: int = 0) -> None:
        """Count structures that the reader left out by its own rules."""
        self.left_out += left_out.count
        self._move(source, rules=1)

    def journal(self) -> None:
        """Write everything to the disk, and the journal of this state."""
        with self._writing():
            for column in self._columns.values():
                column.sync()
            os.fsync(self._faults.fileno())
            sizes = {name: column.size for name, column in self._columns.items()}
            state = Journal(
                structures=self.structures, atoms=self.atoms, faults=self.faults, faults_bytes=self._faults.tell(),
                left_out=self.left_out, position=self.position, column_bytes=sizes,
            )  # fmt: skip
            write_bytes(self.partial / "journal.json", state.model_dump_json().encode())
            self._safe = self.structures

    def finish(self) -> Path:
        """Complete the store and move it to its destination."""
        self.journal()
        with self._writing():
            infos = {n: self._columns[n].finish(spec.row) for n, spec in COLUMNS.items() if n in self._columns}
            provenance = (self.partial / "provenance.json").read_bytes()
            manifest = Manifest(
                structures=self.structures, atoms=self.atoms, faults=self.faults, left_out=self.left_out,
                precision=self._precision, columns=infos, provenance_sha256=hashlib.sha256(provenance).hexdigest(),
            ).model_dump(mode="json")  # fmt: skip
            manifest["sha256"] = manifest_digest(manifest)
            write_bytes(self.partial / MANIFEST, json.dumps(manifest, indent=1).encode())
            if not self.faults:
                (self.partial / "faults.txt").unlink()
            publish(self.partial, self.dest)
            self._done = True
            (self.dest / "journal.json").unlink()  # last: until the store is published, the conversion can be resumed
        return self.dest

    def discard(self) -> None:
        """Delete the unfinished store."""
        self._done = True
        remove_store(self.partial)

    def _open(self, spec: ColumnSpec, size: int | None) -> None:
        """Open a column at its journalled size, or start it; columns of row numbers start with a zero."""
        column = ColumnWriter(self.partial / spec.name, self._dtype(spec), size or 0)
        if size is None and spec.name.endswith("starts"):
            column.append(np.zeros(1))
        self._files.callback(column.close)
        self._columns[spec.name] = column

    def _dtype(self, spec: ColumnSpec) -> np.dtype[Any]:
        return np.dtype(self._precision if spec.dtype == "real" else spec.dtype).newbyteorder("<")

    def _number(self, kind: str, names: Iterable[str]) -> Shaped[np.ndarray, " n"]:
        """The numbers of names; new names get the next numbers."""
        known, starts, texts = self._names[kind], self._columns[f"{kind}_starts"], self._columns[f"{kind}_names"]
        before = len(known)
        numbers = np.array([known.setdefault(name, len(known)) for name in names], np.int32)
        for name in reversed(list(islice(reversed(known), len(known) - before))):
            texts.append(np.frombuffer(name.encode(), np.uint8))
            starts.append(np.array([texts.size]))
        return numbers

    def _read_names(self, kind: str) -> dict[str, int]:
        for part in ("starts", "names"):
            self._columns[f"{kind}_{part}"].flush()
        starts = np.fromfile(self.partial / f"{kind}_starts.bin", "<i8")
        text = (self.partial / f"{kind}_names.bin").read_bytes()
        return {text[a:b].decode(): i for i, (a, b) in enumerate(pairwise(starts))}

    def _move(self, source: int, *, structures: int = 0, faults: int = 0, rules: int = 0) -> None:
        here = self.position if source == self.position.source else ReadingPosition(source=source)
        self.position = ReadingPosition(
            source=source,
            structures=here.structures + structures,
            faults=here.faults + faults,
            rules=here.rules + rules,
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Guards a change of several columns: if it fails, the writer refuses to journal the inconsistent state."""
        if self._torn:
            raise StoreError(f"{self.partial}: an earlier write failed; open a new writer, which resumes")
        self._torn = True
        try:
            yield
        except OSError as error:
            if not (self._safe or self._done):
                self.discard()  # it could not be resumed
            raise _failure(error, self.partial, self._safe) from error
        self._torn = False


def _present(name: str, block: Block) -> bool:
    if name.startswith(BASELINE):
        return block.baseline is not None
    masks = {"forces": "has_forces", "stress": "has_stress"}
    return COLUMNS[name].optional and bool(getattr(block, masks.get(name, name)).any())


def _values(name: str, block: Block) -> Shaped[np.ndarray, "..."]:
    """The rows of a column; zeros for a baseline that the block does not have."""
    if not name.startswith(BASELINE):
        return np.asarray(getattr(block, name))
    columns = block.baseline or BaselineColumns.unknown(len(block), len(block.positions))
    return np.asarray(getattr(columns, name.removeprefix(BASELINE)))


def _locked(folder: Path) -> int:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise StoreError(f"another process is writing {folder}: wait until it ends, or stop it") from None
    return handle


def _require_destination(dest: Path, overwrite: bool) -> None:
    if dest.suffix != SUFFIX:
        raise HuefieldError(f"the name of a store ends in {SUFFIX}, but the destination is {dest}: try {dest}{SUFFIX}")
    if not dest.exists():
        return
    if not overwrite:
        raise StoreError(f"{dest} exists: choose another name, or pass --overwrite to replace it")
    if not (dest / MANIFEST).is_file():
        raise StoreError(f"{dest} is not a huefield store, so it is not overwritten: move it away")
    require_ours(dest)


def _journal_of(partial: Path, provenance: Provenance) -> Journal | None:
    """The journal of an interrupted conversion with the same provenance; None if there is none."""
    if not (partial / "journal.json").is_file():
        return None
    try:
        before = Provenance.model_validate_json((partial / "provenance.json").read_bytes())
        journal = Journal.model_validate_json((partial / "journal.json").read_bytes())
    except (ValidationError, OSError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(f"{partial} cannot be resumed ({reason}): start again with --no-resume") from error
    changed = [name for name in Provenance.model_fields if getattr(before, name) != getattr(provenance, name)]
    if changed:
        raise StoreError(
            f"{partial} was left by another conversion: it differs in {', '.join(changed)}. Convert as before to "
            "resume it, or pass --no-resume to delete it"
        )
    return journal


def _clear(partial: Path, keep: Journal | None) -> None:
    """Remove files that do not belong to the journalled state; refuse to remove files of the user."""
    require_ours(partial)
    kept = {"journal.json", "provenance.json", "faults.txt"} if keep else set()
    kept |= {f"{name}{suffix}" for name in (keep.column_bytes if keep else ()) for suffix in (".bin", ".crc")}
    for name in {file.name for file in partial.iterdir()} - kept:
        (partial / name).unlink()


def _failure(error: OSError, partial: Path, safe: int) -> StoreError:
    """The error for a write that failed: file, reason, what is kept, and the cure."""
    reason, cure = refusal(error, partial)
    left = f"The first {safe} structures are safe in {partial}" if safe else "Nothing was kept"
    again = "run the same command again to resume" if safe else "run the same command again"
    return StoreError(f"cannot write {error.filename or partial}: {reason}. {left}: {cure} and {again}")
