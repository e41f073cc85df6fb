"""What a model says about all structures of a part of the data."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import numpy as np
from ase.data import atomic_numbers as number_of_symbol
from jaxtyping import Array, Float, Int

from huefield.core import EnergyForces
from huefield.core.structure import Block, row_ranges
from huefield.data.batching import Batch, BatchOrder, choose_shapes, prefetch, slot_buckets
from huefield.data.composition import symbol
from huefield.data.dataset import Part
from huefield.data.references import AtomicReferences
from huefield.evaluation.predictions import Marginals, Predictions
from huefield.forcefield import Ensemble
from huefield.training.feed import TAG, Prepared

ATOMS_AT_ONCE = 1000
STRUCTURES_AT_ONCE = 64
BUCKETS = 3
"""Of structures with similar numbers of neighbours; each is compiled for."""
ENOUGH_FOR_BUCKETS = 5000
"""Structures from which on they save more time than compiling takes."""
PREFETCHED = 2
ROUNDING = 1e-5
"""Deviations of a force component relative to the largest force of its structure that single precision makes."""

Report = Callable[[int, int], None]
"""Told how many structures are predicted, and of how many."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions as a model makes them, and without its calibration."""

    predictions: Predictions
    uncalibrated: Predictions | None
    """None for a model that is not calibrated."""


@runtime_checkable
class AtomicConfig(Protocol):
    """The configuration of a potential of atoms."""

    @property
    def elements(self) -> tuple[str, ...]:
        """That it was built for."""

    @property
    def cutoff_angstrom(self) -> float:
        """How far its atoms look."""


class _Moments(eqx.Module):
    """Of one batch."""

    mean: EnergyForces
    aleatoric: EnergyForces
    epistemic: EnergyForces
    factors: EnergyForces | None
    joint_nll: Float[Array, " S"] | None


def predict_part(ensemble: Ensemble, part: Part, name: str, report: Report = lambda done, total: None) -> Predicted:
    """Predict every structure whose elements the model knows.

    Args:
        ensemble: the model.
        part: the structures.
        name: of the model, for tables and figures.
        report: is told how far it is.
    """
    config = _config_of(ensemble)
    known, left_out = _with_known_elements(part, config.elements)
    energies = {symbol(number): energy for number, energy in ensemble.atom_energies}
    references = AtomicReferences({TAG: energies or dict.fromkeys(config.elements, 0.0)})
    data = Prepared.of(known, config.cutoff_angstrom, references)
    found = _Collected.empty(data)
    with closing(prefetch(batches_of(data), PREFETCHED)) as batches:  # type: ignore[type-var]
        done = 0
        for indices, batch in batches:
            moments = _moments(ensemble, batch, ensemble.members.noise.has_variance)
            found.put(indices, jax.device_get(moments))
            done += len(indices)
            report(done, len(data))
    found.energy[0] += data.offsets
    return found.predicted(name, known.block(np.arange(len(known))), left_out)


def _config_of(ensemble: Ensemble) -> AtomicConfig:
    config = ensemble.members.potential.config
    if not isinstance(config, AtomicConfig):
        kind = type(ensemble.members.potential).__name__
        raise ValueError(f"the model has a potential without elements and cutoff ({kind}): it cannot predict molecules")
    return config


def _with_known_elements(part: Part, elements: tuple[str, ...]) -> tuple[Part, dict[str, int]]:
    """The structures that the model was built for, and how many are others."""
    known = np.zeros(256, bool)
    known[[number_of_symbol[element] for element in elements]] = True
    fit = [np.zeros(0, bool)]
    strange: set[int] = set()
    for block in part.blocks():
        foreign = ~known[block.atomic_numbers]
        strange |= set(np.unique(block.atomic_numbers[foreign]).tolist())
        fit.append(np.bincount(block.owners, foreign, len(block)) == 0)
    keep = np.concatenate(fit)
    if keep.all():
        return part, {}
    names = ", ".join(symbol(number) for number in sorted(strange))
    if not keep.any():
        raise ValueError(
            f"every structure contains {names}, but the model was trained for {', '.join(elements)} only: train one "
            "with these elements"
        )
    reason = f"contain {names}, which the model was not trained for"
    return replace(part, indices=part.indices[keep]), {reason: int((~keep).sum())}


def batches_of(data: Prepared) -> Iterator[tuple[Int[np.ndarray, " n"], Batch]]:
    """All structures once, in batches of few shapes; each with the numbers of its structures."""
    size = int(np.clip(ATOMS_AT_ONCE // max(data.sizes.mean(), 1.0), 1, STRUCTURES_AT_ONCE))
    count = BUCKETS if len(data) >= ENOUGH_FOR_BUCKETS else 1
    buckets = slot_buckets(data.sizes, data.neighbours, count)
    shapes = choose_shapes(data.sizes, data.neighbours, buckets, size)
    for indices in BatchOrder(buckets, size, jax.random.key(0)).epoch(0):
        yield indices, data.batch(indices, data.shape_for([indices], shapes))


@eqx.filter_jit
def _moments(ensemble: Ensemble, batch: Batch, joint: bool) -> _Moments:
    distribution, factors = ensemble.with_calibration(None)(batch.graph), None
    if ensemble.calibration is not None:
        factors = ensemble.calibration.factors(distribution)
        distribution = distribution.scaled(factors)
    return _Moments(
        distribution.mean,
        distribution.aleatoric_variance(),
        distribution.epistemic_variance(),
        factors,
        -distribution.log_prob(batch.labels) if joint else None,
    )


@dataclass(frozen=True, eq=False)
class _Collected:
    """Arrays of all structures, filled batch by batch. Columns: mean, aleatoric, epistemic variance, factor."""

    starts: Int[np.ndarray, " n_plus_1"]
    energy: Float[np.ndarray, "4 n"]
    forces: Float[np.ndarray, "4 A 3"]
    joint_nll: Float[np.ndarray, " n"]

    @classmethod
    def empty(cls, data: Prepared) -> "_Collected":
        starts = np.concatenate([[0], np.cumsum(data.sizes)])
        forces = np.full((4, int(starts[-1]), 3), np.nan)
        return cls(starts, np.full((4, len(data)), np.nan), forces, np.full(len(data), np.nan))

    def put(self, indices: Int[np.ndarray, " m"], moments: _Moments) -> None:
        columns = (moments.mean, moments.aleatoric, moments.epistemic, moments.factors)
        atoms = row_ranges(self.starts[indices], self.starts[indices + 1])
        for row, column in enumerate(columns):
            self.energy[row, indices] = 1.0 if column is None else column.energy[: len(indices)]
            self.forces[row, atoms] = 1.0 if column is None else column.forces[: len(atoms)]
        if moments.joint_nll is not None:
            self.joint_nll[indices] = moments.joint_nll[: len(indices)]

    def predicted(self, name: str, block: Block, left_out: dict[str, int]) -> Predicted:
        finite = np.isfinite(self.energy).all(0)
        finite &= np.bincount(block.owners, ~np.isfinite(self.forces).all((0, 2)), len(block)) == 0
        if not finite.all():
            left_out = {**left_out, "have predictions that are no finite numbers": int((~finite).sum())}
            return self._kept(finite).predicted(name, block.select(finite), left_out)
        self._forget_rounding(block.owners)
        whole = block.has_energy & block.has_forces
        joint = np.where(whole, self.joint_nll, np.nan)
        calibrated = bool((self.energy[3] != 1).any() or (self.forces[3] != 1).any())
        after = Predictions(name, block, *self._marginals(1.0), joint if np.isfinite(joint).any() else None, left_out)
        before = Predictions(name, block, *self._marginals(None), None, left_out) if calibrated else None
        return Predicted(after, before)

    def _forget_rounding(self, owners: Int[np.ndarray, " A"]) -> None:
        """Set variances to zero of components that vanish by symmetry, where members differ by rounding alone."""
        largest = np.zeros(len(self.starts) - 1)
        np.maximum.at(largest, owners, np.abs(self.forces[0]).max(1))
        _, noise, spread, factor = self.forces
        rounded = (noise == 0) & (np.sqrt(spread / factor) < ROUNDING * largest[owners, None])
        self.forces[2, rounded] = 0.0

    def _marginals(self, factor: float | None) -> tuple[Marginals, Marginals]:
        """Calibrated ones for the factor 1, those of before for None."""
        made = []
        for mean, aleatoric, epistemic, changed in (self.energy, self.forces):
            by = changed if factor is None else factor
            made.append(Marginals(mean, (aleatoric + epistemic) / by, aleatoric / by, epistemic / by))
        return made[0], made[1]

    def _kept(self, keep: np.ndarray) -> "_Collected":
        atoms = np.repeat(keep, np.diff(self.starts))
        starts = np.concatenate([[0], np.cumsum(np.diff(self.starts)[keep])])
        return _Collected(starts, self.energy[:, keep], self.forces[:, atoms], self.joint_nll[keep])
