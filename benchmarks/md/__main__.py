"""Molecular dynamics with huefield's calculator, beside SchNetPack's: results.json, table.md and plot.png.

python benchmarks/md [JOB ...] [--quick] [--rounds N] [--out FOLDER]

molecule            27 atoms, 5 members: our calculator, the compiled program alone, SchNetPack's calculators
box-192 and others  water with 1 and 5 members
skins-27 and others water and the molecule with skins of several widths
long                100 000 steps: memory and compilations

Every sample is a fresh process on two cores. The sides take turns, with glibc's malloc as it is and tuned, and so do
the variants within a process; what else the machine did meanwhile is recorded. A job that is run alone takes its place
among what the results already hold. Linux only.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import beside
from environments import MALLOC
from figure import plot
from jobs import JOBS, Sample
from processes import peer_or_none, worked
from records import told, write_results
from tables import Record, checks, summarise, table

SCRIPTS = {"ours": "with_huefield.py", "peer": "with_schnetpack.py"}


def runs(job: str, peer: Path | None) -> Iterator[tuple[str, str, Path]]:
    """Side, malloc and interpreter of all processes of a job, the sides in turn."""
    ours, shared = Path(sys.executable), JOBS[job].kind == "molecule"
    for malloc in MALLOC if shared else ["default"]:
        yield "ours", malloc, ours
        if shared and peer is not None:
            yield "peer", malloc, peer


def collect(jobs: list[str], peer: Path | None, rounds: int, quick: bool) -> Iterator[Record]:
    """All samples of all rounds; the long run is long enough to be made once."""
    with tempfile.TemporaryDirectory() as cache:
        for number in range(rounds):
            for job in (job for job in jobs if number == 0 or JOBS[job].kind != "long"):
                for side, malloc, python in runs(job, peer):
                    command = [str(python), str(beside.HERE / SCRIPTS[side]), job, *["--quick"] * quick]
                    found, elsewhere = worked(command, malloc, Path(cache))
                    yield Record(job, side, malloc, number, quick, elsewhere, Sample(**found))


def best(record: Record) -> str:
    """The best figure of each variant of a sample, in words."""
    return "milliseconds: " + ", ".join(f"{name} {min(s) * 1e3:.2f}" for name, s in record.sample.seconds.items())


def with_older(records: list[Record], jobs: list[str], folder: Path) -> list[Record]:
    """With what the folder holds of other jobs."""
    path = folder / "results.json"
    older = json.loads(path.read_text())["records"] if path.exists() else []
    kept = [Record.from_dict(record) for record in older if record["job"] not in jobs]
    return sorted([*kept, *records], key=lambda record: list(JOBS).index(record.job))


def write(records: list[Record], folder: Path) -> str:
    """Write all results; returns the tables."""
    summary = summarise(records)
    judged = checks(summary)
    text = table(summary, judged)
    write_results(
        folder,
        text,
        quiet=all(entry.quiet for entry in summary.values()),
        checks=[check.as_dict(quiet) for check, quiet in judged],
        summary=[dataclasses.asdict(entry) for entry in summary.values()],
        records=[dataclasses.asdict(record) for record in records],
    )
    plot(summary, folder / "plot.png")
    return text


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="one round with few steps")
    parser.add_argument("--rounds", type=int, help="fresh processes for each job, side and malloc")
    parser.add_argument("--no-peer", action="store_true", help="without SchNetPack")
    parser.add_argument(
        "--out", type=Path, default=beside.HERE.parent / "results" / "md", help="folder for the results"
    )
    given = parser.parse_args()
    if unknown := sorted(set(given.jobs) - set(JOBS)):
        parser.error(f"there is no job {unknown[0]!r}, only {', '.join(JOBS)}")
    jobs = given.jobs or list(JOBS)
    peer = peer_or_none() if "molecule" in jobs and not given.no_peer else None
    rounds = given.rounds or (1 if given.quick else 3)
    records = told(collect(jobs, peer, rounds, given.quick), best)
    print(write(with_older(records, jobs, given.out), given.out))


if __name__ == "__main__":
    main()
