"""Diagnosis of failed steps: the structures and terms of the loss that are worst."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int

from huefield.core import EnergyForces, Gaussian, Labels
from huefield.data.batches.batching import Batch
from huefield.data.batches.prepared import Prepared
from huefield.model.forcefield import ForceField
from huefield.training.likelihoods import marginal_nll, squared_error
from huefield.training.stages import AbstractStage

SHOWN = 3
"""Structures that a message names."""


@dataclass(frozen=True, eq=False)
class Term:
    """A term of the loss, for each structure."""

    name: str
    unit: str
    value: Float[np.ndarray, " S"]
    error: Float[np.ndarray, " S"]
    """The largest error of the structure."""
    noise: Float[np.ndarray, " S"] | None
    """The smallest standard deviation of the structure; None if the stage does not train it."""

    def about(self, structure: int) -> str:
        """Value, error and noise for one structure, in words."""
        noise = "" if self.noise is None else f", noise {self.noise[structure]:.3g} {self.unit}"
        return f"{self.name} term {self.value[structure]:.3g} (error {self.error[structure]:.3g} {self.unit}{noise})"

    def badness(self, structure: int) -> tuple[float, float]:
        """Key for sorting: the value, then the error."""
        return _size(self.value[structure]), _size(self.error[structure])


def diagnose(member: ForceField, data: Prepared, batches: list[Int[np.ndarray, " _"]], stage: AbstractStage) -> str:
    """A message about the structures with the worst predictions of a member, the worst first.

    Args:
        member: the member before the step that failed.
        data: the training data.
        batches: numbers of the structures in the batches that failed.
        stage: the objective.
    """
    parameters = [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(member, eqx.is_inexact_array))]
    bad = sum(int((~np.isfinite(leaf)).sum()) for leaf in parameters)
    if bad:
        return f"{bad} of its parameters are NaN or infinite."
    predict, shape = eqx.filter_jit(member), data.shape_for(batches, ())
    found: dict[int, tuple[tuple[float, float], list[Term], int]] = {}
    for indices in batches:
        batch = data.batch(indices, shape)
        terms = _terms(predict, batch, stage)
        found |= {
            int(index): (max(term.badness(row) for term in terms), terms, row) for row, index in enumerate(indices)
        }
    worst = sorted(found, key=lambda index: found[index][0], reverse=True)[:SHOWN]
    lines = [f"{data.part.where(index)}: {_about(*found[index][1:])}" for index in worst]
    return f"The worst structures of the last {len(batches)} batches:\n  " + "\n  ".join(lines)


def _about(terms: list[Term], row: int) -> str:
    """All terms of a structure, the worst first."""
    return ", ".join(term.about(row) for term in sorted(terms, key=lambda term: term.badness(row), reverse=True))


def _size(value: float) -> float:
    return float(value) if np.isfinite(value) else np.inf


def _terms(predict: Callable[..., Any], batch: Batch, stage: AbstractStage) -> list[Term]:
    """The terms of the loss; errors are in double precision, so that their squares do not overflow."""
    labels = stage.used(batch.labels)
    distribution = predict(batch.graph, strain=labels.strain is not None)
    terms = (marginal_nll if stage.trains_noise else squared_error)(distribution, labels)
    variance, mean = distribution.variance(), distribution.mean
    owner, count = np.asarray(batch.graph.partition.structure_index), batch.graph.partition.num_structures

    def per_structure(of_atoms: Any, reduce: np.ufunc, start: float) -> Float[np.ndarray, " S"]:
        result = np.full((count + 1, 3), start)
        reduce.at(result, owner, np.asarray(of_atoms, np.float64))
        return reduce.reduce(result[:-1], axis=1)

    energy_error = _error(labels.energy, mean.energy, labels.energy_mask)
    force_error = _error(labels.forces, mean.forces, np.asarray(labels.forces_mask)[:, None])
    energy_noise, force_noise = (np.sqrt(np.asarray(v, np.float64)) for v in (variance.energy, variance.forces))
    largest, smallest = per_structure(force_error, np.maximum, 0.0), per_structure(force_noise, np.minimum, np.inf)
    noise = (energy_noise, smallest) if stage.trains_noise else (None, None)
    found = [
        Term("energy", "eV", np.asarray(terms.energy, np.float64), energy_error, noise[0]),
        Term("force", "eV/Å", per_structure(terms.forces, np.add, 0.0), largest, noise[1]),
    ]
    return found if labels.strain is None else [*found, _stress_term(terms, distribution, labels, stage.trains_noise)]


def _stress_term(terms: EnergyForces, distribution: Gaussian, labels: Labels, trains_noise: bool) -> Term:
    """The term of the strain derivative ∂E/∂ε, the stress times the volume."""
    error = _error(labels.strain, distribution.mean.strain, np.asarray(labels.strain_mask)[:, None, None])
    noise = np.sqrt(np.asarray(distribution.variance().strain, np.float64)).min((1, 2)) if trains_noise else None
    value = np.asarray(terms.strain, np.float64).sum((1, 2))
    return Term("stress × volume", "eV", value, error.max((1, 2)), noise)


def _error(label: Any, mean: Any, mask: Any) -> Float[np.ndarray, "*n"]:
    """Absolute errors in double precision; zero where there is no label."""
    return np.where(mask, np.abs(np.asarray(label, np.float64) - np.asarray(mean, np.float64)), 0.0)
