"""All metrics of a model, of everything together and of parts: elements, magnitudes of forces, groups of structures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from ase.data import chemical_symbols
from jaxtyping import Float, Int, Integer, UInt8

from huefield.evaluation.bootstrap import Interval, Resampling, interval_of_mean
from huefield.evaluation.curves import bin_numbers
from huefield.evaluation.entries import checked_pair
from huefield.evaluation.scores import Remarks, Scores, scores_of_errors
from huefield.evaluation.summaries import Summary, summary_of_errors, summary_of_lengths
from huefield.predict.predictions import Observed, Predictions
from huefield.support.plain import plain_fields

LARGEST_GROUPS = 20
"""How many groups are told apart; the others are one part."""


@dataclass(frozen=True)
class Slice:
    """A part of the data."""

    kind: str
    """``element``, ``force magnitude`` or ``group``: what the data were parted by."""
    label: str
    energy: Scores | None
    """None where the part has no energies of its own."""
    forces: Scores | None
    """Of components; None where the part has no forces."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How good one model is on some structures."""

    name: str
    energy: Summary | None
    """Of structures, in eV; None where no energy was both predicted and observed."""
    forces: Summary | None
    """Of components, in eV/Å; None where no force was both predicted and observed."""
    forces_per_atom: Summary | None
    """Of atoms: the root mean square of the errors of the three components, and the mean of their variances."""
    joint_nll: float | None
    """Of the energy and all forces of a structure together, averaged over structures; None where it is not known."""
    breakdown: tuple[Slice, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many structures are missing here, by the reason."""
    remarks: tuple[str, ...] = ()
    """What could not be told of the model as a whole, and why."""
    joint_nll_interval: Interval | None = None
    """From resampled structures; None if none was asked for."""

    def as_dict(self) -> dict[str, object]:
        """For JSON: None for what is NaN."""
        return plain_fields(self)


def summarise(predictions: Predictions, *, bins: int = 10, resamples: int = 0, seed: int = 0) -> Evaluation:
    """All metrics of a model's predictions.

    Args:
        predictions: Beside what was observed.
        bins: Of reliability diagrams and of force magnitudes.
        resamples: How many times structures are drawn anew for confidence intervals; zero for no intervals.
        seed: Of these draws.
    """
    resampling = Resampling(resamples, seed, bins)
    forces = _Forces.of(predictions)
    remarks = Remarks()
    remarks.found.extend(_not_predicted(predictions))
    joint_nll, interval = _joint_nll(predictions, resampling, remarks)
    return Evaluation(
        name=predictions.name,
        energy=_energy(predictions, resampling),
        forces=None if forces is None else forces.of_components(resampling),
        forces_per_atom=None if forces is None else forces.of_atoms(resampling),
        joint_nll=joint_nll,
        breakdown=_breakdown(predictions, forces, bins),
        left_out=dict(predictions.left_out),
        remarks=tuple(remarks.found),
        joint_nll_interval=interval,
    )


def breakdown(predictions: Predictions, bins: int = 10) -> tuple[Slice, ...]:
    """Scores by element, by magnitude of the observed force on an atom, and by group.

    Magnitudes are parted into bins of equal counts. The largest groups are told apart, the others are one part whose
    label says how many they are; there are no groups where no structure names one.
    """
    return _breakdown(predictions, _Forces.of(predictions), bins)


@dataclass(frozen=True, eq=False)
class _Forces:
    """What was predicted and observed of forces."""

    error: Float[np.ndarray, "A 3"]
    variance: Float[np.ndarray, "A 3"]
    magnitude: Float[np.ndarray, " A"]
    """Of the observed force."""
    numbers: UInt8[np.ndarray, " A"]
    structure: Int[np.ndarray, " A"]

    @classmethod
    def of(cls, predictions: Predictions) -> "_Forces | None":
        kept = predictions.atoms_observed
        if predictions.forces is None or not kept.any():
            return None
        rows = slice(None) if kept.all() else kept
        target, mean, variance = (
            column[rows].astype(float, copy=False)
            for column in (predictions.structures.forces, predictions.forces.mean, predictions.forces.variance)
        )
        checked_pair(error := target - mean, variance)
        numbers, structure = predictions.structures.atomic_numbers[rows], predictions.structures.owners[rows]
        return cls(error, variance, np.linalg.norm(target, axis=1), numbers, structure)

    def of_components(self, resampling: Resampling) -> Summary:
        return summary_of_errors(self.error, self.variance, np.repeat(self.structure, 3), resampling)

    def of_atoms(self, resampling: Resampling) -> Summary:
        length = np.sqrt(np.einsum("ax,ax->a", self.error, self.error) / 3)
        return summary_of_lengths(length, self.variance.mean(1), self.structure, resampling)

    def scores(self, rows: Int[np.ndarray, " part"], bins: int) -> Scores:
        return scores_of_errors(self.error[rows].ravel(), self.variance[rows].ravel(), bins)


def _energy(predictions: Predictions, resampling: Resampling) -> Summary | None:
    found = predictions.observed_energies()
    if found is None:
        return None
    error = np.subtract(found.target, found.mean, dtype=float)
    return summary_of_errors(error, found.variance, found.structure, resampling)


def _joint_nll(
    predictions: Predictions, resampling: Resampling, remarks: Remarks
) -> tuple[float | None, Interval | None]:
    """The mean over structures that have one, and its interval; infinite ones are left out, with a remark."""
    if predictions.joint_nll is None:
        return None, None
    known = predictions.joint_nll[~np.isnan(predictions.joint_nll)].astype(float)
    finite = known[np.isfinite(known)]
    if infinite := len(known) - len(finite):
        remarks.found.append(f"joint_nll: {infinite} of {len(known)} structures are left out, theirs is infinite")
    if not len(finite):
        return None, None
    interval: Interval | None = None
    if resampling.resamples:
        compute = partial(interval_of_mean, "joint_nll", finite, resampling)
        interval = remarks.attempt("joint_nll: interval", compute, None)
    return float(finite.mean()), interval


def _not_predicted(predictions: Predictions) -> Iterator[str]:
    """Remarks on structures that were observed, but not predicted by a model that predicts others."""
    block, energy, forces = predictions.structures, predictions.energy, predictions.forces
    if energy is not None:
        missing = int((block.has_energy & ~np.isfinite(energy.mean)).sum())
        yield from _unpredicted("energies", missing, int(block.has_energy.sum()))
    if forces is not None:
        atoms = np.repeat(block.has_forces, block.sizes) & ~predictions.atoms_observed
        missing = len(np.unique(predictions.structures.owners[atoms]))
        yield from _unpredicted("forces", missing, int(block.has_forces.sum()))


def _unpredicted(name: str, missing: int, observed: int) -> Iterator[str]:
    if missing:
        yield f"{name}: not predicted in {missing} of {observed} structures where they were observed"


def _parts(labels: Integer[np.ndarray, " n"], count: int) -> Iterator[Int[np.ndarray, " part"]]:
    """The numbers of the entries with label 0, 1, ..., rising."""
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=count))
    yield from np.split(order, ends[:-1])


def _breakdown(predictions: Predictions, forces: _Forces | None, bins: int) -> tuple[Slice, ...]:
    by_atom = () if forces is None else (*_by_element(forces, bins), *_by_magnitude(forces, bins))
    return (*by_atom, *_by_group(predictions, forces, bins))


def _by_element(forces: _Forces, bins: int) -> Iterator[Slice]:
    for number, rows in enumerate(_parts(forces.numbers, len(chemical_symbols))):
        if len(rows):
            yield Slice("element", chemical_symbols[number], None, forces.scores(rows, bins))


def _by_magnitude(forces: _Forces, bins: int) -> Iterator[Slice]:
    bin_of_atom = bin_numbers(forces.magnitude, min(bins, len(forces.magnitude)))
    for rows in _parts(bin_of_atom, int(bin_of_atom.max()) + 1):
        inside = forces.magnitude[rows]
        label = f"{inside.min():.3g} to {inside.max():.3g} eV/Å"
        yield Slice("force magnitude", label, None, forces.scores(rows, bins))


def _by_group(predictions: Predictions, forces: _Forces | None, bins: int) -> Iterator[Slice]:
    labels, part_of_structure = _largest_groups(predictions.structures.groups)
    if not labels:
        return
    energies = predictions.observed_energies()
    none = [None] * len(labels)
    by_energy = none if energies is None else _parts(part_of_structure[energies.structure], len(labels))
    by_forces = none if forces is None else _parts(part_of_structure[forces.structure], len(labels))
    for label, structures, atoms in zip(labels, by_energy, by_forces, strict=True):
        energy = _energy_scores(energies, structures, bins)
        found = None if forces is None or atoms is None or not len(atoms) else forces.scores(atoms, bins)
        yield Slice("group", label, energy, found)


def _energy_scores(energies: Observed | None, rows: Int[np.ndarray, " part"] | None, bins: int) -> Scores | None:
    if energies is None or rows is None or not len(rows):
        return None
    error = np.subtract(energies.target[rows], energies.mean[rows], dtype=float)
    return scores_of_errors(error, energies.variance[rows].astype(float), bins)


def _largest_groups(groups: Sequence[str]) -> tuple[list[str], Int[np.ndarray, " n"]]:
    """Labels of the parts, and the number of the part of each structure."""
    names, group, counts = np.unique(np.array(groups, str), return_inverse=True, return_counts=True)
    if not any(names):
        return [], np.zeros(len(groups), np.int64)
    largest = np.argsort(-counts, kind="stable")
    part = np.empty(len(names), np.int64)
    part[largest] = np.minimum(np.arange(len(names)), LARGEST_GROUPS)
    labels = [str(names[i]) or "no group" for i in largest[:LARGEST_GROUPS]]
    others = len(names) - len(labels)
    return labels + [f"{others} smaller groups together"] * bool(others), part[group]
