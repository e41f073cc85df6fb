"""Opening, memory, random access and write rate of a packed store at two sizes; JSON to stdout.

Run as ``python benchmarks/store.py [small] [large]`` (structures). Stores of synthetic molecules of about 14 atoms are
made in a temporary folder (TMPDIR) and removed. Memory is the resident set of a fresh process, pages of files included.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from huefield.core.structure import Block
from huefield.data.store.format import Provenance
from huefield.data.store.store import Store
from huefield.data.store.writer import StoreWriter

BLOCK = 4096


def synthetic(n: int, *, rng: np.random.Generator) -> Block:
    """Molecules of 8 to 20 atoms with energies and forces."""
    sizes = rng.integers(8, 21, n)
    atoms = int(sizes.sum())
    yes, no = np.ones(n, bool), np.zeros(n, bool)
    positions, forces = (rng.random((atoms, 3), np.float32) for _ in range(2))
    numbers = rng.integers(1, 9, atoms, np.uint8)
    zeros = np.zeros((n, 3, 3))
    groups = ("synthetic",) * n
    return Block(
        sizes, numbers, positions, zeros, np.zeros((n, 3), bool), rng.random(n), yes, forces, yes, zeros, no, groups,
        np.arange(n), "synthetic",
    )  # fmt: skip


def make(path: Path, structures: int) -> float:
    """Write a store; structures in a second, without the time to draw them."""
    rng, seconds = np.random.default_rng(0), 0.0
    with StoreWriter(path, Provenance(huefield="benchmark", precision="float32", sources=())) as writer:
        for first in range(0, structures, BLOCK):
            block = synthetic(min(BLOCK, structures - first), rng=rng)
            start = time.perf_counter()
            writer.append(block)
            seconds += time.perf_counter() - start
        start = time.perf_counter()
        writer.finish()
    return structures / (seconds + time.perf_counter() - start)


def resident_mb() -> float:
    """Resident set of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def median_seconds(store: Store, indices: np.ndarray, batch: int) -> float:
    """Median time to gather a batch."""
    times = []
    for chosen in indices.reshape(-1, batch):
        start = time.perf_counter()
        store.block(chosen)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def measure(path: Path) -> dict[str, float]:
    """Figures of one store, in a process of its own."""
    Store.open(path)  # imports and the like
    before, start = resident_mb(), time.perf_counter()
    store = Store.open(path)
    opening, opened = time.perf_counter() - start, resident_mb()
    rng, n = np.random.default_rng(1), len(store)
    ends = {"first": rng.integers(0, n // 100, 6400), "last": rng.integers(n - n // 100, n, 6400)}
    cold = median_seconds(store, rng.integers(0, n, 640), 64)
    warm = {f"batch_of_64_{name}_percent_seconds": median_seconds(store, rows, 64) for name, rows in ends.items()}
    highest = resident_mb()
    for block in store.blocks():
        block.forces.sum()
        highest = max(highest, resident_mb())
    return {
        "opening_seconds": opening,
        "opening_mb": opened - before,
        "batch_of_64_anywhere_unchecked_seconds": cold,
        **warm,
        "reading_everything_highest_resident_mb": highest,
    }


def main() -> None:
    """Measure both sizes."""
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(Path(sys.argv[2]))))
        return
    result = {}
    for structures in map(int, sys.argv[1:] or ("10000", "1000000")):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "synthetic.hues"
            rate = make(path, structures)
            size = sum(file.stat().st_size for file in path.iterdir()) / 1e6
            command = [sys.executable, __file__, "measure", str(path)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        result[str(structures)] = {"write_structures_per_second": rate, "store_mb": size, **json.loads(output)}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
