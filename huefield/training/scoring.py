"""How good a trained ensemble is on a part of the data."""

import dataclasses
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from huefield.core import Gaussian, Labels
from huefield.data.batching import BatchShape, choose_shapes
from huefield.evaluation.metrics import gaussian_nll, rmse, rzv
from huefield.forcefield import Ensemble
from huefield.training.feed import Prepared


@dataclasses.dataclass(frozen=True)
class Errors:
    """Of energies [eV], or of force components [eV/Å]. NaN for what there is nothing to say about."""

    count: int
    mae: float
    rmse: float
    nll: float
    rzv: float
    rmv: float

    @classmethod
    def of(cls, error: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"]) -> "Errors":
        """Metrics of errors with predicted variances."""
        if not len(error):
            return cls(0, *[float("nan")] * 5)
        noisy = bool((variance > 0).all())
        return cls(
            count=len(error),
            mae=float(np.mean(np.abs(error))),
            rmse=rmse(error),
            nll=gaussian_nll(error, variance) if noisy else float("nan"),
            rzv=rzv(error, variance) if noisy and len(error) > 1 else float("nan"),
            rmv=float(np.sqrt(np.mean(variance))),
        )


@dataclasses.dataclass(frozen=True)
class EnsembleScores:
    """Of the whole ensemble, noise and spread of members together."""

    energy: Errors
    forces: Errors

    def as_dict(self) -> dict[str, dict[str, float]]:
        """For JSON."""
        return dataclasses.asdict(self)


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
    return EnsembleScores(*(Errors.of(*np.concatenate(kind, axis=1)) for kind in (energy, forces)))


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
