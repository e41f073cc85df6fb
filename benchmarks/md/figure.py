"""The plot of all that was measured."""

from pathlib import Path
from typing import Any

from jobs import ATOMS, JOBS, SKINS_ANGSTROM
from measure import MEMBERS
from tables import Summaries

COLORS = {("peer", "default"): "#b45f06", ("peer", "tuned"): "#f1b26e", ("ours", "default"): "#1f4e79"}
COLORS |= {("ours", "tuned"): "#7fb0dc"}


def plot(found: Summaries, path: Path) -> None:
    """Steps of the molecule on both sides, growth with the box, and skins."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    _molecule(left, found)
    _boxes(middle, found)
    _skins(right, found)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _molecule(ax: Any, found: Summaries) -> None:
    kept = [s for key, s in found.items() if key[0] == "molecule"]
    for place, summary in enumerate(kept):
        ax.barh(place, summary.median_seconds * 1e3, color=COLORS[summary.side, summary.malloc])
        ax.plot(summary.best_seconds * 1e3, place, "k|", ms=9)
    names = [s.variant + ", malloc tuned" * (s.malloc == "tuned") for s in kept]
    ax.set_yticks(range(len(kept)), names, fontsize=7)
    ax.invert_yaxis()
    ax.set(xlabel="milliseconds for a step (bar: median, line: best)")
    ax.set_title(f"27 atoms, {MEMBERS} members: huefield blue, SchNetPack brown", fontsize=9)


def _boxes(ax: Any, found: Summaries) -> None:
    for members in (1, MEMBERS):
        kept = [
            (count, s)
            for job, count in ATOMS.items()
            if (s := found.get((job, "ours", "default", f"{members} members")))
        ]
        ax.plot(
            [count for count, _ in kept],
            [s.median_seconds / c * 1e6 for c, s in kept],
            "o-",
            label=f"{members} members",
        )
    ax.set(xscale="log", xlabel="atoms of water", ylabel="microseconds for a step and atom")
    ax.set_ylim(bottom=0)
    ax.legend()


def _skins(ax: Any, found: Summaries) -> None:
    for job in (name for name, job in JOBS.items() if job.kind == "skins"):
        kept = [
            (skin, s) for skin in SKINS_ANGSTROM if (s := found.get((job, "ours", "default", f"{skin:g}"))) is not None
        ]
        if kept:
            least = min(s.median_seconds for _, s in kept)
            label = f"{job.removeprefix('skins-')} atoms"
            ax.plot([skin for skin, _ in kept], [s.median_seconds / least for _, s in kept], "o-", label=label)
    ax.set(xlabel="skin [Å]", ylabel="time for a step, relative to the best skin")
    if ax.lines:
        ax.legend()
