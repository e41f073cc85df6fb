"""What a model says about all structures of a part of the data."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import jax
import numpy as np
from ase.data import atomic_numbers as number_of_symbol
from jaxtyping import Bool, Int

from huefield.core.structure import Block
from huefield.data.batches.batching import Batch, BatchOrder, choose_shapes, prefetch, slot_buckets
from huefield.data.batches.prepared import TAG, Prepared
from huefield.data.composition import symbol
from huefield.data.dataset import Part
from huefield.data.references import AtomicReferences
from huefield.model.forcefield import Ensemble
from huefield.predict.moments import StructureMoments, batch_moments, collected
from huefield.predict.predictions import Predictions
from huefield.support.errors import HuefieldError

ATOMS_AT_ONCE = 1000
STRUCTURES_AT_ONCE = 64
BUCKETS = 3
"""Of structures with similar numbers of neighbours; each is compiled for."""
ENOUGH_FOR_BUCKETS = 5000
"""Structures from which on they save more time than compiling takes."""
PREFETCHED = 2

Report = Callable[[int, int], None]
"""Told how many structures are predicted, and of how many."""
NumberedBatch = tuple[Int[np.ndarray, " m"], Batch]
"""A batch with the numbers of its structures."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions as a model makes them, and without its calibration."""

    predictions: Predictions
    uncalibrated: Predictions | None
    """None for a model that is not calibrated."""


def predict_part(
    ensemble: Ensemble,
    part: Part,
    name: str,
    report: Report = lambda done, total: None,
    *,
    members: bool = False,
) -> Predicted:
    """Predict every structure whose elements the model knows.

    Args:
        ensemble: the model.
        part: the structures.
        name: of the model, for tables and figures.
        report: is told how far it is.
        members: whether to keep what each member says.
    """
    known, left_out = _with_known_elements(part, ensemble.members.potential.atomic_config.elements)
    data = prepared(ensemble, known)
    found = predicted_moments(
        ensemble, data, batches_of(data), members=members, report=lambda done: report(done, len(data))
    )
    block = known.block(np.arange(len(known)))
    finite = found.finite(block.owners)
    if not finite.all():
        left_out = {**left_out, "have predictions that are no finite numbers": int((~finite).sum())}
        found, block = found.select(finite, block.owners), block.select(finite)
    found = found.without_rounding(block.owners)
    after, before = found.predictions(name, block), found.uncalibrated(name, block)
    return Predicted(replace(after, left_out=left_out), None if before is None else replace(before, left_out=left_out))


def prepared(ensemble: Ensemble, part: Part) -> Prepared:
    """Structures with what batches need to know about them."""
    config = ensemble.members.potential.atomic_config
    energies = {symbol(number): energy for number, energy in ensemble.atom_energies}
    references = AtomicReferences({TAG: energies or dict.fromkeys(config.elements, 0.0)})
    return Prepared.of(part, config.cutoff_angstrom, references)


def predicted_moments(
    ensemble: Ensemble,
    data: Prepared,
    batches: Iterable[NumberedBatch],
    *,
    stress: bool = False,
    members: bool = False,
    report: Callable[[int], None] = lambda done: None,
) -> StructureMoments:
    """Means and variances of all structures, which the batches hold once each; energies are total ones.

    Args:
        ensemble: the model.
        data: the structures.
        batches: of them; they are made while those before are predicted.
        stress: whether to predict stresses too.
        members: whether to keep what each member says.
        report: is told how many structures are predicted.
    """

    def found() -> Iterator[tuple[Int[np.ndarray, " m"], StructureMoments]]:
        done = 0
        with closing(prefetch(batches, PREFETCHED)) as ready:  # type: ignore[type-var]
            for indices, batch in ready:
                yield indices, jax.device_get(batch_moments(ensemble, batch, stress=stress, members=members))
                done += len(indices)
                report(done)

    return collected(found(), data.sizes).with_offsets(data.offsets)


def foreign_atoms(block: Block, elements: tuple[str, ...]) -> Bool[np.ndarray, " A"]:
    """Atoms of elements that are not among those of a model."""
    known = np.zeros(256, bool)
    known[[number_of_symbol[element] for element in elements]] = True
    return ~known[block.atomic_numbers]


def _with_known_elements(part: Part, elements: tuple[str, ...]) -> tuple[Part, dict[str, int]]:
    """The structures that the model was built for, and how many are others."""
    fit = [np.zeros(0, bool)]
    strange: set[int] = set()
    for block in part.blocks():
        foreign = foreign_atoms(block, elements)
        strange |= set(np.unique(block.atomic_numbers[foreign]).tolist())
        fit.append(np.bincount(block.owners, foreign, len(block)) == 0)
    keep = np.concatenate(fit)
    if keep.all():
        return part, {}
    names = ", ".join(symbol(number) for number in sorted(strange))
    if not keep.any():
        raise HuefieldError(
            f"every structure contains {names}, but the model was trained for {', '.join(elements)} only: train one "
            "with these elements"
        )
    reason = f"contain {names}, which the model was not trained for"
    return replace(part, indices=part.indices[keep]), {reason: int((~keep).sum())}


def batches_of(data: Prepared) -> Iterator[NumberedBatch]:
    """All structures once, in batches of few shapes."""
    size = int(np.clip(ATOMS_AT_ONCE // max(data.sizes.mean(), 1.0), 1, STRUCTURES_AT_ONCE))
    count = BUCKETS if len(data) >= ENOUGH_FOR_BUCKETS else 1
    buckets = slot_buckets(data.sizes, data.neighbours, count)
    shapes = choose_shapes(data.sizes, data.neighbours, buckets, size)
    for indices in BatchOrder(buckets, size, jax.random.key(0)).epoch(0):
        yield indices, data.batch(indices, data.shape_for([indices], shapes))
