"""From samples to medians, from medians to what was promised, and both to a table and a plot."""

import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any

from jobs import ATOMS, JOBS, Sample
from measure import MEMBERS
from report import BUSY_CORES, SIDES, Check, promise

GROWTH_MB = 5.0
"""Allocators breathe; a leak of 100 bytes a step would be twice this."""


@dataclasses.dataclass(frozen=True)
class Record:
    """A sample, and where it comes from."""

    job: str
    side: str
    malloc: str
    round: int
    quick: bool
    elsewhere_cores: float
    """Cores that other work kept busy."""
    sample: Sample

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "Record":
        """From JSON."""
        return cls(**{**given, "sample": Sample(**given["sample"])})


@dataclasses.dataclass(frozen=True)
class Summary:
    """All blocks of one variant of a job."""

    job: str
    side: str
    malloc: str
    variant: str
    median_seconds: float
    """For a step."""
    best_seconds: float
    blocks: int
    peak_mb: float
    quiet: bool
    figures: dict[str, float]


Key = tuple[str, str, str, str]
"""Job, side, malloc, variant."""
Summaries = dict[Key, Summary]
Judged = tuple[Check, bool]
"""A figure, and whether the machine was quiet when it was taken."""


def summarise(records: list[Record]) -> Summaries:
    """Pool the blocks of all rounds."""
    groups: dict[Key, list[Record]] = {}
    for record in records:
        for variant in record.sample.seconds:
            groups.setdefault((record.job, record.side, record.malloc, variant), []).append(record)
    return {key: _summary(key, group) for key, group in groups.items()}


def _summary(key: Key, group: list[Record]) -> Summary:
    seconds = [second for record in group for second in record.sample.seconds[key[-1]]]
    figures = {
        name: statistics.median(record.sample.figures[name] for record in group) for name in group[0].sample.figures
    }
    return Summary(
        *key,
        median_seconds=statistics.median(seconds),
        best_seconds=min(seconds),
        blocks=len(seconds),
        peak_mb=max(record.sample.peak_mb for record in group),
        quiet=all(record.elsewhere_cores <= BUSY_CORES for record in group),
        figures=figures,
    )


def checks(found: Summaries) -> list[Judged]:
    """Everything that was promised and measured."""
    return [*_overhead(found), *_beside_peer(found), *_growth(found), *_long(found)]


def _overhead(found: Summaries) -> Iterator[Judged]:
    names = ("bare on_request", "on_request", "bare always", "always")
    step = {name: found.get(("molecule", "ours", "default", name)) for name in names}
    for of, to, what, most in (
        ("on_request", "bare on_request", "through ASE relative to the compiled program", 1.5),
        ("always", "on_request", "uncertainty in each step relative to none", 1.7),
        ("bare always", "bare on_request", "the same of the compiled programs", None),
    ):
        yield from _ratio(step[of], step[to], f"27 atoms, {MEMBERS} members: {what}", at_most=most)


def _beside_peer(found: Summaries) -> Iterator[Judged]:
    """The promise is for SchNetPack as installed, and the best of all that it has in ASE."""
    ours = found.get(("molecule", "ours", "default", "on_request"))
    certain = found.get(("molecule", "ours", "default", "always"))
    for malloc in ("default", "tuned"):
        peers = [s for key, s in found.items() if key[:3] == ("molecule", "peer", malloc)]
        if ours is None or certain is None or not peers:
            continue
        _require_same_path(ours, peers)
        best = min((s for s in peers if s.variant != "own engine"), key=lambda s: s.median_seconds)
        said = f"27 atoms, {MEMBERS} members: times faster than SchNetPack" + ", malloc tuned" * (malloc == "tuned")
        yield from _ratio(
            best, ours, f"{said}, best through ASE ({best.variant})", at_least=5.0 if malloc == "default" else None
        )
        yield from _ratio(best, certain, f"{said}, ours with uncertainty in each step")
        for peer in peers:
            yield from _ratio(peer, ours, f"{said}, {peer.variant}")


def _require_same_path(ours: Summary, peers: list[Summary]) -> None:
    places = sorted({round(summary.figures["place"], 6) for summary in (ours, *peers)})
    if len(places) > 1:
        raise ValueError(f"both sides must see the same positions, but these sums of them differ: {places}")


def _growth(found: Summaries) -> Iterator[Judged]:
    first, *_, last = ATOMS
    for job in ATOMS:
        single = found.get((job, "ours", "default", "1 members"))
        if single is not None:
            name = f"water, {ATOMS[job]} atoms: compilations"
            yield Check(name, single.figures["compilations"], at_most=2.0), True
    for members in (1, MEMBERS):
        small, large = (found.get((job, "ours", "default", f"{members} members")) for job in (first, last))
        if small is None or large is None:
            continue
        ratio = (large.median_seconds / ATOMS[last]) / (small.median_seconds / ATOMS[first])
        name = f"water, {ATOMS[first]} to {ATOMS[last]} atoms, {members} members: time per atom, largest to smallest"
        yield Check(name, ratio, at_most=1.3), small.quiet and large.quiet


def _long(found: Summaries) -> Iterator[Judged]:
    """Memory and compilations do not depend on what else the machine does; a quick run proves nothing."""
    run = found.get(("long", "ours", "default", "step"))
    if run is None:
        return
    figures, whole = run.figures, run.figures["steps"] >= JOBS["long"].steps
    name = f"9 atoms, {figures['steps']:.0f} steps: "
    grown = figures["resident_mb_end"] - figures["resident_mb_early"]
    yield Check(name + "growth of memory after the first 1000 [MB]", grown, at_most=GROWTH_MB if whole else None), True
    late = figures["compilations_late"]
    yield Check(name + "compilations after the first 1000", late, at_most=0.0 if whole else None), True


def _ratio(
    of: Summary | None, to: Summary | None, name: str, *, at_least: float | None = None, at_most: float | None = None
) -> Iterator[Judged]:
    if of is not None and to is not None:
        check = Check(name, of.median_seconds / to.median_seconds, at_least=at_least, at_most=at_most)
        yield check, of.quiet and to.quiet


def table(found: Summaries, judged: list[Judged]) -> str:
    """All tables in Markdown: promises, steps, and skins."""
    kept = ["| | measured | promised | |", "|---|---|---|---|", *(promise(*each) for each in judged)]
    steps = ["", "| a step of | milliseconds, median (best) | peak MB | |", "|---|---|---|---|"]
    steps += [_row(summary) for summary in found.values()]
    return "\n".join([*kept, *steps, *_skins(found)]) + "\n"


def _row(summary: Summary) -> str:
    name = f"{summary.job}: {SIDES[summary.side]}, {summary.variant}" + ", malloc tuned" * (summary.malloc == "tuned")
    times = f"{summary.median_seconds * 1e3:.2f} ({summary.best_seconds * 1e3:.2f})"
    return f"| {name} | {times} | {summary.peak_mb:.0f} | {'' if summary.quiet else 'machine was busy'} |"


def _skins(found: Summaries) -> list[str]:
    """Milliseconds for a step and steps between searches, for each skin."""
    jobs = [name for name, job in JOBS.items() if job.kind == "skins"]
    widths = list(dict.fromkeys(key[-1] for key in found if key[0] in jobs))
    if not widths:
        return []
    head = " | ".join(f"{width} Å" for width in widths)
    rows = ["", f"| milliseconds (steps between searches) with a skin of | {head} |", "|---|" + "---|" * len(widths)]
    for job in jobs:
        cells = [_skin_cell(found.get((job, "ours", "default", width))) for width in widths]
        rows.append(f"| {job.removeprefix('skins-')} atoms | {' | '.join(cells)} |")
    return rows


def _skin_cell(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    between = summary.figures[f"steps_between_searches {summary.variant}"]
    return f"{summary.median_seconds * 1e3:.2f} ({between:.1f})"
