"""PaiNN of huefield against that of SchNetPack, side by side: results.json, table.md and plot.png.

Without --out and --only, the tables and the plot of docs/painn-speed.md too.

python benchmarks/painn [--quick] [--rounds N] [--only JOB] [--out FOLDER]

Every sample is a fresh process on two cores. The sides take turns, with glibc's malloc as it is and tuned, so that they
share whatever else the machine does; how much that was is recorded. SchNetPack is installed by itself at the first run.
Linux only.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from environments import HERE, MALLOC
from measure import Job, Sample
from pages import DOCS, fill
from processes import peer_or_none, worked
from records import told, write_results
from report import (
    COMPILE,
    GROWTH,
    SHARED,
    VANILLA,
    Record,
    checks,
    plot,
    promises_table,
    quiet,
    summarise,
    table,
    times_table,
)

KEPT = HERE.parent / "results" / "painn"


@dataclass(frozen=True)
class Run:
    """One process to start."""

    job: Job
    side: str
    malloc: str
    python: Path


def runs(jobs: list[Job], peer: Path | None) -> Iterator[Run]:
    """All processes of a round, the sides in turn."""
    ours = Path(sys.executable)
    for job in jobs:
        for malloc in MALLOC if job in SHARED else ["default"]:
            yield Run(job, "ours", malloc, ours)
            if job in SHARED and peer is not None:
                yield Run(job, "peer", malloc, peer)


def repeats_of(job: Job, quick: bool) -> int:
    """Many of what takes milliseconds, few of what takes seconds."""
    usual = {"ensemble": 60, "compile": 1}.get(job.kind, 4 if job in GROWTH else 8)
    return max(1, usual // 2) if quick else usual


def sample(run: Run, repeats: int, jax_cache: Path) -> tuple[Sample, float]:
    """Start a worker; what it found, and how many cores other work kept busy meanwhile."""
    command = [str(run.python), str(HERE / f"{run.side}.py"), run.job.name, "--repeats", str(repeats)]
    found, elsewhere = worked(command, run.malloc, jax_cache)
    return Sample(**found), elsewhere


def compile_records(jobs: list[Job], number: int) -> Iterator[Record]:
    """Compilation with an empty cache, then once more with what the first process left there."""
    for job in (job for job in jobs if job in COMPILE):
        with tempfile.TemporaryDirectory() as cache:
            for state in ("cold", "warm"):
                found, elsewhere = sample(Run(job, "ours", "default", Path(sys.executable)), 1, Path(cache))
                yield Record(f"{job.name}_{state}", "ours", "default", number, elsewhere, found)


def collect(jobs: list[Job], peer: Path | None, rounds: int, quick: bool) -> Iterator[Record]:
    """All samples of all rounds."""
    with tempfile.TemporaryDirectory() as cache:
        for number in range(rounds):
            yield from compile_records(jobs, number)
            for run in runs([job for job in jobs if job not in COMPILE], peer):
                found, elsewhere = sample(run, repeats_of(run.job, quick), Path(cache))
                yield Record(run.job.name, run.side, run.malloc, number, elsewhere, found)


def best(record: Record) -> str:
    """The best figure of a sample, in words."""
    return f"{min(record.sample.seconds) * 1e3:.1f} ms, {record.sample.peak_mb:.0f} MB"


def write(records: list[Record], folder: Path, *, document: bool) -> str:
    """Write all results, into the documentation too if asked to; returns the table."""
    summary = summarise(records)
    found = checks(summary)
    text = table(summary, found)
    write_results(
        folder,
        text,
        quiet=quiet(summary),
        checks=[check.as_dict(quiet(summary)) for check in found],
        summary=[entry.as_dict() for entry in summary.values()],
        records=[record.as_dict() for record in records],
    )
    plot(summary, folder / "plot.png")
    if document:
        fill("painn-speed.md", {"painn": times_table(summary) + "\n" + promises_table(summary, found)})
        shutil.copy(folder / "plot.png", DOCS / "images" / "painn-benchmark.png")
    return text


def main() -> None:
    """Measure, and write what was found."""
    known = {job.name: job for job in (*COMPILE, *SHARED, *VANILLA, *GROWTH)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round with half of the repetitions")
    parser.add_argument("--rounds", type=int, help="fresh processes for each job, side and malloc")
    parser.add_argument("--only", action="append", choices=known, metavar="JOB", help=f"of {', '.join(known)}")
    parser.add_argument("--out", type=Path, default=KEPT, help="folder for the results")
    given = parser.parse_args()
    jobs = [known[name] for name in given.only or known]
    peer = peer_or_none() if set(jobs) & set(SHARED) else None
    rounds = given.rounds or (1 if given.quick else 3)
    records = told(collect(jobs, peer, rounds, given.quick), best)
    print(write(records, given.out, document=given.out == KEPT and not given.only))


if __name__ == "__main__":
    main()
