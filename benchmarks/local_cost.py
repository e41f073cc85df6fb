"""Time of local noise relative to colored noise with γ per atom, the default before it: a ratio for each job.

python benchmarks/local_cost.py [--repeats N]        writes benchmarks/results/local_cost.json

Both noise models take turns in one process, so that they share whatever else the machine does; the ratio is that of
the best times. Aim: at most 1.05.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "painn"))

from measure import Job, repeat, use_two_cores  # noqa: E402

use_two_cores()

from cases import systems  # noqa: E402
from ours import batch_of, runs_of  # noqa: E402

JOBS = (
    Job("train", "molecules", 64),
    Job("train", "molecules", 256),
    Job("inference", "molecules", 64),
    Job("inference", "molecules", 256),
    Job("ensemble", "molecule", 64),
)


def ratio(job: Job, repeats: int) -> dict[str, float]:
    """Best seconds of both noise models, and their ratio."""
    batch = batch_of(systems(job.system))
    runs = {noise: runs_of(replace(job, noise=noise), batch)[0] for noise in ("colored", "local")}
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        repeat(run, 2)
    for _ in range(repeats):
        for noise, run in runs.items():
            best[noise] = min(best[noise], *repeat(run, 3))
    return {**best, "ratio": best["local"] / best["colored"]}


def main() -> None:
    """Measure, write and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    given = parser.parse_args()
    found = {job.name: ratio(job, given.repeats) for job in JOBS}
    (HERE / "results" / "local_cost.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, row in found.items():
        print(f"{name}: local / colored = {row['ratio']:.3f}")


if __name__ == "__main__":
    main()
