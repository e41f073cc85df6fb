"""Rates of converting Transition1x-like HDF5 to a store and of reading extended xyz; JSON to stdout.

Run as ``python benchmarks/convert.py [STRUCTURES]``. The xyz files are real ones of the folder ``HUEFIELD_DATA``, if it
is set; the rates are frames per second of CPU time, of ASE alone and of our reader with its checks.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ase.io
import h5py
import numpy as np

from huefield.data.convert import convert
from huefield.data.readers.detect import read_blocks

XYZ = ("water_pbe0/train.xyz", "ani1x/ani1x_800.xyz", "ethanol_pbe_svp/train.xyz", "3bpa/train_300K.xyz")
ATOMS = 14
FRAMES = 960
"""Frames of a reaction: the average of Transition1x."""


def write_source(path: Path, structures: int) -> int:
    """A file in the official layout with random molecules on a lattice; returns how many structures it has."""
    rng = np.random.default_rng(0)
    lattice = 1.5 * np.argwhere(np.ones((3, 3, 3)))[:ATOMS]
    reactions = max(1, structures // FRAMES)
    with h5py.File(path, "w") as file:
        for number in range(reactions):
            group = file.create_group(f"data/C3H8O/rxn{number:04d}")
            group["atomic_numbers"] = np.array([6] * 4 + [1] * 9 + [8])
            fill(group, FRAMES, lattice, rng)
            for name in ("reactant", "transition_state", "product"):
                end = group.create_group(name)
                end["atomic_numbers"] = group["atomic_numbers"][:]
                fill(end, 1, lattice, rng)
    return reactions * FRAMES


def fill(group: h5py.Group, frames: int, lattice: np.ndarray, rng: np.random.Generator) -> None:
    """Positions, energies and forces."""
    group["positions"] = lattice + rng.uniform(-0.2, 0.2, (frames, ATOMS, 3))
    group["wB97x_6-31G(d).energy"] = rng.normal(-5000.0, 1.0, frames)
    group["wB97x_6-31G(d).forces"] = rng.normal(0.0, 1.0, (frames, ATOMS, 3))


def xyz_rates(path: Path) -> dict[str, float]:
    """Frames per second of CPU time, best of three."""
    seconds = {"ase": np.inf, "reader": np.inf}
    for _ in range(3):
        start = time.process_time()
        frames = len(ase.io.read(path, ":"))
        middle = time.process_time()
        sum(map(len, read_blocks(path)))
        taken = {"ase": middle - start, "reader": time.process_time() - middle}
        seconds = {name: min(seconds[name], taken[name]) for name in seconds}
    return {name: frames / taken for name, taken in seconds.items()}


def main() -> None:
    """Best of three conversions."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with tempfile.TemporaryDirectory() as folder:
        source, rates = Path(folder) / "source.h5", []
        paths = write_source(source, wanted)
        for number in range(3):
            start = time.perf_counter()
            done = convert([source], Path(folder) / f"store{number}.hues", precision="float32")
            rates.append(done.structures / (time.perf_counter() - start))
    result: dict[str, Any] = {"path_frames": paths, "structures": done.structures, "structures_per_second": rates}
    if "HUEFIELD_DATA" in os.environ:
        data = Path(os.environ["HUEFIELD_DATA"])
        result["xyz_frames_per_second"] = {name: xyz_rates(data / name) for name in XYZ}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
