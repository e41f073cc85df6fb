"""The packed store beside HDF5 as h5py reads it: opening, batches, scans, writing, size and damage; JSON to stdout.

Run as ``python benchmarks/store.py [structures ...]``. Synthetic molecules of about 20 atoms and the bundled data are
written in a temporary folder (TMPDIR) and removed. The HDF5 rival holds the same columns, chunked for fast slices of
rows, with and without checksums (fletcher32); columns with one row for each structure are read into memory when it is
opened, atoms by one slice for each structure. Times are medians in a fresh process with files in the system's cache;
memory is its resident set, pages of files included.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from huefield.core.structure import Block
from huefield.data.bundled.sets import bundled
from huefield.data.store.format import Provenance
from huefield.data.store.store import Store
from huefield.data.store.writer import StoreWriter

BLOCK, BATCH, BATCHES = 4096, 32, 400
PER_ATOM = ("atomic_numbers", "positions", "forces")
PER_STRUCTURE = ("energy", "has_energy", "has_forces", "has_stress", "cells", "pbc", "stress")
CHUNK_BYTES = 65_536


class Contestant(Protocol):
    """A data set that gives structures by their numbers."""

    def __len__(self) -> int: ...

    def block(self, indices: np.ndarray) -> Block:
        """The structures with these numbers."""


class Hdf5:
    """HDF5 columns, read and written with h5py."""

    def __init__(self, path: Path) -> None:
        self._file = h5py.File(path, "r")
        self._starts = self._file["starts"][()]
        self._rows = {name: self._file[name][()] for name in PER_STRUCTURE}
        self._atoms = {name: self._file[name] for name in PER_ATOM}

    def __len__(self) -> int:
        return len(self._starts) - 1

    def block(self, indices: np.ndarray) -> Block:
        """The structures with these numbers."""
        first, stop = self._starts[indices], self._starts[indices + 1]
        spans = [(first[0], stop[-1])] if np.array_equal(first[1:], stop[:-1]) else list(zip(first, stop, strict=True))
        atoms: dict[str, Any] = {name: np.concatenate([c[a:b] for a, b in spans]) for name, c in self._atoms.items()}
        rows: dict[str, Any] = {name: column[indices] for name, column in self._rows.items()}
        return Block(stop - first, **atoms, **rows, groups=("",) * len(indices), frames=indices, source="hdf5")


def synthetic(structures: int, *, rng: np.random.Generator) -> Iterator[Block]:
    """Molecules of 12 to 28 atoms with energies and forces, in blocks."""
    for first in range(0, structures, BLOCK):
        n = min(BLOCK, structures - first)
        sizes = rng.integers(12, 29, n)
        atoms = int(sizes.sum())
        positions, forces = (rng.random((atoms, 3), np.float32) for _ in range(2))
        yes, zeros = np.ones(n, bool), np.zeros((n, 3, 3))
        yield Block(
            sizes, rng.integers(1, 9, atoms, np.uint8), positions, zeros, np.zeros((n, 3), bool), rng.random(n), yes,
            forces, yes, zeros, ~yes, ("",) * n, np.arange(n), "synthetic",
        )  # fmt: skip


def write_store(path: Path, blocks: list[Block]) -> None:
    """The packed store of huefield."""
    with StoreWriter(path, Provenance(huefield="benchmark", precision="float32", sources=())) as writer:
        for block in blocks:
            writer.append(block)
        writer.finish()


def write_hdf5(path: Path, blocks: list[Block], *, fletcher32: bool) -> None:
    """The rival with the same content, flushed to the disk."""
    with h5py.File(path, "w") as file:
        for name in (*PER_ATOM, *PER_STRUCTURE):
            first = getattr(blocks[0], name)
            dtype = np.float32 if name in ("positions", "forces") else first.dtype
            rows = max(1, CHUNK_BYTES // int(np.dtype(dtype).itemsize * np.prod(first.shape[1:])))
            shape, most = (0, *first.shape[1:]), (None, *first.shape[1:])
            file.create_dataset(
                name, shape, dtype, maxshape=most, chunks=(rows, *first.shape[1:]), fletcher32=fletcher32
            )
        for block in blocks:
            for name in (*PER_ATOM, *PER_STRUCTURE):
                added, column = getattr(block, name), file[name]
                column.resize(len(column) + len(added), axis=0)
                column[len(column) - len(added) :] = added
        file["starts"] = np.concatenate([[0], np.cumsum(np.concatenate([block.sizes for block in blocks]))])
    with path.open("rb") as written:
        os.fsync(written.fileno())


def resident_mb() -> float:
    """Resident set of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def timed(run: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def opened(path: Path) -> Contestant:
    """Either of the two, by the suffix."""
    return Store.open(path) if path.suffix == ".hues" else Hdf5(path)


def measure(path: Path) -> dict[str, float]:
    """Figures of one contestant, in a process of its own."""
    opened(path)  # imports and the like
    opening = float(np.median([timed(lambda: opened(path)) for _ in range(9)]))
    data, rng = opened(path), np.random.default_rng(1)
    batches = rng.integers(0, len(data), (BATCHES, BATCH))
    cold = [timed(lambda b=b: data.block(b)) for b in batches]  # type: ignore[misc]
    warm = [timed(lambda b=b: data.block(b)) for b in batches]  # type: ignore[misc]
    highest, start = resident_mb(), time.perf_counter()
    for first in range(0, len(data), BLOCK):
        data.block(np.arange(first, min(first + BLOCK, len(data)))).forces.sum()
        highest = max(highest, resident_mb())
    scan = len(data) / (time.perf_counter() - start)
    return {
        "open_ms": 1e3 * opening,
        "batch_of_32_first_ms": 1e3 * float(np.median(cold)),
        "batch_of_32_again_ms": 1e3 * float(np.median(warm)),
        "scan_structures_per_second": scan,
        "highest_resident_mb": highest,
    }


def notices_damage(path: Path, column: str) -> bool:
    """Whether reading everything raises an error after one bit of the positions was flipped."""
    if path.is_dir():
        file, place = path / f"{column}.bin", 5000
    else:
        file = path
        with h5py.File(path) as h5:
            place = h5[column].id.get_chunk_info(0).byte_offset + 5000
    with file.open("r+b") as raw:
        raw.seek(place)
        byte = raw.read(1)[0]
        raw.seek(place)
        raw.write(bytes([byte ^ 1]))
    try:
        data = opened(path)
        data.block(np.arange(min(BLOCK, len(data))))
    except (OSError, ValueError):
        return True
    return False


def survives_kill(blocks: list[Block], folder: Path, suffix: str) -> int:
    """Structures that can be read or resumed after the process dies in the middle of writing."""
    path = folder / f"killed{suffix}"
    child = os.fork()
    if not child:
        if suffix == ".hues":
            writer = StoreWriter(
                path, Provenance(huefield="benchmark", precision="float32", sources=()), journal_every=1
            )
            for block in blocks:
                writer.append(block)
        else:
            file = h5py.File(path, "w")
            file.create_dataset("energy", (0,), float, maxshape=(None,), chunks=(8192,), fletcher32=True)
            for block in blocks:
                file["energy"].resize(len(file["energy"]) + len(block), axis=0)
                file["energy"][-len(block) :] = block.energy
        os._exit(9)
    os.waitpid(child, 0)
    try:
        if suffix == ".hues":
            with StoreWriter(path, Provenance(huefield="benchmark", precision="float32", sources=())) as resumed:
                return resumed.structures
        with h5py.File(path) as file:
            return len(file["energy"])
    except OSError:
        return 0


def compare(blocks: list[Block], folder: Path) -> dict[str, Any]:
    """All figures of all contestants."""
    structures = sum(map(len, blocks))
    writers: dict[str, Callable[[Path], None]] = {
        "store.hues": lambda path: write_store(path, blocks),
        "plain.h5": lambda path: write_hdf5(path, blocks, fletcher32=False),
        "fletcher32.h5": lambda path: write_hdf5(path, blocks, fletcher32=True),
    }
    result: dict[str, Any] = {}
    for name, write in writers.items():
        path = folder / name
        seconds = timed(lambda path=path, write=write: write(path))  # type: ignore[misc]
        files = list(path.iterdir()) if path.is_dir() else [path]
        command = [sys.executable, __file__, "measure", str(path)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        result[name] = {
            "write_structures_per_second": structures / seconds,
            "size_mb": sum(file.stat().st_size for file in files) / 1e6,
            **json.loads(output),
            "damage_noticed": notices_damage(path, "positions"),
            "structures_left_after_kill": survives_kill(blocks[:4], folder, path.suffix),
        }
    return result


def main() -> None:
    """Measure all sizes and the bundled data."""
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(Path(sys.argv[2]))))
        return
    sets = {"bundled": list(bundled().blocks.values())}
    for structures in map(int, sys.argv[1:] or ("100000",)):
        sets[str(structures)] = list(synthetic(structures, rng=np.random.default_rng(0)))
    result: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    for name, blocks in sets.items():
        with tempfile.TemporaryDirectory() as folder:
            result[name] = compare(blocks, Path(folder))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
