"""Neighbour matrices against ASE's neighbour list, and batches per second; one run, JSON on standard output.

Run it with `python benchmarks/neighbours.py`. It needs the data that `HUEFIELD_DATA` points to. Ours is timed from
positions to the matrix on the device, reverse slots included; ASE's to the list of pairs and shifts.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ase
import jax
import numpy as np
from ase.io import read
from ase.neighborlist import neighbor_list

from huefield.core.structure import Block, Structure, pack
from huefield.data.batches.batching import (
    BatchOrder,
    Place,
    choose_shapes,
    fitting_shape,
    make_batch,
    prefetch,
    slot_buckets,
    slots_up,
)
from huefield.data.batches.neighbours import block_pairs, most_neighbours, neighbour_matrix

DATA = Path(os.environ.get("HUEFIELD_DATA", Path(__file__).parents[2] / "shared" / "data"))
CUTOFF_ANGSTROM = 5.0
REPEATS = 7


def load(name: str, frames: str) -> list[Structure]:
    """Frames of a file, with zeros for labels: their values take no time."""
    return [
        Structure(a.numbers.astype(np.uint8), a.positions, np.array(a.cell) * a.pbc.any(), a.pbc, 0.0, a.positions * 0)
        for a in read(DATA / name, frames)
    ]


def block_of(structures: list[Structure]) -> Block:
    """Structures one after the other."""
    return pack(structures, np.arange(len(structures)), "benchmark")


def ours(block: Block) -> object:
    """The neighbour matrix of a block."""
    pairs = block_pairs(block, CUTOFF_ANGSTROM)
    slots = slots_up(int(np.bincount(pairs.first).max()))
    return jax.block_until_ready(neighbour_matrix(pairs, len(block.positions), slots))


def race(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, float]]:
    """Seconds of each, taken in turn so that they share whatever else the machine does."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: {"best": min(taken), "median": statistics.median(taken)} for name, taken in times.items()}


def against_ase(structures: list[Structure], together: int) -> dict[str, Any]:
    """Seconds for all structures: ours one by one and in blocks, ASE's one by one."""
    single = [block_of([s]) for s in structures]
    blocks = [block_of(structures[i : i + together]) for i in range(0, len(structures), together)]
    atoms = [ase.Atoms(s.atomic_numbers, s.positions, cell=s.cell, pbc=s.pbc) for s in structures]
    seconds = race(
        {
            "our_pairs_one_by_one": lambda: [block_pairs(block, CUTOFF_ANGSTROM) for block in single],
            "ours_one_by_one": lambda: [ours(block) for block in single],
            f"ours_{together}_at_a_time": lambda: [ours(block) for block in blocks],
            "ase": lambda: [neighbor_list("ijS", a, CUTOFF_ANGSTROM) for a in atoms],
        },
        REPEATS,
    )
    ratios = {
        name: {kind: seconds["ase"][kind] / taken[kind] for kind in taken}
        for name, taken in seconds.items()
        if name != "ase"
    }
    return {"structures": len(structures), "seconds": seconds, "times_faster_than_ase": ratios}


def shapes(structures: list[Structure], per_batch: int, buckets: int, epochs: int) -> dict[str, Any]:
    """Number of shapes that the batches of some epochs have, and their filling."""
    block = block_of(structures)
    most = most_neighbours(block, CUTOFF_ANGSTROM)
    bucket = slot_buckets(block.sizes, most, buckets)
    known = choose_shapes(block.sizes, most, bucket, per_batch)
    pairs = [len(block_pairs(block_of([s]), CUTOFF_ANGSTROM)) for s in structures]
    used, atoms, slots = set(), 0, 0
    order = BatchOrder(bucket, per_batch, jax.random.key(0))
    for members in (m for epoch in range(epochs) for m in order.epoch(epoch)):
        shape = fitting_shape(known, len(members), int(block.sizes[members].sum()), int(most[members].max()))
        used.add(shape)
        atoms, slots = atoms + shape.atoms, slots + shape.cost
    return {
        "structures_per_batch": per_batch,
        "buckets": buckets,
        "shapes_used": len(used),
        "atoms_that_are_padding": 1 - epochs * float(block.sizes.sum()) / atoms,
        "slots_that_are_empty": 1 - epochs * sum(pairs) / slots,
    }


def batch_rate(structures: list[Structure], per_batch: int) -> dict[str, float]:
    """Batches per second, and how long a step of about 50 ms waits for them when they are built ahead."""
    block = block_of(structures)
    most = most_neighbours(block, CUTOFF_ANGSTROM)
    bucket = np.zeros(len(block), np.int64)
    known = choose_shapes(block.sizes, most, bucket, per_batch)
    order = BatchOrder(bucket, per_batch, jax.random.key(0))

    def batches() -> Iterator[Any]:
        for _, members in order.start(Place()):
            yield make_batch([structures[i] for i in members], CUTOFF_ANGSTROM, known)

    plain, times, waits = batches(), [], []
    for _ in range(50):
        start = time.perf_counter()
        jax.block_until_ready(next(plain))
        times.append(time.perf_counter() - start)
    work = jax.jit(lambda x: jax.lax.fori_loop(0, 12, lambda _, y: y @ x, x))
    matrix = jax.numpy.eye(700)
    ahead = prefetch(batches(), 4)
    for _ in range(30):
        start = time.perf_counter()
        next(ahead)
        waits.append(time.perf_counter() - start)
        work(matrix).block_until_ready()
    return {
        "batches_per_second_best": 1 / min(times),
        "batches_per_second_median": 1 / statistics.median(times),
        "wait_for_a_prefetched_batch_seconds_median": statistics.median(waits[5:]),
        "wait_for_a_prefetched_batch_seconds_largest": max(waits[5:]),
    }


def main() -> None:
    """Run all measurements."""
    if not DATA.exists():
        sys.exit(f"{DATA} does not exist: set HUEFIELD_DATA to the folder with the reference data")
    water, ani = load("water_pbe0/train.xyz", ":8"), load("ani1x/ani1x_800.xyz", ":")
    acac = load("acac/train_300K.xyz", ":")
    result = {
        "cutoff_angstrom": CUTOFF_ANGSTROM,
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "water_pbe0": against_ase(water, 4),
        "ani1x_800": against_ase(ani[:200], 50),
        "acac_batches_of_64": batch_rate(acac, 64),
        "shapes": {
            "ani1x_800": [shapes(ani, 32, buckets, 10) for buckets in (1, 2, 3)],
            "acac": [shapes(acac, 64, 1, 10)],
        },
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
