"""What comes out of a run: which parameters are kept, how good they are, and the files that say so.

Each member has two candidates: its best, by its own validation score, and its last. Members that learn variances of
their own errors come to underestimate them on other data, so that the best of a member is often an early one, with
noise that makes up for its own errors. In an ensemble the spread of the members counts those errors a second time. The
ensemble as a whole is then better, in mean and in variance, with the last parameters: its own score decides.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import numpy as np

from huefield.data.batches.batching import BatchShape
from huefield.data.batches.prepared import Prepared
from huefield.data.dataset import Part
from huefield.model.ensemble import Ensemble
from huefield.model.modelfile import save
from huefield.support.checks import NotFiniteError
from huefield.support.files import write_bytes
from huefield.support.plain import plain
from huefield.training.config import TrainConfig
from huefield.training.mesh import first_process
from huefield.training.reports import OnTrainingEvent
from huefield.training.scoring import EnsembleScores, predictions, score, shapes_for, typical_uncertainty
from huefield.training.stages import AbstractStage

MODEL = "model.safetensors"
SCORES = "scores.json"
CANDIDATES = "candidates"


@dataclass(frozen=True, eq=False, repr=False)
class Trained:
    """The result of training. :class:`huefield.Calculator` and ``huefield.calibrate`` take it, too."""

    ensemble: Ensemble
    model: Path
    """The model file."""
    scores: dict[str, EnsembleScores]
    """Metrics on each part of the data except the one for training."""
    validation: Part | None = None
    """The validation data; None for members that were assembled without data."""

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.model.parent

    def table(self) -> str:
        """Metrics of energies and force components, a line for each part of the data."""
        lines = []
        for quantity, unit in (("energy", "eV"), ("forces", "eV/Å")) if self.scores else ():
            lines.append(f"{quantity} [{unit}]".ljust(16) + f" {'MAE':>8} {'RMSE':>8} {'NLL':>8} {'RZV':>6} {'RMV':>8}")
            for name, scores in self.scores.items():
                e = getattr(scores, quantity)
                lines.append(f"{name:>16} {e.mae:8.4f} {e.rmse:8.4f} {e.nll:8.2f} {e.rzv:6.2f} {e.rmv:8.4f}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        count = self.ensemble.num_members
        return f"{self.table()}\n{self.model}: {count} member{'s' if count != 1 else ''}".lstrip()


class Candidates(NamedTuple):
    """Ensembles that a run may end with."""

    best: Ensemble
    """Each member at its best validation score in the last stage."""
    last: Ensemble
    """Each member at its last validation."""

    @classmethod
    def files(cls) -> list[str]:
        """Where they are kept in the folder of a run."""
        return [f"{CANDIDATES}/{name}.safetensors" for name in cls._fields]


def conclude(
    candidates: Candidates, prepared: dict[str, Prepared], config: TrainConfig, folder: Path, report: OnTrainingEvent
) -> Trained:
    """Choose, score and save."""
    scored = {name: data for name, data in prepared.items() if name != "train" and len(data)}
    shapes = shapes_for(list(scored.values()), config.batch_size)
    chosen, kept = candidates.best, {}
    if config.selection == "ensemble":
        kept = dict(zip(Candidates.files(), candidates, strict=True))
        chosen = choose(candidates, prepared["validation"], config.stages[-1], shapes, report)
    known = typical_uncertainty(chosen, prepared["validation"], shapes, "validation data")
    chosen = chosen.with_typical(known)
    scores = {name: score(chosen, data, shapes) for name, data in scored.items()}
    path = folder / MODEL
    if first_process():
        for name, candidate in kept.items():
            save(candidate, folder / name)
        save(chosen, path)
        table = {name: entry.as_dict() for name, entry in scores.items()}
        write_bytes(folder / SCORES, (json.dumps(plain(table), indent=1) + "\n").encode())
    return Trained(chosen, path, scores, prepared["validation"].part)


def choose(
    candidates: Candidates,
    validation: Prepared,
    stage: AbstractStage,
    shapes: tuple[BatchShape, ...],
    report: OnTrainingEvent,
) -> Ensemble:
    """The candidate whose predictions, of the ensemble as a whole, have the lower criterion of the last stage."""
    best, last = (criterion(each, validation, stage, shapes) for each in candidates)
    if last < best:
        report(
            f"keeping each member's last parameters: the ensemble's {stage.kind} on validation data is {last:.4g}, "
            f"with each member's best {best:.4g}"
        )
        return candidates.last
    return candidates.best


def criterion(ensemble: Ensemble, data: Prepared, stage: AbstractStage, shapes: tuple[BatchShape, ...]) -> float:
    """What models are chosen by, of an ensemble's predictions for all structures; infinite where one is no number."""
    program = eqx.filter_jit(stage.criterion)
    try:
        found = [program(*predicted) for predicted in predictions(ensemble, data, shapes)]
    except NotFiniteError:
        return math.inf
    sums, counts = (
        np.sum([np.asarray(part, np.float64) for part in parts], axis=0)
        for parts in zip(*((each.sums, each.counts) for each in found), strict=True)
    )
    total = float(np.sum(sums / np.maximum(counts, 1)))
    return total if math.isfinite(total) else math.inf
