"""Predictions of many structures in batches: of blocks that come one after another, or of a part of a data set.

Blocks are gathered into chunks of some thousand structures, so that a file of any size takes constant memory. Within a
chunk structures are batched by their numbers of neighbours; the order of the chunk is restored afterwards.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int

from huefield.baselines import BaselineComputer, BaselineLike, ColumnsBaseline, open_baseline
from huefield.core.structure import Block, joined, row_ranges, strain_labels, stress_volumes
from huefield.data.batches.batching import Batch, prefetch
from huefield.data.batches.prepared import Prepared
from huefield.data.batches.shapes import GrowingShapes, grouped
from huefield.data.dataset import Part, Parts
from huefield.data.readers.base import BadFrameError, Fault
from huefield.data.readers.detect import OnFault
from huefield.model.ensemble import Ensemble
from huefield.predict.elements import KnownElements
from huefield.predict.marginals import JOINT, EnergyForcesMarginals
from huefield.predict.predictions import Predictions
from huefield.predict.program import VarianceOutput, marginals, variances
from huefield.support.errors import HuefieldError

CHUNK_STRUCTURES = 2048
CHUNK_ATOMS = 32_768
CORRECTED_STRUCTURES = 256
"""Smaller chunks for corrections of a baseline, whose results take most of the time."""
PREFETCHED_CHUNKS = 1
PREFETCHED_BATCHES = 2
NOT_FINITE = "the prediction is NaN or infinite"

OnProgress = Callable[[int, int], None]
"""Called with the number of structures done and the number of all."""


def predict_part(
    ensemble: Ensemble,
    part: Part,
    name: str,
    report: OnProgress = lambda done, total: None,
    *,
    members: bool = False,
    baseline: BaselineLike | None = None,
) -> Predictions:
    """Predict every structure whose elements the model knows; also stresses, if the stress of any is known.

    Args:
        ensemble: the model.
        part: the structures.
        name: of the model, for tables and figures.
        report: called with the number of structures done and the number of all.
        members: whether to keep the mean of each member.
        baseline: the baseline that the model corrects; None for a built-in one, or for results in the structures.
    """
    known, left_out = _with_known_elements(part, KnownElements(ensemble))
    faults: Counter[str] = Counter()
    found = predict_blocks(
        ensemble,
        known.blocks(),
        name,
        stress=has_stress_labels(known),
        members=members,
        baseline=baseline,
        on_fault=lambda fault: faults.update([fault.reason]),
        report=lambda done: report(done, len(known)),
    )
    chunks = list(found)
    if not chunks:
        raise HuefieldError(f"{part.name} has no structure that can be predicted: {dict(faults) or 'it is empty'}")
    if faults.pop(NOT_FINITE, 0):
        left_out = {**left_out, "have predictions that are NaN or infinite": len(known) - sum(map(len, chunks))}
    left_out = {**left_out, **{f"have no result of the baseline: {reason}": n for reason, n in faults.items()}}
    return replace(Predictions.joined(chunks), left_out=left_out)


def with_results(
    ensemble: Ensemble,
    part: Part,
    baseline: BaselineLike | None = None,
    report: OnProgress = lambda done, total: None,
) -> Part:
    """A part with the results of the baseline that a model corrects, computed once for several predictions.

    Structures for which the baseline fails are left out, with a warning.

    Args:
        ensemble: the model.
        part: the structures.
        baseline: the baseline; None for a built-in one, or for results in the structures.
        report: called with the number of structures done and the number of all.
    """
    if ensemble.baseline is None:
        return part
    faults: list[Fault] = []
    blocks: list[Block] = []
    for block in _corrected(ensemble, part.blocks(), baseline, faults.append):
        blocks.append(block)
        report(sum(map(len, blocks)), len(part))
    if not blocks:
        reason = f"{ensemble.baseline.title} has no result for any structure: {faults[0]}" if faults else "it is empty"
        raise HuefieldError(f"{part.name} cannot be predicted: {reason}")
    if faults:
        title = ensemble.baseline.title
        warnings.warn(f"{title} fails for {len(faults)} structures, which are left out: {faults[0]}", stacklevel=2)
    whole = _joined(blocks)
    return Part(part.name, whole, np.arange(len(whole)))


def predict_parts(ensemble: Ensemble, parts: Parts, name: str = "") -> Iterator[tuple[str, Predictions]]:
    """Predict all structures of some parts, some thousand at a time, each time with the name of their part.

    Parts share compiled programs. Raises for a structure that cannot be predicted.

    Args:
        ensemble: the model.
        parts: parts by their names.
        name: name of the model.
    """
    names, ends, done = list(parts), np.cumsum([len(part) for part in parts.values()]), 0
    stress = any(map(has_stress_labels, parts.values()))
    blocks = (block for part in parts.values() for block in part.blocks())
    for found in predict_blocks(ensemble, blocks, name, stress=stress):
        owners = np.searchsorted(ends, np.arange(done, done + len(found)), side="right")
        for number in np.unique(owners):
            yield names[number], found.select(owners == number)
        done += len(found)


def has_stress_labels(part: Part) -> bool:
    """Whether the stress of any structure is known."""
    return any(strain_labels(block)[1].any() for block in part.blocks())


def predictions_by_part(ensemble: Ensemble, parts: Parts, name: str = "") -> dict[str, Predictions]:
    """The predictions of :func:`predict_parts` in memory, for each part that has structures."""
    found: dict[str, list[Predictions]] = {}
    for part, some in predict_parts(ensemble, parts, name):
        found.setdefault(part, []).append(some)
    return {part: Predictions.joined(blocks) for part, blocks in found.items()}


def predict_blocks(
    ensemble: Ensemble,
    blocks: Iterable[Block],
    name: str = "",
    *,
    stress: bool = False,
    members: bool = False,
    baseline: BaselineLike | None = None,
    on_fault: OnFault = None,
    report: Callable[[int], None] = lambda done: None,
) -> Iterator[Predictions]:
    """Predict structures in the order in which they come, some thousand at a time.

    Blocks are taken when they are needed, at most a few chunks ahead of the predictions.

    Args:
        ensemble: the model.
        blocks: the structures.
        name: of the model.
        stress: whether to predict the stress of periodic structures.
        members: whether to keep the mean of each member.
        baseline: the baseline that the model corrects; None for a built-in one, or for results in the structures.
        on_fault: called for each structure that cannot be predicted, which is then skipped; None to raise a
            :class:`~huefield.data.readers.base.BadFrameError` instead.
        report: called with the number of structures done.
    """
    skip = _refuse if on_fault is None else on_fault
    elements, shapes, done = KnownElements(ensemble), GrowingShapes(), 0
    known = (kept for block in blocks for kept in _skipping_unknown(block, elements, skip))
    whole = (
        chunks_of(known, CHUNK_STRUCTURES) if ensemble.baseline is None else _corrected(ensemble, known, baseline, skip)
    )
    chunks = ((chunk, _prepared(ensemble, chunk)) for chunk in whole)
    corrected = None if ensemble.baseline is None else ensemble.baseline.title
    with closing(prefetch(chunks, PREFETCHED_CHUNKS)) as ready:  # type: ignore[type-var]
        for block, data in ready:
            volumes = _stress_volumes(block, ensemble)
            progress = partial(_report_after, report, done)
            wanted = stress and bool(volumes.any())
            found = _predicted(ensemble, data, shapes, volumes, stress=wanted, members=members, report=progress)
            if ensemble.baseline is not None and block.baseline is not None:
                found = found.plus(block.baseline)
            done += len(data)
            finite = found.finite(block.owners, volumes > 0)
            for index in np.flatnonzero(~finite):
                skip(Fault(block.source, int(block.frames[index]), NOT_FINITE))
            if finite.any():
                kept = found.rows(finite, finite[block.owners])
                yield replace(_beside_labels(kept, block.select(finite), name), baseline=corrected)


def chunks_of(blocks: Iterable[Block], size: int = CHUNK_STRUCTURES) -> Iterator[Block]:
    """The same structures in the same order, in blocks of many structures but not too many atoms."""
    waiting: list[Block] = []
    for block in blocks:
        for piece in _pieces(block):
            waiting.append(piece)
            structures, atoms = sum(map(len, waiting)), sum(int(each.sizes.sum()) for each in waiting)
            if structures >= size or atoms >= CHUNK_ATOMS:
                yield _joined(waiting)
                waiting = []
    if waiting:
        yield _joined(waiting)


def _corrected(
    ensemble: Ensemble, blocks: Iterable[Block], given: BaselineLike | None, skip: Callable[[Fault], None]
) -> Iterator[Block]:
    """Chunks with the results of the baseline that a model corrects, without structures that have none."""
    baseline = open_baseline(ensemble.baseline, given)
    assert baseline is not None  # noqa: S101 - the model corrects one
    doubted = ""
    with BaselineComputer(baseline) as computer:
        for chunk in chunks_of(blocks, CORRECTED_STRUCTURES):
            whole, faults = computer.attached(chunk)
            for fault in faults:
                skip(fault)
            if isinstance(baseline, ColumnsBaseline) and ensemble.baseline is not None and not doubted:
                doubted = ensemble.baseline.doubt(whole)
                if doubted:
                    warnings.warn(doubted, stacklevel=2)
            if len(whole):
                yield whole


def _stress_volumes(block: Block, ensemble: Ensemble) -> Float[np.ndarray, " n"]:
    """Volumes [Å³] of the cells of structures with a stress; zero for others."""
    volumes = stress_volumes(block.cells, block.pbc)
    if ensemble.baseline is None or block.baseline is None:
        return volumes
    return np.where(block.baseline.has_stress, volumes, 0.0)


def _predicted(
    ensemble: Ensemble,
    data: Prepared,
    shapes: GrowingShapes,
    volumes: Float[np.ndarray, " n"],
    *,
    stress: bool,
    members: bool,
    report: Callable[[int], None],
) -> EnergyForcesMarginals:
    """Marginals of all structures of a chunk, in their order."""
    parts, numbers, done = [], [], 0
    batches = batches_of(data, shapes)
    with ensemble.own_precision(), closing(prefetch(batches, PREFETCHED_BATCHES)) as ready:  # type: ignore[type-var]
        for indices, batch in ready:
            output = jax.device_get(_compiled(ensemble, batch, stress=stress, members=members))
            owners = np.repeat(np.arange(len(indices)), data.sizes[indices])
            parts.append(marginals(output, owners, data.offsets[indices], volumes[indices], ensemble.tails))
            numbers.append(indices)
            done += len(indices)
            report(done)
    batched = np.concatenate(numbers)
    order, sizes = np.argsort(batched), data.sizes[batched]
    ends = np.cumsum(sizes)
    return EnergyForcesMarginals.joined(parts).rows(order, row_ranges((ends - sizes)[order], ends[order]))


def _beside_labels(found: EnergyForcesMarginals, block: Block, name: str) -> Predictions:
    """Predictions of a block; the joint likelihood is NaN where energy or forces were not observed."""
    both = block.has_energy & block.has_forces
    joint: dict[str, Any] = {
        key: None if (each := getattr(found, key)) is None else np.where(both, each, np.nan) for key in JOINT
    }
    return Predictions(name, block, replace(found.without_rounding(block.owners), **joint))


def _report_after(report: Callable[[int], None], before: int, count: int) -> None:
    report(before + count)


@eqx.filter_jit
def _compiled(ensemble: Ensemble, batch: Batch, *, stress: bool, members: bool) -> VarianceOutput:
    return variances(ensemble, batch.graph, batch.labels, stress=stress, members=members)


def batches_of(data: Prepared, shapes: GrowingShapes) -> Iterator[tuple[Int[np.ndarray, " m"], Batch]]:
    """Numbers of structures with their batch, all structures once.

    Those with many neighbours come first, so that the rest fits their shapes.
    """
    for indices in grouped(data.sizes, np.argsort(-data.neighbours, kind="stable")):
        shape = shapes.fitting(int(data.sizes[indices].sum()), int(data.neighbours[indices].max()))
        yield indices, data.batch(indices, shape)


def _prepared(ensemble: Ensemble, block: Block) -> Prepared:
    learnt = block if ensemble.baseline is None else block.relative_to_baseline()
    part = Part(block.source, learnt, np.arange(len(block)))
    cutoff_angstrom = ensemble.members.potential.atomic_config.cutoff_angstrom
    return Prepared.of(part, cutoff_angstrom, ensemble.isolated_energies_of)


def _with_known_elements(part: Part, elements: KnownElements) -> tuple[Part, dict[str, int]]:
    """The structures that the model was trained for, and how many there are of others."""
    fit = [np.zeros(0, bool)]
    strange: set[int] = set()
    for block in part.blocks():
        unknown = elements.unknown_in(block)
        strange |= set(block.atomic_numbers[unknown].tolist())
        fit.append(np.bincount(block.owners, unknown, len(block)) == 0)
    keep = np.concatenate(fit)
    if keep.all():
        return part, {}
    if not keep.any():
        raise HuefieldError(f"every structure contains {elements.complaint(strange)}: train one with these elements")
    reason = f"contain {elements.complaint(strange)}"
    return replace(part, indices=part.indices[keep]), {reason: int((~keep).sum())}


def _skipping_unknown(block: Block, elements: KnownElements, skip: Callable[[Fault], None]) -> Iterator[Block]:
    """The structures that the model was trained for."""
    unknown = elements.unknown_in(block)
    bad, starts = np.unique(block.owners[unknown]), block.starts
    for index in bad:
        atoms = slice(starts[index], starts[index + 1])
        strange = block.atomic_numbers[atoms][unknown[atoms]]
        reason = f"it contains {elements.complaint(strange.tolist())}"
        skip(Fault(block.source, int(block.frames[index]), reason))
    if len(bad) < len(block):
        yield block.select(~np.isin(np.arange(len(block)), bad)) if len(bad) else block


def _joined(blocks: list[Block]) -> Block:
    first, last = blocks[0].source, blocks[-1].source
    return joined(blocks, first if first == last else f"{first} to {last}")


def _pieces(block: Block) -> Iterator[Block]:
    """A block cut where it has too many atoms for a chunk."""
    piece = block.starts[:-1] // CHUNK_ATOMS
    numbers = np.unique(piece)
    return iter([block]) if len(numbers) == 1 else (block.select(piece == number) for number in numbers)


def _refuse(fault: Fault) -> None:
    raise BadFrameError(str(fault))
