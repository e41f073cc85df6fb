"""Dynamics of 3BPA at 600 and 1200 K with GFN2-xTB: a test of heat for a flexible molecule of 27 atoms.

python benchmarks/hot_dynamics.py FOLDER [--core N]

``300 K`` are the frames of ``3bpa/train_300K.xyz`` of the shared data with labels of GFN2-xTB. Each trajectory starts
from one of them, forgets it for 200 fs and gives ten frames, 40 fs apart, which have the trajectory as ``group``.
Finished trajectories are kept, so that the command resumes.
"""

import argparse
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import ase.io
import numpy as np
from study import SHARED, use_core

from huefield.core.structure import Structure
from huefield.make_data.oracles import TbliteOracle
from huefield.make_data.sampling import DynamicsSettings, sample_dynamics

HOT = {"600 K": 600.0, "1200 K": 1200.0}
"""Temperatures of the dynamics."""
TRAJECTORIES, FRAMES = 12, 10
SETTINGS = DynamicsSettings(equilibration_steps=200, friction_per_fs=0.02)


def made(folder: Path) -> dict[str, Path]:
    """Files of the sets, which are made as far as they are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    starts: list[ase.Atoms] = list(ase.io.iread(SHARED / "3bpa" / "train_300K.xyz"))
    keep(folder / "300 K.extxyz", lambda: labelled(starts[0].numbers, [each.positions for each in starts], "300 K"))
    chosen = np.random.default_rng(0).permutation(len(starts))
    for (name, kelvin), rows in zip(HOT.items(), chosen.reshape(len(HOT), -1), strict=True):
        for row in rows[:TRAJECTORIES]:
            keep(folder / f"{name} {row}.xyz", partial(trajectory, starts[row], kelvin, int(row), f"{name} {row}"))
    return {"300 K": folder / "300 K.extxyz"} | {name: joined(folder, name) for name in HOT}


def keep(path: Path, frames: Callable[[], list[ase.Atoms]]) -> None:
    """Write frames to a file that is not there yet."""
    if not path.exists():
        ase.io.write(path.with_suffix(".part"), frames(), format="extxyz")
        path.with_suffix(".part").rename(path)


def trajectory(start: ase.Atoms, kelvin: float, seed: int, group: str) -> list[ase.Atoms]:
    """Labelled frames of one trajectory."""
    positions, _ = sample_dynamics(
        start.numbers.astype(np.uint8),
        start.positions,
        TbliteOracle(),
        FRAMES,
        temperature_k=kelvin,
        rng=np.random.default_rng(seed),
        settings=SETTINGS,
    )
    return labelled(start.numbers, positions, group)


def labelled(numbers: np.ndarray, positions: Iterable[np.ndarray], group: str) -> list[ase.Atoms]:
    """Frames with energies and forces of GFN2-xTB."""
    oracle, frames = TbliteOracle(), []
    for place in positions:
        found = oracle.label(Structure(numbers.astype(np.uint8), place))
        frame = ase.Atoms(numbers, place, info={"REF_energy": found.energy, "group": group})
        frame.arrays["REF_forces"] = np.asarray(found.forces)
        frames.append(frame)
    return frames


def joined(folder: Path, name: str) -> Path:
    """One file of all trajectories of a set."""
    path = folder / f"{name}.extxyz"
    found = sorted(folder.glob(f"{name} *.xyz"))
    keep(path, lambda: [frame for each in found for frame in ase.io.iread(each)])
    return path


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--core", type=int, help="use this core alone")
    given = options.parse_args()
    use_core(given.core)
    for path in made(given.folder).values():
        print(path)
