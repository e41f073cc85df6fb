"""How fast Transition1x-like HDF5 becomes a store, from end to end. Prints JSON.

python benchmarks/convert.py [STRUCTURES]
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

from huefield.data.convert import convert

ATOMS = 14
FRAMES = 960
"""Of a reaction, as many as Transition1x has on average."""


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
        print(
            json.dumps({"path_frames": paths, "structures": done.structures, "structures_per_second": rates}, indent=2)
        )


if __name__ == "__main__":
    main()
