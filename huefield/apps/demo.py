"""Vanilla, white and colored ensembles on the data that come with huefield, side by side."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from huefield.apps.history import save_history_figure
from huefield.core.files import write_bytes
from huefield.data.dataset import BundledData
from huefield.training import Trained, presets, train
from huefield.training.reports import Report

KINDS = ("vanilla", "white", "colored")
METRICS = ("mae", "rmse", "nll", "rzv", "rmv")


@dataclass(frozen=True, eq=False)
class Demo:
    """What was trained, by the kind of its noise model, and the table of scores."""

    trained: dict[str, Trained]
    table: str
    files: list[Path]


def run_demo(
    out: Path, showing: Callable[[str], AbstractContextManager[Report]], should_stop: Callable[[], bool]
) -> Demo:
    """Train the three ensembles, each into a folder of its own, and compare them.

    Args:
        out: folder for all of it; what is there already is gone on with.
        showing: given the kind of an ensemble, what is told how far its training is.
        should_stop: is asked after each step.
    """
    trained, files = {}, []
    for kind in KINDS:
        config = presets.preset("tiny", BundledData(), presets.noise_of_kind(kind))
        with showing(kind) as report:
            trained[kind] = train(config, out / kind, report=report, should_stop=should_stop)
        files += [trained[kind].model, save_history_figure(out / kind)]
    table = comparison(trained)
    write_bytes(out / "comparison.md", table.encode())
    return Demo(trained, table, [out / "comparison.md", *files])


def comparison(trained: dict[str, Trained]) -> str:
    """The metrics of the paper for each part of the data and each ensemble, as Markdown."""
    kinds = {"energy": "E", "forces": "F"}
    head = [f"{short}: {metric.upper()}" for short in kinds.values() for metric in METRICS]
    lines = [
        "Units: eV and eV/Å. RZV is 1 for error bars of the right size, more where they are too small.",
        "",
        "| data | model | " + " | ".join(head) + " |",
        "|---|---|" + "---|" * len(head),
    ]
    parts = next(iter(trained.values())).scores
    for part in parts:
        for kind, done in trained.items():
            cells = [f"{getattr(getattr(done.scores[part], name), m):.3f}" for name in kinds for m in METRICS]
            lines.append(f"| {part} | {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
