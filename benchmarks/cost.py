"""Cost of the paper's setting: time of its training steps here, their arithmetic, and an estimate for a GPU.

python benchmarks/cost.py        writes benchmarks/results/cost.json; on an otherwise idle machine

A batch is 64 molecules of 15 atoms, near the mean of ANI-1x, with PaiNN of 3 × 256 and a cutoff of 5 Å. Arithmetic is
what XLA counts in the step when messages are not cut into blocks: it counts a loop's body once. Assumptions about the
GPU are the constants below.
"""

import json
import sys
from pathlib import Path
from statistics import median
from typing import Literal

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "painn"))

from measure import Job, repeat, use_two_cores  # noqa: E402

use_two_cores()

import jax  # noqa: E402
from cases import systems  # noqa: E402
from ours import Training, batch_of  # noqa: E402

from huefield.core import pairwise  # noqa: E402

REPEATS = 9
STEPS = {"squared error": 2_000_000, "likelihood": 5_000_000}
"""Steps of a member; vanilla has all 7 million with squared errors."""
MEMBERS = 5
GPU, PEAK_TFLOPS = "RTX 3090", 35.6
"""In single precision, by its data sheet."""
SHARES = (0.05, 0.3)
"""Share of its peak that such a program may reach: assumed, not measured."""
PAPER_DAYS = 7.0
"""[J23]: "up to 7 days" for a member on this GPU."""


def measured(noise: Literal["colored", "vanilla"]) -> dict[str, float]:
    """Seconds and arithmetic of a step."""
    job, batch = Job("train", "molecules", features=256, noise=noise), batch_of(systems("molecules"))
    training = Training(job, batch)
    repeat(training, 2)
    seconds = median(repeat(training, REPEATS))
    return {"seconds": seconds, "gflop": counted(Training(job, batch)) / 1e9}


def counted(training: Training) -> float:
    """Floating-point operations of a step whose messages are computed in one block."""
    blocks = pairwise.BLOCK_ELEMENTS, pairwise.BLOCK_SLOTS
    pairwise.BLOCK_ELEMENTS = pairwise.BLOCK_SLOTS = 2**40
    jax.clear_caches()
    try:
        compiled = training.step.lower(training.observed, training.state).compile()
        return float(compiled.compiled.cost_analysis()["flops"])
    finally:
        pairwise.BLOCK_ELEMENTS, pairwise.BLOCK_SLOTS = blocks


def main() -> None:
    """Measure, write and tell."""
    steps = {"squared error": measured("vanilla"), "likelihood": measured("colored")}
    days = {name: STEPS[name] * found["seconds"] / 86400 for name, found in steps.items()}
    gflop = sum(STEPS[name] * found["gflop"] for name, found in steps.items())
    on_gpu = [gflop / 1e3 / (share * PEAK_TFLOPS) / 86400 for share in SHARES]
    implied = gflop / 1e3 / (PAPER_DAYS * 86400)
    result = {
        "step": steps,
        "days_here_of_a_member": days | {"together": sum(days.values())},
        "days_here_of_a_row": MEMBERS * sum(days.values()),
        "exaflop_of_a_member": gflop / 1e9,
        "gpu": {"name": GPU, "peak_tflops": PEAK_TFLOPS, "shares": SHARES, "days_of_a_member": on_gpu},
        "tflops_if_7_days": implied,
    }
    (HERE / "results" / "cost.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
