"""Time of error bars with distances to the training data relative to those without: a ratio for each job.

python benchmarks/novelty_cost.py [--repeats N]      writes benchmarks/results/novelty_cost.json

Both take turns in one process, so that they share whatever else the machine does; the ratio is that of the best times.
Models have random weights, and as many points as a model keeps at most: 2 048 of each of four elements.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "painn"))

from measure import repeat, use_two_cores  # noqa: E402

use_two_cores()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from cases import systems  # noqa: E402
from ours import batch_of  # noqa: E402

from huefield.model import Ensemble, ForceField  # noqa: E402
from huefield.model.ensemble import compiled_joint  # noqa: E402
from huefield.noise import LocalNoise  # noqa: E402
from huefield.noise.novelty import MOST_POINTS, Novelty  # noqa: E402
from huefield.potentials import PaiNN  # noqa: E402

FEATURES = 64
ELEMENTS = (1, 6, 7, 8)
JOBS = {"five members of a molecule of 27 atoms": ("molecule", 5), "one member of 64 molecules": ("molecules", 1)}


def novelty(members: int) -> Novelty:
    """Points of features that are made up, for each member."""
    rng = np.random.default_rng(0)
    numbers = np.repeat(ELEMENTS, MOST_POINTS)

    def fitted() -> Novelty:
        features = rng.normal(size=(len(numbers), FEATURES))
        return Novelty.fitted(numbers, features, numbers[::50], features[::50] + 0.1)

    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(fitted() for _ in range(members)))


def ratio(system: str, members: int, repeats: int) -> dict[str, float]:
    """Best seconds without and with distances, and their ratio."""
    graph = batch_of(systems(system)).graph
    potential = PaiNN.Config(elements=("H", "C", "N", "O"), features=FEATURES)
    config = ForceField.Config(potential=potential, noise=LocalNoise.Config())
    plain = Ensemble.build(config, members, key=jax.random.key(0))
    grown = replace(plain, members=replace(plain.members, novelty=novelty(members)))

    def run_of(ensemble: Ensemble) -> Callable[[], None]:
        def run() -> None:
            jax.block_until_ready(compiled_joint(ensemble, graph, False).distribution.diagonal.forces)

        return run

    runs = {"without": run_of(plain), "with": run_of(grown)}
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        repeat(run, 2)
    for _ in range(repeats):
        for name, run in runs.items():
            best[name] = min(best[name], *repeat(run, 3))
    return {**best, "ratio": best["with"] / best["without"]}


def main() -> None:
    """Measure, write and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    given = parser.parse_args()
    found = {name: ratio(system, members, given.repeats) for name, (system, members) in JOBS.items()}
    (HERE / "results" / "novelty_cost.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, row in found.items():
        print(f"{name}: with / without = {row['ratio']:.3f}")


if __name__ == "__main__":
    main()
