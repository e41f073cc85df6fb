"""Cost of predictions for whole data sets relative to the bare compiled program on the same structures.

python benchmarks/predicting.py [--features 64] [--members 5] [--structures 3000]

Bare: batches are made beforehand, and only ``Ensemble.predict``'s compiled program runs. Whole: from packed structures
to arrays of means and variances, with neighbour lists, padding, joint likelihoods and copies to the host. Compiled
programs of both are warm. In turns; best and median of the ratios go to benchmarks/results/predicting.json.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

RESULTS = Path(__file__).parent / "results" / "predicting.json"


def seconds(job: Callable[[], object]) -> float:
    """Seconds that a job takes."""
    begin = time.perf_counter()
    job()
    return time.perf_counter() - begin


def main() -> None:
    """Measure in turns."""
    from huefield.core.structure import joined
    from huefield.data.batches.prepared import Prepared
    from huefield.data.batches.shapes import GrowingShapes
    from huefield.data.dataset import BundledData, Part
    from huefield.model.ensemble import Ensemble, compiled_joint
    from huefield.model.forcefield import ForceField
    from huefield.predict import predict_part
    from huefield.predict.batches import batches_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("features", 64), ("members", 5), ("structures", 3000), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    block = joined([part.block(np.arange(len(part))) for part in BundledData().load().values()], "bundled")
    part = Part("bundled", block, np.arange(min(given.structures, len(block))))
    potential = {"kind": "painn", "features": given.features, "elements": list(part.elements())}
    config = ForceField.Config.model_validate({"potential": potential, "noise": {"kind": "colored", "gamma": "atom"}})
    ensemble = Ensemble.build(config, given.members, key=jax.random.key(0))
    data = Prepared.of(part, 5.0, lambda block: np.zeros(len(block)))
    graphs = [batch.graph for _, batch in batches_of(data, GrowingShapes())]

    def bare() -> None:
        for graph in graphs:
            jax.block_until_ready(compiled_joint(ensemble, graph, False))

    def whole() -> None:
        predict_part(ensemble, part, "benchmark")

    bare()
    whole()
    times = [(seconds(bare), seconds(whole)) for _ in range(given.rounds)]
    best = [min(column) for column in zip(*times, strict=True)]
    result = {
        "structures": len(part),
        "atoms": int(block.sizes[: len(part)].sum()),
        "features": given.features,
        "members": given.members,
        "bare_seconds": best[0],
        "whole_seconds": best[1],
        "ratio_of_best": best[1] / best[0],
        "median_ratio": statistics.median(b / a for a, b in times),
    }
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
