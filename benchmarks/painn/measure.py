"""Code of both workers: the job, two cores, a clock and the memory of the process."""

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Callable
from typing import Any, Literal

CORES = int(os.environ.get("BENCH_CORES", "2"))
"""Cores of a worker. With one, processor time is measured: other work changes it less than the time that passes."""
LAYERS = 3
RADIAL_FUNCTIONS = 20
MEMBERS = 5


@dataclasses.dataclass(frozen=True)
class Job:
    """Something to time."""

    kind: Literal["train", "inference", "ensemble", "compile"]
    system: str
    features: int
    noise: Literal["colored", "local", "vanilla"] = "colored"
    """Noise model of our side; others have none."""
    potential: Literal["painn", "mace"] = "painn"

    @property
    def name(self) -> str:
        """Name on the command line and in the results."""
        return "_".join((self.kind, self.system, str(self.features), self.noise, self.potential)).removesuffix("_painn")

    @classmethod
    def from_name(cls, name: str) -> "Job":
        """The job of a name."""
        kind, system, features, *others = name.split("_")
        return cls(kind, system, int(features), *others)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Sample:
    """Measurements of one process."""

    seconds: list[float]
    """Seconds of each repetition."""
    atoms: int
    pairs: int
    resident_before_mb: float
    """Before the first repetition, warm-up included."""
    peak_mb: float
    """The most that the process ever had resident."""
    parts: dict[str, float] = dataclasses.field(default_factory=dict)
    """Further figures of a job, in seconds."""


def use_two_cores() -> None:
    """Keep this process and all threads that it will start on its cores; call before libraries count them."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def repeat(run: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each repetition."""
    seconds, clock = [], time.process_time if CORES == 1 else time.perf_counter
    for _ in range(repeats):
        start = clock()
        run()
        seconds.append(clock() - start)
    return seconds


def memory_mb(field: Literal["VmRSS", "VmHWM"]) -> float:
    """Resident memory of this process: now (``VmRSS``) or at its highest (``VmHWM``)."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024 / 1e6


def work(measure: Callable[[Job, int], Sample]) -> None:
    """The main function of a worker: job and repetitions are its arguments, the sample goes out as one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Job.from_name)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(json.dumps(dataclasses.asdict(measure(arguments.job, arguments.repeats))))
