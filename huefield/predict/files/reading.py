"""Predictions of any code, from extended xyz or other files that ASE reads, beside reference values.

Units are ASE's: eV and Å. docs/predictions.md lists the names, and their meaning in the codes that write them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from huefield.core.structure import Block, Structure, pack
from huefield.data.readers.checks import fault_reasons
from huefield.predict.files.frames import BadValueError, Contents, Frame, read_contents
from huefield.predict.files.keys import ChosenKeys, PredictionKeys, Quantity, require_complete
from huefield.predict.files.reference import read_reference, with_values_of
from huefield.predict.marginals import EnergyForcesMarginals, Marginals
from huefield.predict.predictions import Predictions
from huefield.support.errors import HuefieldError


def read_predictions(
    path: str | Path,
    *,
    keys: PredictionKeys | None = None,
    reference: str | Path | None = None,
    name: str | None = None,
) -> Predictions:
    """Predicted energies and forces with their uncertainties, and the reference values of the same structures.

    Missing labels of a frame are masked; missing predictions have NaN means and zero variances. Frames that cannot
    be used (NaN predictions, negative variances, damage) are left out and counted by the reason. A quantity without
    uncertainties has zero variances. Structures are numbered by ``frame`` if all frames state it, otherwise by their
    position in the file.

    Args:
        path: the file with the predictions.
        keys: names of its entries; None for the known ones.
        reference: a file or store with the reference values, of the same structures in the same order, or of more
            if ``frame`` gives their numbers; None if reference values stand beside the predictions.
        name: of the model; None for the one that the file states, or else the name of the file.
    """
    path, keys = Path(path), keys or PredictionKeys()
    contents = read_contents(path, keys)
    elsewhere = reference is not None
    keys.require_stated(contents.names, str(path), reference_elsewhere=elsewhere)
    chosen = (_chosen("energy", keys, contents), _chosen("forces", keys, contents))
    require_complete(chosen, contents.names, str(path), reference_elsewhere=elsewhere)
    left_out = Counter(contents.faults)
    rows = _usable(contents, chosen, keys, str(path), left_out)
    if reference is not None:
        rows = _compared(rows, Path(reference), keys, contents.length, left_out)
    _require_any(rows, contents.length, left_out)
    _require_force_deviations(rows, chosen[1])
    return rows.assembled(name or contents.model or path.stem, left_out)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Structures with their reference values and predictions; None where a quantity was not predicted."""

    structures: Block
    energy: list[Marginals | None]
    forces: list[Marginals | None]
    joint_nll: list[float | None]
    numbers: list[int | None]
    """Numbers in the source of the structures, if the file states them."""

    def select(self, keep: Bool[np.ndarray, " n"]) -> "_Rows":
        """The rows that a mask keeps."""
        rows = np.flatnonzero(keep)
        energy, forces = ([column[i] for i in rows] for column in (self.energy, self.forces))
        joint_nll, numbers = [self.joint_nll[i] for i in rows], [self.numbers[i] for i in rows]
        return _Rows(self.structures.select(keep), energy, forces, joint_nll, numbers)

    def can_be_judged(self) -> bool:
        """Whether any quantity was both predicted and observed."""
        block = self.structures
        return bool((block.has_energy & _there(self.energy)).any() or (block.has_forces & _there(self.forces)).any())

    def are_numbered(self, below: float = np.inf) -> bool:
        """Whether all structures have a number in their source, below this number of structures."""
        return all(number is not None and number < below for number in self.numbers)

    def numbered(self) -> Block:
        """The structures with the numbers of their source, if all are known."""
        known = [number for number in self.numbers if number is not None]
        return replace(self.structures, frames=np.array(known, np.int64)) if self.are_numbered() else self.structures

    def assembled(self, name: str, left_out: Counter[str]) -> Predictions:
        """All rows as predictions."""
        sizes = self.structures.sizes.tolist()
        joint = [np.nan if value is None else value for value in self.joint_nll]
        marginals = EnergyForcesMarginals(
            energy=self._marginals("energy", [(1,)] * len(sizes)),
            forces=self._marginals("forces", [(size, 3) for size in sizes]),
            joint_nll=np.array(joint),
        )
        return Predictions(name, self.numbered(), marginals, {why: count for why, count in left_out.items() if count})

    def _marginals(self, quantity: Quantity, shapes: Sequence[tuple[int, ...]]) -> Marginals | None:
        """One quantity of all rows; None if it was not predicted at all."""
        predicted = self.energy if quantity == "energy" else self.forces
        if not _there(predicted).any():
            return None
        return replace(_marginals(predicted, shapes), dof=_one_dof(quantity, predicted, self.structures.source))


def _chosen(quantity: Quantity, keys: PredictionKeys, contents: Contents) -> ChosenKeys:
    """The names of a quantity, without a reference that may be a prediction under its usual name."""
    chosen = keys.choose(quantity, contents.names)
    stated = f"reference_{quantity}" in keys.model_fields_set
    either = chosen.reference in PredictionKeys.model_fields[quantity].default
    return replace(chosen, reference=None) if chosen.mean is None and either and not stated else chosen


def _usable(
    contents: Contents, chosen: tuple[ChosenKeys, ChosenKeys], keys: PredictionKeys, source: str, left_out: Counter[str]
) -> _Rows:
    """The frames with valid predictions; the others are counted."""
    kept: list[tuple[Frame, Structure, Marginals | None, Marginals | None]] = []
    for frame in contents.frames:
        try:
            energy, forces = (frame.predicted(names) for names in chosen)
            if energy is None and forces is None:
                raise BadValueError("nothing was predicted")
            kept.append((frame, frame.labelled(chosen, keys), energy, forces))
        except BadValueError as error:
            left_out[str(error)] += 1
    block = pack([row[1] for row in kept], np.array([row[0].number for row in kept], np.int64), source)
    rows = _Rows(
        block,
        [energy for _, _, energy, _ in kept],
        [forces for _, _, _, forces in kept],
        [frame.joint_nll for frame, _, _, _ in kept],
        [frame.source_number for frame, _, _, _ in kept],
    )
    faults = fault_reasons(block)
    left_out.update(faults.values())
    return rows.select(np.array([index not in faults for index in range(len(block))], bool))


def _compared(rows: _Rows, path: Path, keys: PredictionKeys, length: int, left_out: Counter[str]) -> _Rows:
    """The same structures with the reference values of another file."""
    reference = read_reference(path, keys)
    numbers = rows.structures.frames if reference.length == length else rows.numbered().frames
    if reference.length != length and not rows.are_numbered(below=reference.length):
        raise HuefieldError(
            f"{path} has {reference.length} structures, but {rows.structures.source} has {length}: the reference must "
            "be the same structures in the same order, or those that `frame` gives the numbers of"
        )
    there = reference.has(numbers)
    left_out["its reference cannot be used"] += int((~there).sum())
    kept = rows.select(there)
    return replace(kept, structures=with_values_of(reference.at(numbers[there]), kept.structures))


def _require_any(rows: _Rows, length: int, left_out: Counter[str]) -> None:
    source = rows.structures.source
    if not len(rows.structures):
        reasons = "; ".join(f"{reason} ({count})" for reason, count in left_out.items() if count)
        raise HuefieldError(f"{source}: none of its {length} structures can be used: {reasons}")
    if not rows.can_be_judged():
        raise HuefieldError(f"{source}: no structure has both a prediction and a reference value of the same quantity")


def _require_force_deviations(rows: _Rows, names: ChosenKeys) -> None:
    """Raise if FLARE's ``stds`` are one number for each atom, which is no uncertainty of forces in eV/Å."""
    variances = [predicted.variance for predicted in rows.forces if predicted is not None]
    if names.deviation != "stds" or not variances:
        return
    largest = np.max([variance.max(axis=0) for variance in variances], axis=0)
    if largest[0] > 0 and not largest[1:].any():
        raise HuefieldError(
            f"{rows.structures.source}: stds has numbers in its first column only, as FLARE writes them for local and "
            "mapped uncertainties (one for each atom, not of force components): predict with variance_type='DTC' or "
            "'SOR', or leave the column out"
        )


def _marginals(predicted: list[Marginals | None], shapes: Sequence[tuple[int, ...]]) -> Marginals:
    """One row after the other; aleatoric and epistemic parts only if all predictions have them.

    Where nothing was predicted, the mean is NaN and variances are zero.
    """
    nothing = (Marginals(np.full(shape, np.nan), np.zeros(shape), np.zeros(shape), np.zeros(shape)) for shape in shapes)
    return Marginals.joined([n if p is None else p for p, n in zip(predicted, nothing, strict=True)])


def _one_dof(quantity: Quantity, predicted: list[Marginals | None], source: str) -> float | None:
    """Degrees of freedom, which all structures share since metrics are those of one distribution."""
    stated = {each.dof for each in predicted if each is not None}
    if len(stated) > 1:
        listed = ", ".join(sorted("none" if dof is None else f"{dof:g}" for dof in stated))
        raise HuefieldError(
            f"{source}: {quantity}_dof differs between structures ({listed}): evaluate the predictions of one model "
            "at a time"
        )
    return stated.pop()


def _there(values: Sequence[object]) -> Bool[np.ndarray, " n"]:
    return np.array([value is not None for value in values], bool)
