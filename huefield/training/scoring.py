"""How good a trained ensemble is on a part of the data."""

import dataclasses
from collections.abc import Iterator
from typing import get_args

import numpy as np

from huefield.core import Gaussian, Labels
from huefield.data.batches.batching import BatchShape, choose_shapes
from huefield.data.batches.prepared import Prepared
from huefield.evaluation.paper_metrics import PaperMetrics, paper_metrics
from huefield.model.ensemble import Ensemble
from huefield.model.typical import PartOfUncertainty, TypicalUncertainty
from huefield.support.plain import plain_fields

BINS = 10
"""Of ENCE."""


@dataclasses.dataclass(frozen=True)
class EnsembleScores:
    """Of the whole ensemble, noise and spread of members together."""

    energy: PaperMetrics
    """In eV."""
    forces: PaperMetrics
    """Of components, in eV/Å."""

    def as_dict(self) -> dict[str, object]:
        """For JSON: None for what is NaN."""
        return plain_fields(self)


def score(ensemble: Ensemble, data: Prepared, shapes: tuple[BatchShape, ...]) -> EnsembleScores:
    """Predict all structures in batches of these shapes (:func:`shapes_for`), and compare."""
    energy: list[np.ndarray] = []
    forces: list[np.ndarray] = []
    for distribution, labels in predictions(ensemble, data, shapes):
        variance, mean = distribution.variance(), distribution.mean
        kept, atoms = np.asarray(labels.energy_mask), np.asarray(labels.forces_mask)
        energy.append(np.stack([labels.energy - mean.energy, variance.energy]).astype(np.float64)[:, kept])
        found = np.stack([labels.forces - mean.forces, variance.forces]).astype(np.float64)
        forces.append(found[:, atoms].reshape(2, -1))
    pairs = (np.concatenate(kind, axis=1) for kind in (energy, forces))
    return EnsembleScores(*(paper_metrics(error, variance, BINS) for error, variance in pairs))


def typical_uncertainty(
    ensemble: Ensemble, data: Prepared, shapes: tuple[BatchShape, ...], source: str
) -> TypicalUncertainty:
    """How uncertain the ensemble is about these structures."""
    energy: dict[PartOfUncertainty, list[np.ndarray]] = {part: [] for part in get_args(PartOfUncertainty)}
    forces: dict[PartOfUncertainty, list[np.ndarray]] = {part: [] for part in get_args(PartOfUncertainty)}
    for distribution, _ in predictions(ensemble, data, shapes):
        variances = (distribution.variance(), distribution.aleatoric_variance(), distribution.epistemic_variance())
        atoms = np.asarray(distribution.partition.atom_mask)
        structures = np.unique(np.asarray(distribution.partition.structure_index)[atoms])
        for part, variance in zip(get_args(PartOfUncertainty), variances, strict=True):
            energy[part].append(np.asarray(variance.energy, float)[structures])
            forces[part].append(np.asarray(variance.forces, float)[atoms])
    owners = np.repeat(np.arange(len(data)), data.sizes)
    energies, components = (
        {part: np.concatenate(all_of) for part, all_of in each.items()} for each in (energy, forces)
    )
    return TypicalUncertainty.of(energies, components, owners, source)


def shapes_for(parts: list[Prepared], batch_size: int) -> tuple[BatchShape, ...]:
    """Shapes of batches that serve several parts of the data: predictions are compiled once for all."""
    sizes, neighbours = (np.concatenate([getattr(part, name) for part in parts]) for name in ("sizes", "neighbours"))
    return choose_shapes(sizes, neighbours, np.zeros(len(sizes), np.int64), batch_size)


def predictions(
    ensemble: Ensemble, data: Prepared, shapes: tuple[BatchShape, ...]
) -> Iterator[tuple[Gaussian, Labels]]:
    """Distributions and labels of all structures, batch by batch."""
    batch_size = shapes[0].structures
    for first in range(0, len(data), batch_size):
        indices = np.arange(first, min(first + batch_size, len(data)))
        batch = data.batch(indices, data.shape_for([indices], shapes))
        yield ensemble.predict(batch.graph).distribution, batch.labels
