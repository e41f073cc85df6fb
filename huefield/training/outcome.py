"""The result of a run: selection of the parameters, their metrics, and the files of both.

Each member has two candidates: its best parameters, by its own validation score, and its last. Members that learn the
variances of their own errors underestimate them on other data, so the best of a member is often an early one, whose
noise makes up for its own errors. In an ensemble the spread of the members counts those errors a second time. The
ensemble as a whole is then better, in mean and in variance, with the last parameters: its own score decides.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float

from huefield.core.structure import TAG
from huefield.data.batches.prepared import Prepared
from huefield.data.batches.shapes import GrowingShapes
from huefield.data.dataset import Part, Parts
from huefield.evaluation.fits import deviations_of
from huefield.evaluation.paper_metrics import PaperMetrics, paper_metrics
from huefield.model.ensemble import Ensemble
from huefield.model.modelfile import save
from huefield.model.typical import Deviations, TypicalUncertainty
from huefield.predict.batches import batches_of, predict_parts
from huefield.predict.elements import KnownElements
from huefield.predict.predictions import Predictions
from huefield.support.defaults import BINS
from huefield.support.files import write_bytes
from huefield.support.plain import plain, plain_fields
from huefield.training.config import TrainConfig
from huefield.training.mesh import first_process
from huefield.training.novelty import with_novelty
from huefield.training.reports import OnTrainingEvent
from huefield.training.stages import AbstractStage

MODEL = "model.safetensors"
SCORES = "scores.json"
CANDIDATES = "candidates"


NOTHING = np.zeros(0)
TABULATED = (
    ("energy", "energy [eV]", 1.0),
    ("energy_per_atom", "energy/atom [meV]", 1e3),
    ("forces", "forces [eV/Å]", 1.0),
    ("stress", "stress [meV/Å³]", 1e3),
)
"""Quantities of :meth:`Trained.table` with their titles and units."""


class Errors(NamedTuple):
    """Errors and variances of the observed entries of a block of predictions, which metrics need."""

    energy: Float[np.ndarray, " n"]
    energy_var: Float[np.ndarray, " n"]
    forces: Float[np.ndarray, " m"]
    forces_var: Float[np.ndarray, " m"]
    stress: Float[np.ndarray, " k"] = NOTHING
    stress_var: Float[np.ndarray, " k"] = NOTHING
    energy_per_atom: Float[np.ndarray, " n"] = NOTHING
    energy_per_atom_var: Float[np.ndarray, " n"] = NOTHING

    @classmethod
    def of(cls, predictions: Predictions) -> "Errors":
        """Errors and variances of predictions beside their labels."""
        observed = (
            predictions.observed_energies(),
            predictions.observed_forces(),
            predictions.observed_stress(),
            predictions.observed_energies_per_atom(),
        )
        pairs = ((NOTHING, NOTHING) if each is None else (each.error, each.variance) for each in observed)
        return cls(*(column for pair in pairs for column in pair))


@dataclass(frozen=True)
class EnsembleScores:
    """Metrics of a whole ensemble on one part of the data."""

    energy: PaperMetrics
    """Metrics of energies [eV]."""
    forces: PaperMetrics
    """Metrics of force components [eV/Å]."""
    stress: PaperMetrics | None = None
    """Metrics of stress components [eV/Å³]; None without stress labels."""
    energy_per_atom: PaperMetrics | None = None
    """Metrics of energies per atom [eV]; None without periodic structures."""

    @classmethod
    def of(cls, *blocks: Predictions | Errors) -> "EnsembleScores":
        """Metrics of predictions beside their labels, of one block or of several."""
        errors = [Errors.of(block) if isinstance(block, Predictions) else block for block in blocks]
        columns = [np.concatenate(column) for column in zip(*errors, strict=True)]
        energy, forces, *crystals = (paper_metrics(columns[i], columns[i + 1], BINS) for i in (0, 2, 4, 6))
        return cls(energy, forces, *(found if found.count else None for found in crystals))

    def as_dict(self) -> dict[str, object]:
        """Fields for JSON, with None in place of NaN."""
        return plain_fields(self)


@dataclass(frozen=True, eq=False, repr=False)
class Trained:
    """The result of training. :class:`huefield.Calculator` and ``huefield.calibrate`` take it, too."""

    ensemble: Ensemble
    model: Path
    """The model file."""
    scores: dict[str, EnsembleScores]
    """Metrics on each part of the data except the one for training; of several data sets, also on each, by
    ``part/tag``."""
    validation: Part | None = None
    """The validation data; None for members that were assembled without data."""

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.model.parent

    def table(self) -> str:
        """Metrics of energies, force components and stresses, a line for each part of the data that has them."""
        lines = []
        width = max([16, *map(len, self.scores)])
        for quantity, title, scale in TABULATED:
            if not any(getattr(scores, quantity) for scores in self.scores.values()):
                continue
            lines.append(title.ljust(width) + f" {'MAE':>8} {'RMSE':>8} {'NLL':>8} {'RZV':>6} {'RMV':>8}")
            for name, scores in self.scores.items():
                if (e := getattr(scores, quantity)) is not None:
                    mae, rmse, rmv = (scale * each for each in (e.mae, e.rmse, e.rmv))
                    lines.append(f"{name:>{width}} {mae:8.4f} {rmse:8.4f} {e.nll:8.2f} {e.rzv:6.2f} {rmv:8.4f}")
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
        """Their files in the folder of a run."""
        return [f"{CANDIDATES}/{name}.safetensors" for name in cls._fields]


def conclude(
    candidates: Candidates,
    validation: Prepared,
    parts: Parts,
    config: TrainConfig,
    folder: Path,
    report: OnTrainingEvent,
) -> Trained:
    """Select the parameters, evaluate the ensemble and save it.

    Args:
        candidates: ensembles to select from.
        validation: data for the selection, as the networks learn them.
        parts: all parts of the data, with results of the baseline if there is one.
        config: configuration of the run.
        folder: folder of the run.
        report: receives messages.
    """
    selected, kept = candidates.best, {}
    if config.selection == "ensemble":
        kept = dict(zip(Candidates.files(), candidates, strict=True))
        selected = select(candidates, validation, config.stages[-1], report)
    judged = {name: part for name, part in parts.items() if name != "train"}
    if config.novelty:
        selected = with_novelty(selected, parts)
    scores, typical = evaluated(selected, {"validation": judged.pop("validation"), **judged})
    selected = selected.with_typical(typical)
    path = folder / MODEL
    if first_process():
        for name, candidate in kept.items():
            save(candidate, folder / name)
        save(selected, path)
        table = {name: entry.as_dict() for name, entry in scores.items()}
        write_bytes(folder / SCORES, (json.dumps(plain(table), indent=1) + "\n").encode())
    return Trained(selected, path, scores, parts["validation"])


def evaluated(ensemble: Ensemble, parts: Parts) -> tuple[dict[str, EnsembleScores], TypicalUncertainty | None]:
    """Metrics on each part that has structures and on its data sets, and the uncertainties typical of validation data.

    Structures with unknown elements are skipped. Only errors and uncertainties are kept in memory, not the structures.
    """
    elements = KnownElements(ensemble)
    parts = {name: elements.part(part) for name, part in parts.items()}
    errors: dict[str, list[Errors]] = {}
    typical: list[Deviations] = []
    for name, found in predict_parts(ensemble, parts, "ensemble"):
        for row, some in by_dataset(name, found) if ensemble.datasets is not None else [(name, found)]:
            errors.setdefault(row, []).append(Errors.of(some))
        deviations = deviations_of(found) if name == "validation" else None
        typical += [] if deviations is None else [deviations]
    scores = {row: EnsembleScores.of(*blocks) for row, blocks in errors.items()}
    return scores, TypicalUncertainty.of(typical, "validation data") if typical else None


def by_dataset(name: str, found: Predictions) -> Iterator[tuple[str, Predictions]]:
    """Predictions of a part, and those of each of its named data sets as ``part/tag``."""
    yield name, found
    for tag in sorted(set(found.structures.tags) - {TAG}):
        yield f"{name}/{tag}", found.select(np.array(found.structures.tags) == tag)


def select(candidates: Candidates, validation: Prepared, stage: AbstractStage, report: OnTrainingEvent) -> Ensemble:
    """The candidate that as a whole has the lower criterion of the last stage."""
    best, last = (criterion(each, validation, stage) for each in candidates)
    if last < best:
        report(
            f"keeping each member's last parameters: the ensemble's {stage.kind} on validation data is {last:.4g}, "
            f"with each member's best {best:.4g}"
        )
        return candidates.last
    return candidates.best


def criterion(ensemble: Ensemble, data: Prepared, stage: AbstractStage) -> float:
    """The selection criterion of a stage for the predictions of a whole ensemble; infinite if any is NaN."""
    program = eqx.filter_jit(
        lambda model, batch: stage.criterion(model(batch.graph, strain=stage.needs_strain(batch.labels)), batch.labels)
    )
    found = [program(ensemble, batch) for _, batch in batches_of(data, GrowingShapes())]
    sums, counts = (
        np.sum([np.asarray(part, np.float64) for part in parts], axis=0)
        for parts in zip(*((each.sums, each.counts) for each in found), strict=True)
    )
    total = float(np.sum(sums / np.maximum(counts, 1)))
    return total if math.isfinite(total) else math.inf
