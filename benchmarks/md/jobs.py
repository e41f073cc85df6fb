"""The jobs, their lengths, and the records of a worker."""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from typing import Literal

from measure import memory_mb

SKINS_ANGSTROM = (0.0, 0.2, 0.4, 0.8)
FEW_STEPS = 1000
"""Steps of the long run after which everything must be compiled and allocated."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One kind of dynamics."""

    kind: Literal["molecule", "box", "skins", "long"]
    system: str
    """A case of ``benchmarks/painn/cases.py``, or ``ethanol``."""
    steps: int
    """Steps of a block, which is timed as a whole: neighbours are searched in some steps only."""
    blocks: int
    quick_steps: int
    quick_blocks: int = 1

    def length(self, quick: bool) -> tuple[int, int]:
        """Blocks, and steps of each."""
        return (self.quick_blocks, self.quick_steps) if quick else (self.blocks, self.steps)


JOBS = {
    "molecule": Job("molecule", "molecule", 60, 8, 10, 2),
    "box-192": Job("box", "water-1", 60, 3, 30),
    "box-1536": Job("box", "water-2", 40, 2, 15),
    "box-12288": Job("box", "water-4", 20, 1, 3),
    "skins-27": Job("skins", "molecule", 200, 4, 60),
    "skins-192": Job("skins", "water-1", 100, 3, 40),
    "skins-1536": Job("skins", "water-2", 50, 2, 15),
    "long": Job("long", "ethanol", 100_000, 1, 5_000),
}
ATOMS = {"box-192": 192, "box-1536": 1536, "box-12288": 12288}


@dataclasses.dataclass(frozen=True)
class Sample:
    """Measurements of one process."""

    seconds: dict[str, list[float]]
    """For a step of each variant: the mean of each block."""
    figures: dict[str, float]
    """Further figures of the job."""
    peak_mb: float
    """The most that the process ever had resident."""


Steps = Callable[[int], None]
"""Goes so many steps further."""


def take_turns(variants: Mapping[str, Steps], blocks: int, steps: int) -> dict[str, list[float]]:
    """Seconds for a step in each block; variants take turns, so that they share whatever else the machine does."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for run in variants.values():
        run(3)
    for _ in range(blocks):
        for name, run in variants.items():
            begin = time.perf_counter()
            run(steps)
            seconds[name].append((time.perf_counter() - begin) / steps)
    return seconds


Worked = tuple[dict[str, list[float]], dict[str, float]]
"""Seconds and figures of a sample."""


def work(measure: Callable[[Job, bool], Worked]) -> None:
    """The main function of a worker: the job is its argument, the sample goes out as one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    seconds, figures = measure(JOBS[given.job], given.quick)
    print(json.dumps(dataclasses.asdict(Sample(seconds, figures, memory_mb("VmHWM")))))
