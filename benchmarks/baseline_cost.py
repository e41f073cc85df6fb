"""Time of an MD step's energy, forces and error bars: the corrected baseline against its two parts.

python benchmarks/baseline_cost.py MODEL STRUCTURES [--repeats N]      writes benchmarks/results/baseline_cost.json

MODEL corrects GFN2-xTB, STRUCTURES is a file with a structure to move, such as one of 3BPA (27 atoms). Three
calculators take turns at the same moved structures: GFN2-xTB alone, the network alone, and the sum. The ratio is that
of the median time of the sum to the medians of both parts. Aim: at most 1.1.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import ase.io
import numpy as np
from ase import Atoms

from huefield.ase import Calculator
from huefield.ase.calculator import structure_of
from huefield.baselines import TbliteBaseline
from huefield.model.modelfile import load

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "baseline_cost.json"
MOVE_ANGSTROM = 0.01
WARM_UP = 5


def main() -> None:
    """Measure, write and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("structures", type=Path)
    parser.add_argument("--repeats", type=int, default=200)
    given = parser.parse_args()
    start = ase.io.read(given.structures, 0)
    assert isinstance(start, Atoms)  # noqa: S101 - one structure was asked for
    found = measured(given.model, start, given.repeats)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def measured(model: Path, start: Atoms, repeats: int) -> dict[str, float]:
    """Median milliseconds of the baseline, the correction and the sum, and the ratio."""
    whole = load(model)
    assert whole.baseline is not None  # noqa: S101 - the model corrects one
    assert isinstance(whole.baseline.config, TbliteBaseline.Config)  # noqa: S101 - this study is about GFN-xTB
    baseline = TbliteBaseline(whole.baseline.config)
    corrected, correction = Calculator(whole), Calculator(whole.with_baseline(None))
    jobs: dict[str, Callable[[Atoms], object]] = {
        "baseline": lambda atoms: baseline.compute(structure_of(atoms)),
        "correction": lambda atoms: _asked(correction, atoms),
        "sum": lambda atoms: _asked(corrected, atoms),
    }
    rng, times = np.random.default_rng(0), {name: list[float]() for name in jobs}
    for number in range(repeats + WARM_UP):
        moved = start.copy()
        moved.positions += MOVE_ANGSTROM * rng.standard_normal(moved.positions.shape)
        for name, job in jobs.items():
            begin = time.perf_counter()
            job(moved)
            if number >= WARM_UP:
                times[name].append(time.perf_counter() - begin)
    middle = {f"{name}_ms": 1e3 * median(each) for name, each in times.items()}
    return {
        "atoms": len(start),
        "members": whole.num_members,
        **middle,
        "ratio": middle["sum_ms"] / (middle["baseline_ms"] + middle["correction_ms"]),
    }


def _asked(calculator: Calculator, atoms: Atoms) -> None:
    """Energy, forces and their error bars, as dynamics with a threshold asks for them."""
    for name in ("energy", "forces", "energy_uncertainty", "forces_uncertainty"):
        calculator.get_property(name, atoms)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
