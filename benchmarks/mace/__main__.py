"""MACE of huefield against mace-torch, side by side: results.json, table.md and plot.png.

Without --out and --only, the tables and the plot of docs/mace-speed.md too.

python benchmarks/mace [--quick] [--rounds N] [--only JOB] [--out FOLDER]

Every sample is a fresh process on two cores (BENCH_CORES=1: on one core, in processor time). The sides take turns, with
glibc's malloc as it is and tuned; how much other work the machine did is recorded. mace-torch is installed by itself at
the first run. Linux only.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import beside
from environments import MALLOC
from measure import CORES, Job, Sample
from pages import DOCS, fill
from processes import peer_or_none, worked
from records import told, write_results
from report import Check, Record, Summaries, plot, promises_table, quiet, summarise, times_table, title

KEPT = beside.HERE.parent / "results" / "mace"
SIDES = {"peer": "mace-torch", "ours": "huefield"}
SHARED = tuple(
    Job(kind, system, channels, potential="mace")  # type: ignore[arg-type]
    for kind, system in (("train", "molecules"), ("inference", "molecules"), ("ensemble", "molecule"))
    for channels in (64, 128)
)
"""Jobs of both sides."""
GROWTH = tuple(Job("inference", f"water-{repetitions}", 64, potential="mace") for repetitions in (1, 2, 4))
TIMES_FASTER = {"train": 3.0, "inference": 3.0, "ensemble": 5.0}
PEAK_MEMORY = 0.7


def collect(jobs: list[Job], peer: Path | None, number: int, quick: bool, cache: Path) -> Iterator[Record]:
    """All samples of a round, the sides in turn."""
    for job in jobs:
        for malloc in MALLOC if job in SHARED else ["default"]:
            for side, python, script in (
                ("ours", Path(sys.executable), beside.HERE.parent / "painn" / "ours.py"),
                ("peer", peer, beside.HERE / "with_mace_torch.py"),
            ):
                if python is None or (side == "peer" and job not in SHARED):
                    continue
                repeats = (3 if quick else 6) * (5 if job.kind == "ensemble" else 1)
                command = [str(python), str(script), job.name, "--repeats", str(repeats)]
                found, elsewhere = worked(command, malloc, cache)
                yield Record(job.name, side, malloc, number, elsewhere, Sample(**found))


def checks(found: Summaries) -> list[Check]:
    """Ratios to mace-torch, and growth with the number of atoms."""
    result = []
    for job in SHARED:
        sides = [[found.get((job.name, side, malloc)) for malloc in MALLOC] for side in ("ours", "peer")]
        if any(summary is None for side in sides for summary in side):
            continue
        (ours, _), (peer, tuned) = sides
        assert ours is not None  # noqa: S101
        assert peer is not None  # noqa: S101
        assert tuned is not None  # noqa: S101
        if ours.pairs != peer.pairs:
            raise ValueError(f"both sides of {job.name} must see the same pairs: {ours.pairs} and {peer.pairs}")
        name = title(job)
        result += [
            Check(f"{name}: times faster", peer.median_seconds / ours.median_seconds, TIMES_FASTER[job.kind]),
            Check(f"{name}: times faster, best of all", peer.best_seconds / ours.best_seconds),
            Check(f"{name}: times faster than with tuned malloc", tuned.median_seconds / ours.median_seconds),
        ]
        if job.kind != "ensemble":
            cached = f"{name}: peak memory of the process, program from the cache"
            result.append(Check(cached, ours.least_peak_mb / peer.least_peak_mb, at_most=PEAK_MEMORY))
            result.append(Check(f"{name}: the same, compilation included", ours.peak_mb / peer.peak_mb))
    return result + growth(found)


def growth(found: Summaries) -> list[Check]:
    """Time and memory of water boxes for each atom, the largest relative to the smaller ones."""
    boxes = [found[key] for job in GROWTH if (key := (job.name, "ours", "default")) in found]
    if len(boxes) < len(GROWTH):
        return []
    small, middle, large = boxes
    time = (large.median_seconds / large.atoms) / (small.median_seconds / small.atoms)
    memory = (large.growth_mb / large.atoms) / (middle.growth_mb / middle.atoms)
    return [
        Check(f"water, {small.atoms} to {large.atoms} atoms: time of an atom, largest to smallest", time, at_most=1.3),
        Check(f"water, {middle.atoms} to {large.atoms} atoms: memory of an atom, the same", memory, at_most=1.3),
        Check(f"water, {large.atoms} atoms: seconds", large.median_seconds),
        Check(f"water, {large.atoms} atoms: peak memory [GB]", large.peak_mb / 1e3),
    ]


def best(record: Record) -> str:
    """The best figure of a sample, in words."""
    return f"{min(record.sample.seconds) * 1e3:.1f} ms, {record.sample.peak_mb:.0f} MB"


def write(records: list[Record], folder: Path, *, document: bool) -> str:
    """Write all results, into the documentation too if asked to; returns the table."""
    summary = summarise(records)
    found = checks(summary)
    text = times_table(summary, SHARED, SIDES) + "\n" + promises_table(summary, found)
    write_results(
        folder,
        text,
        cores=CORES,
        quiet=quiet(summary),
        checks=[check.as_dict(quiet(summary)) for check in found],
        summary=[entry.as_dict() for entry in summary.values()],
        records=[record.as_dict() for record in records],
    )
    plot(summary, folder / "plot.png", SHARED, SIDES)
    if document:
        fill("mace-speed.md", {"mace": text})
        shutil.copy(folder / "plot.png", DOCS / "images" / "mace-benchmark.png")
    return text


def main() -> None:
    """Measure, and write what was found."""
    known = {job.name: job for job in (*SHARED, *GROWTH)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round with half of the repetitions")
    parser.add_argument("--rounds", type=int, help="fresh processes for each job, side and malloc")
    parser.add_argument("--only", action="append", choices=known, metavar="JOB", help=f"of {', '.join(known)}")
    parser.add_argument("--out", type=Path, default=KEPT, help="folder for the results")
    given = parser.parse_args()
    jobs = [known[name] for name in given.only or known]
    peer = peer_or_none(beside.MACE_TORCH) if set(jobs) & set(SHARED) else None
    rounds = given.rounds or (1 if given.quick else 3)
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as cache:
        for number in range(rounds):  # written after each, so that an interrupted run leaves its results
            records += told(collect(jobs, peer, number, given.quick, Path(cache)), best)
            text = write(records, given.out, document=given.out == KEPT and not given.only)
    print(text)


if __name__ == "__main__":
    main()
