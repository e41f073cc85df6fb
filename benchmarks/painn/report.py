"""From samples to medians, from medians to what was promised, and both to a table and a plot."""

import dataclasses
import statistics
from pathlib import Path
from typing import Any

from measure import Job, Sample

SHARED = (
    Job("train", "molecules", 256),
    Job("train", "molecules", 64),
    Job("inference", "molecules", 256),
    Job("inference", "molecules", 64),
    Job("ensemble", "molecule", 64),
)
"""Jobs of both sides."""
VANILLA = tuple(dataclasses.replace(job, noise="vanilla") for job in SHARED if job.kind != "ensemble")
GROWTH = tuple(Job("inference", f"water-{repetitions}", 64) for repetitions in (1, 2, 4))
COMPILE = (Job("compile", "molecules", 256),)

TIMES_FASTER = dict(zip((job.name for job in SHARED), (3.0, 1.5, 4.0, None, 5.0), strict=True))
"""Targets relative to SchNetPack as installed."""
LABELS = {
    "train": "training step, 64 × 15 atoms",
    "inference": "inference, 64 × 15 atoms",
    "ensemble": "5 members, 27 atoms",
}
SIDES = {"peer": "SchNetPack", "ours": "huefield"}
GIBIBYTE_MB = 2**30 / 1e6
BUSY_CORES = 0.2
"""Where other work used more than this meanwhile, no verdict is given: PyTorch's threads wait for one another in busy
loops, so that one more process on their cores makes SchNetPack many times slower, and us look that much better."""

Key = tuple[str, str, str]
"""Job, side, malloc."""


@dataclasses.dataclass(frozen=True)
class Record:
    """A sample, and where it comes from."""

    job: str
    side: str
    malloc: str
    round: int
    elsewhere_cores: float
    """Cores that other work kept busy."""
    sample: Sample

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Summary:
    """All samples of one job on one side with one malloc."""

    job: str
    side: str
    malloc: str
    median_seconds: float
    best_seconds: float
    repetitions: int
    atoms: int
    pairs: int
    resident_before_mb: float
    peak_mb: float
    """The highest of all processes: of the first one, which compiles."""
    least_peak_mb: float
    """The lowest of all processes: from the second round on they find the compiled program in the cache."""
    parts_median: dict[str, float]
    elsewhere_cores: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @property
    def growth_mb(self) -> float:
        """Memory that the job added to the process."""
        return self.peak_mb - self.resident_before_mb


@dataclasses.dataclass(frozen=True)
class Check:
    """A figure, and what was promised of it."""

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        """Whether the promise is kept."""
        low = self.at_least is None or self.value >= self.at_least
        return low and (self.at_most is None or self.value <= self.at_most)

    def as_dict(self, trusted: bool) -> dict[str, Any]:
        """For JSON; without a verdict where nothing was promised, or the figure cannot be trusted."""
        promised = self.at_least is not None or self.at_most is not None
        return {**dataclasses.asdict(self), "met": self.met if promised and trusted else None}


Summaries = dict[Key, Summary]


def summarise(records: list[Record]) -> Summaries:
    """Pool the repetitions of all rounds; of peaks the highest counts."""
    groups: dict[Key, list[Record]] = {}
    for record in records:
        groups.setdefault((record.job, record.side, record.malloc), []).append(record)
    return {key: _summary(key, group) for key, group in groups.items()}


def _summary(key: Key, group: list[Record]) -> Summary:
    samples = [record.sample for record in group]
    seconds = [second for sample in samples for second in sample.seconds]
    parts = {name: statistics.median(sample.parts[name] for sample in samples) for name in samples[0].parts}
    return Summary(
        *key,
        median_seconds=statistics.median(seconds),
        best_seconds=min(seconds),
        repetitions=len(seconds),
        atoms=samples[0].atoms,
        pairs=samples[0].pairs,
        resident_before_mb=statistics.median(sample.resident_before_mb for sample in samples),
        peak_mb=max(sample.peak_mb for sample in samples),
        least_peak_mb=min(sample.peak_mb for sample in samples),
        parts_median=parts,
        elsewhere_cores=max(record.elsewhere_cores for record in group),
    )


def quiet(found: Summaries) -> bool:
    """Whether the machine had nothing else to do all the time."""
    return all(summary.elsewhere_cores <= BUSY_CORES for summary in found.values())


def checks(found: Summaries) -> list[Check]:
    """Everything that was promised and measured."""
    return [
        *_speed(found),
        *_checked_ensemble(found),
        *_memory(found),
        *_price_of_noise(found),
        *_growth(found),
        *_compilation(found),
    ]


def _speed(found: Summaries) -> list[Check]:
    result = []
    for job in SHARED:
        sides = {
            (side, malloc): found.get((job.name, side, malloc)) for side in SIDES for malloc in ("default", "tuned")
        }
        if any(summary is None for summary in sides.values()):
            continue
        _require_same_pairs(job, [summary.pairs for summary in sides.values() if summary is not None])
        seconds = {key: summary.median_seconds for key, summary in sides.items() if summary is not None}
        installed = seconds["peer", "default"] / seconds["ours", "default"]
        result.append(Check(f"{title(job)}: times faster", installed, at_least=TIMES_FASTER[job.name]))
        for malloc in ("default", "tuned"):
            ratio = seconds["peer", "tuned"] / seconds["ours", malloc]
            wanted = f"{title(job)}: times faster than with tuned malloc (ours: {malloc})"
            result.append(Check(wanted, ratio, at_least=1.0 if malloc == "default" else None))
    return result


def _require_same_pairs(job: Job, pairs: list[int]) -> None:
    if len(set(pairs)) > 1:
        raise ValueError(
            f"both sides of {job.name} must see the same pairs, but their numbers are {sorted(set(pairs))}"
        )


def _checked_ensemble(found: Summaries) -> list[Check]:
    ours, peer = (found.get((SHARED[-1].name, side, "default")) for side in ("ours", "peer"))
    if ours is None or peer is None:
        return []
    ratio = peer.median_seconds / ours.parts_median["with_checks_median"]
    return [Check(f"{title(SHARED[-1])}: times faster, our checks of the result included", ratio, at_least=5.0)]


def _memory(found: Summaries) -> list[Check]:
    job = SHARED[0].name
    ours, peer = (found.get((job, side, "default")) for side in ("ours", "peer"))
    if ours is None or peer is None:
        return []
    return [
        Check(
            f"{title(SHARED[0])}: peak memory of the process relative to SchNetPack's, program from the cache",
            ours.least_peak_mb / peer.least_peak_mb,
            at_most=0.5,
        ),
        Check(f"{title(SHARED[0])}: the same, compilation included", ours.peak_mb / peer.peak_mb),
        Check(f"{title(SHARED[0])}: the same without what was resident before", ours.growth_mb / peer.growth_mb),
    ]


def _price_of_noise(found: Summaries) -> list[Check]:
    result = []
    for job in VANILLA:
        vanilla = found.get((job.name, "ours", "default"))
        colored = found.get((dataclasses.replace(job, noise="colored").name, "ours", "default"))
        if vanilla is not None and colored is not None:
            ratio = colored.median_seconds / vanilla.median_seconds
            result.append(Check(f"{title(job)}: colored noise relative to none", ratio, at_most=1.6))
    return result


def _growth(found: Summaries) -> list[Check]:
    boxes = [found[key] for job in GROWTH if (key := (job.name, "ours", "default")) in found]
    if len(boxes) < len(GROWTH):
        return []
    small, large = boxes[0], boxes[-1]
    seconds = [box.median_seconds / box.atoms for box in boxes]
    # Between the two largest: the smallest box is small beside what every process has.
    memory = (large.growth_mb / large.atoms) / (boxes[1].growth_mb / boxes[1].atoms)
    return [
        Check(
            f"water, {small.atoms} to {large.atoms} atoms, F=64: time per atom, largest relative to smallest",
            seconds[-1] / seconds[0],
            at_most=1.3,
        ),
        Check(
            f"water, {boxes[1].atoms} to {large.atoms} atoms: memory per atom, largest relative to smaller",
            memory,
            at_most=1.3,
        ),
        Check(f"water, {large.atoms} atoms, F=64: peak memory [GiB]", large.peak_mb / GIBIBYTE_MB, at_most=16.0),
    ]


def _compilation(found: Summaries) -> list[Check]:
    result = []
    for state, most in (("cold", 10.0), ("warm", None)):
        summary = found.get((f"{COMPILE[0].name}_{state}", "ours", "default"))
        if summary is not None:
            name = f"compilation of the training step, F=256, {state} cache [s]"
            result.append(Check(name, summary.parts_median["compile"], at_most=most or 1.0))
            result.append(Check(f"{name}, tracing included", summary.median_seconds, at_most=most))
    return result


def title(job: Job) -> str:
    """A job in words."""
    return (
        f"{LABELS[job.kind]}, {job.features} channels"
        if job.potential == "mace"
        else f"{LABELS[job.kind]}, F={job.features}"
    )


def table(found: Summaries, promises: list[Check]) -> str:
    """All tables in Markdown: what was measured, and what was promised."""
    others = ["| huefield alone | milliseconds, median (best); peak MB |", "|---|---|"]
    shared = {job.name for job in SHARED}
    others += [f"| {key[0]} | {_cell(summary)} |" for key, summary in found.items() if key[0] not in shared]
    return "\n".join([times_table(found), *others, "", promises_table(found, promises)])


def times_table(found: Summaries, shared: tuple[Job, ...] = SHARED, sides: dict[str, str] = SIDES) -> str:
    """The jobs that both sides do."""
    columns = [(side, malloc) for side in sides for malloc in ("default", "tuned")]
    names = [sides[side] + ", malloc tuned" * (malloc == "tuned") for side, malloc in columns]
    head = [f"| milliseconds, median (best); peak MB | {' | '.join(names)} |", "|---|---|---|---|---|"]
    rows = [
        f"| {title(job)} | " + " | ".join(_cell(found.get((job.name, *column))) for column in columns) + " |"
        for job in shared
    ]
    return "\n".join([*head, *rows]) + "\n"


def promises_table(found: Summaries, promises: list[Check]) -> str:
    """The targets, and whether they are met."""
    rows = [promise(check, quiet(found)) for check in promises]
    return "\n".join(["| | measured | aim | |", "|---|---|---|---|", *rows]) + "\n"


def _cell(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    return f"{summary.median_seconds * 1e3:.1f} ({summary.best_seconds * 1e3:.1f}); {summary.peak_mb:.0f}"


def promise(check: Check, trusted: bool) -> str:
    """A row of a table: what was measured, what was promised, and whether it is kept."""
    bounds = {"≥": check.at_least, "≤": check.at_most}
    text = " ".join(f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None)
    verdict = ("met" if check.met else "missed") if trusted else "machine was busy"
    return f"| {check.name} | {check.value:.2f} | {text or '–'} | {verdict if text else ''} |"


def plot(found: Summaries, path: Path, shared: tuple[Job, ...] = SHARED, sides: dict[str, str] = SIDES) -> None:
    """Bars of the jobs that both sides do: times, and the memory of the processes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(2, 1, figsize=(9, 7), sharex=True, layout="constrained")
    looks = {
        ("peer", "default"): "#b45f06",
        ("peer", "tuned"): "#f1b26e",
        ("ours", "default"): "#1f4e79",
        ("ours", "tuned"): "#7fb0dc",
    }
    for number, ((side, malloc), color) in enumerate(looks.items()):
        kept = [
            (place, s) for place, job in enumerate(shared) if (s := found.get((job.name, side, malloc))) is not None
        ]
        places = [place + 0.2 * (number - 1.5) for place, _ in kept]
        label = sides[side] + ", malloc tuned" * (malloc == "tuned")
        panels[0].bar(places, [s.median_seconds * 1e3 for _, s in kept], 0.2, color=color, label=label)
        panels[0].plot(places, [s.best_seconds * 1e3 for _, s in kept], "k_", ms=9)
        panels[1].bar(places, [s.peak_mb for _, s in kept], 0.2, color=color)
    panels[0].set(yscale="log", ylabel="milliseconds (bar: median, line: best)")
    panels[1].set(ylabel="peak memory of the process [MB]")
    panels[1].set_xticks(range(len(shared)), [title(job).replace(", ", "\n") for job in shared], fontsize=8)
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
