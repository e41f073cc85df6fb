"""A training run that takes seconds: rattled molecules with a made-up potential, and a network of a few numbers."""

from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from huefield.training import TrainConfig

POTENTIAL = {"kind": "painn", "features": 4, "layers": 1, "radial_functions": 4, "cutoff_angstrom": 3.0}


def waters(count: int, *, seed: int = 0, shift: float = 0.0) -> list[Atoms]:
    """Molecules held together by springs, with energies of total energies' size."""
    rng = np.random.default_rng(seed)
    start = np.array([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])
    result = []
    for _ in range(count):
        moved = start + rng.normal(scale=0.08, size=(3, 3))
        atoms = Atoms("OHH", moved)
        energy, forces = -2000.0 + shift, np.zeros((3, 3))
        for i, j, rest, stiff in ((0, 1, 0.96, 20.0), (0, 2, 0.96, 20.0), (1, 2, 1.5, 5.0)):
            vector = moved[j] - moved[i]
            length = float(np.linalg.norm(vector))
            energy += 0.5 * stiff * (length - rest) ** 2
            pull = stiff * (length - rest) * vector / length
            forces[i] += pull
            forces[j] -= pull
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        result.append(atoms)
    return result


def write_waters(path: Path, count: int = 20, **options: Any) -> Path:
    write(path, waters(count, **options), format="extxyz")
    return path


def config_for(path: Path, **changes: Any) -> TrainConfig:
    """Two short stages of a colored ensemble of two."""
    given: dict[str, Any] = {
        "data": {
            "kind": "files",
            "train": [str(path)],
            "split": {"kind": "random", "fractions": {"train": 0.7, "validation": 0.3}},
        },
        "model": {"potential": POTENTIAL, "noise": {"kind": "colored"}},
        "stages": [
            {"kind": "squared_error", "steps": 6, "learning_rate": 1e-2, "decay": 0.5},
            {"kind": "beta_nll", "steps": 6, "learning_rate": 3e-3, "initialise_noise": True},
        ],
        "members": 2,
        "batch_size": 4,
        "optimiser": {"average_decay": 0.9, "noise_rate": 3.0, "offset_rate": 10.0},
        "validate_every": 2,
        "checkpoint_every": 2,
        "report_every": 2,
    }
    return TrainConfig.model_validate({**given, **changes})
