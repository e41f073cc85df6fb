"""Time and memory of all metrics and the page of a model on many structures; JSON to benchmarks/results/metrics.json.

Run as ``python benchmarks/metrics.py [structures] [resamples]``. Predictions of synthetic molecules of 12 to 20 atoms
are drawn, a quarter of the atoms with variances that are equal for the three components; then metrics (their breakdown
included), figures and page are timed. Memory is the highest resident set of the process, the predictions themselves
included.
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from jaxtyping import Float

from huefield.core.structure import Block
from huefield.evaluation.report.figures import save_figures
from huefield.evaluation.report.page import write_report
from huefield.evaluation.slices import summarise
from huefield.predict.marginals import EnergyForcesMarginals, Marginals
from huefield.predict.predictions import Predictions

RESULT = Path(__file__).parent / "results" / "metrics.json"


def synthetic(structures: int, *, rng: np.random.Generator) -> Predictions:
    """Predictions with noise that their variances describe."""
    sizes = rng.integers(12, 21, structures)
    atoms = int(sizes.sum())
    variance = rng.gamma(2.0, 1e-3, (atoms, 3))
    variance[::4] = variance[::4, :1]
    forces = rng.standard_normal((atoms, 3))
    energy, energy_var = rng.standard_normal(structures), rng.gamma(2.0, 1e-3, structures)
    yes, zeros = np.ones(structures, bool), np.zeros((structures, 3, 3))
    block = Block(
        sizes, rng.choice(np.array([1, 6, 7, 8], np.uint8), atoms), rng.uniform(0, 6, (atoms, 3)), zeros,
        np.zeros((structures, 3), bool), energy, yes, forces, yes, zeros, ~yes,
        tuple(f"group {number}" for number in rng.integers(0, 200, structures)), np.arange(structures), "synthetic",
    )  # fmt: skip
    marginals = EnergyForcesMarginals(
        Marginals(energy + _noise(energy_var, rng=rng), energy_var),
        Marginals(forces + _noise(variance, rng=rng), variance),
    )
    return Predictions("synthetic", block, marginals)


def _noise(variance: Float[np.ndarray, "*n"], *, rng: np.random.Generator) -> Float[np.ndarray, "*n"]:
    return np.sqrt(variance) * rng.standard_normal(variance.shape)


def main() -> None:
    """Measure, and write what was found."""
    structures, resamples = (int(given) for given in (*sys.argv[1:], "250000", "0")[:2])
    predictions = synthetic(structures, rng=np.random.default_rng(0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu_start = time.perf_counter(), time.process_time()
    evaluation = summarise(predictions, resamples=resamples)
    metrics_seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        figures = save_figures([evaluation], [predictions], Path(folder) / "figures")
        figures_seconds = time.perf_counter() - start - metrics_seconds
        write_report(Path(folder) / "report.html", [evaluation], [predictions], figures=figures)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    result = {
        "structures": structures,
        "force_components": predictions.structures.forces.size,
        "slices": len(evaluation.breakdown),
        "resamples": resamples,
        "seconds": round(seconds, 1),
        "of_which_metrics": round(metrics_seconds, 1),
        "of_which_figures": round(figures_seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "highest_resident_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "of_which_before_gib": round(before / 2**20, 2),
    }
    print(json.dumps(result, indent=1))
    if not resamples:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
