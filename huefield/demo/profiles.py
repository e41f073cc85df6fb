"""Energies along reaction paths: of the corrected model with its interval, of DFT, and of the baseline alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from huefield.core.structure import Block, Structure
from huefield.model.ensemble import Ensemble
from huefield.predict.evaluator import Evaluator
from huefield.support import plots
from huefield.support.files import replacing

COVERAGE = 0.95
COLUMNS = 3
TITLE_WIDTH = 34
"""Letters in a line of a title."""


class Barrier(NamedTuple):
    """A barrier [eV]: of DFT, of the baseline, and predicted with half the width of its interval."""

    true: float
    baseline: float
    predicted: float
    half_width: float


@dataclass(frozen=True, eq=False)
class Profile:
    """Energies [eV] of the images of a path, relative to the first one."""

    name: str
    place: Float[np.ndarray, " n"]
    """Distance along the path [Å]."""
    true: Float[np.ndarray, " n"]
    baseline: Float[np.ndarray, " n"]
    predicted: Float[np.ndarray, " n"]
    half_width: Float[np.ndarray, " n"]
    """Half the width of the interval that shall contain the true energy with probability ``COVERAGE``."""

    num_heavy_atoms: int

    @property
    def barrier(self) -> "Barrier":
        """Energy of the highest image, of each method for itself."""
        true, baseline, predicted = (float(each.max()) for each in (self.true, self.baseline, self.predicted))
        return Barrier(true, baseline, predicted, float(self.half_width[self.predicted.argmax()]))

    @property
    def num_inside(self) -> int:
        """Number of images after the first whose true energy is in the interval."""
        return int((np.abs(self.true - self.predicted) <= self.half_width)[1:].sum())


def profiles(model: Ensemble, images: Block) -> list[Profile]:
    """The profile of each path; the images of a path share a group and are in its order."""
    evaluator, groups = Evaluator(model), np.array(images.groups)
    names = dict.fromkeys(images.groups)
    return [_profile(evaluator, name.partition(": ")[2], list(images.select(groups == name))) for name in names]


def _profile(evaluator: Evaluator, name: str, path: Sequence[Structure]) -> Profile:
    path = [evaluator.with_result(structure) for structure in path]
    covariance = evaluator.energy_covariance(path)
    baseline = np.array([structure.baseline.energy for structure in path if structure.baseline is not None])
    true = np.array([structure.energy for structure in path], float)
    moved = [np.linalg.norm(b.positions - a.positions) for a, b in pairwise(path)]
    return Profile(
        name,
        place=np.concatenate([[0.0], np.cumsum(moved)]),
        true=true - true[0],
        baseline=baseline - baseline[0],
        predicted=covariance.energy - covariance.energy[0],
        half_width=np.array([covariance.difference(0, i).half_width(COVERAGE) for i in range(len(path))]),
        num_heavy_atoms=int((path[0].atomic_numbers > 1).sum()),
    )


def save_profiles(found: Sequence[Profile], path: Path) -> Path:
    """Draw profiles into a PNG file, some in each row."""
    rows = -(-len(found) // COLUMNS)
    with plots.publication_style():
        figure = Figure(figsize=(7.5, 2.2 * rows + 0.4), layout="constrained")
        axes = np.ravel(figure.subplots(rows, COLUMNS, squeeze=False))
        for ax in axes[len(found) :]:
            ax.set_visible(False)
        for ax, profile in zip(axes, found, strict=False):
            _draw(ax, profile)
        figure.supylabel("energy relative to the reactant (eV)", fontsize="medium")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png", dpi=200)
    return path


def _draw(ax: Axes, profile: Profile) -> None:
    place, mean, width = profile.place, profile.predicted, profile.half_width
    label = f"{100 * COVERAGE:.0f} % interval"
    ax.fill_between(place, mean - width, mean + width, color=plots.EPISTEMIC, alpha=0.25, lw=0, label=label)
    ax.plot(place, mean, color=plots.EPISTEMIC, label="GFN2-xTB + correction")
    ax.plot(place, profile.baseline, "--", color=plots.TRUTH, lw=1.0, label="GFN2-xTB alone")
    ax.plot(place, profile.true, "o", color=plots.OBSERVED, ms=3.5, label="ωB97X/6-31G(d)")
    ax.set(xlabel="distance along the path (Å)")
    ax.set_title(fill(profile.name, TITLE_WIDTH), loc="left")
