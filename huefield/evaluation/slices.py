"""Metrics of a model for all data and for slices: data sets, elements, force magnitudes, groups of structures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from ase.data import chemical_symbols
from jaxtyping import Float, Int, Integer, UInt8

from huefield.core.structure import strain_labels
from huefield.evaluation.bootstrap import Interval, Resampling, interval_of_mean
from huefield.evaluation.curves import bin_numbers
from huefield.evaluation.entries import checked_pair
from huefield.evaluation.paper_metrics import PaperMetrics, Remarks, paper_metrics
from huefield.evaluation.summaries import MetricSummary, summary_of_errors, summary_of_lengths
from huefield.predict.predictions import Observed, Predictions
from huefield.support.defaults import BINS
from huefield.support.plain import plain_fields

DATASET = "data set"
"""The kind of slices of data sets."""
LARGEST_GROUPS = 20
"""Number of groups that are slices of their own; the others form one slice."""


@dataclass(frozen=True)
class Slice:
    """Metrics of a part of the data."""

    kind: str
    """Criterion: ``data set``, ``element``, ``force magnitude`` or ``group``."""
    label: str
    energy: PaperMetrics | None
    """Metrics of energies; None for slices of atoms, or without energies."""
    forces: PaperMetrics | None
    """Metrics of force components; None without forces."""
    stress: PaperMetrics | None = None
    """Metrics of stress components; None for slices of atoms, or without stresses."""
    energy_per_atom: PaperMetrics | None = None
    """Metrics of energies per atom; None for slices of atoms, or without periodic structures."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Metrics of one model on a set of structures."""

    name: str
    energy: MetricSummary | None
    """Metrics of energies [eV]; None if no energy was both predicted and observed."""
    forces: MetricSummary | None
    """Metrics of force components [eV/Å]; None if no force was both predicted and observed."""
    forces_per_atom: MetricSummary | None
    """Metrics per atom: root mean square error of the three components, and their mean variance."""
    joint_nll: float | None
    """Mean over structures of the joint negative log likelihood of energy, forces and stress; None if unknown."""
    breakdown: tuple[Slice, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of skipped structures by reason."""
    remarks: tuple[str, ...] = ()
    """Remarks on metrics of the model as a whole."""
    joint_nll_interval: Interval | None = None
    """Confidence interval from resampled structures; None unless requested."""
    stress: MetricSummary | None = None
    """Metrics of the six components of the stress [eV/Å³]; None if no stress was both predicted and observed."""
    energy_per_atom: MetricSummary | None = None
    """Metrics of energies divided by the number of atoms [eV]; None without periodic structures.

    Cells of different size describe one crystal, so that only energies per atom can be compared.
    """

    def as_dict(self) -> dict[str, object]:
        """Fields for JSON, with None in place of NaN."""
        return plain_fields(self)

    @property
    def datasets(self) -> tuple[Slice, ...]:
        """The slices of each data set; none if there is only one."""
        return tuple(each for each in self.breakdown if each.kind == DATASET)


def summarise(predictions: Predictions, *, bins: int = BINS, resamples: int = 0, seed: int = 0) -> Evaluation:
    """All metrics of a model's predictions.

    Args:
        predictions: predictions with observed values.
        bins: number of bins of reliability diagrams and of force magnitudes.
        resamples: number of resamples for confidence intervals; zero for no intervals.
        seed: seed of the resampling.
    """
    resampling = Resampling(resamples, seed, bins)
    forces = _Forces.of(predictions)
    remarks = Remarks()
    remarks.found.extend(_not_predicted(predictions))
    joint_nll, interval = _joint_nll(predictions, resampling, remarks)
    return Evaluation(
        name=predictions.name,
        energy=_summary(predictions.observed_energies(), resampling),
        forces=None if forces is None else forces.of_components(resampling),
        forces_per_atom=None if forces is None else forces.of_atoms(resampling),
        joint_nll=joint_nll,
        breakdown=_breakdown(predictions, forces, bins),
        left_out=dict(predictions.left_out),
        remarks=tuple(remarks.found),
        joint_nll_interval=interval,
        stress=_summary(predictions.observed_stress(), resampling),
        energy_per_atom=_summary(predictions.observed_energies_per_atom(), resampling),
    )


def breakdown(predictions: Predictions, bins: int = BINS) -> tuple[Slice, ...]:
    """Metrics by data set, if there are several, by element, by magnitude of the observed force on an atom, by group.

    Magnitudes have bins of equal counts. The largest groups are slices of their own; the others form one slice, whose
    label has their number. Without groups in the data there are no such slices.
    """
    return _breakdown(predictions, _Forces.of(predictions), bins)


@dataclass(frozen=True, eq=False)
class _Forces:
    """Errors and variances of observed forces."""

    error: Float[np.ndarray, "A 3"]
    variance: Float[np.ndarray, "A 3"]
    magnitude: Float[np.ndarray, " A"]
    """Magnitude of the observed force."""
    numbers: UInt8[np.ndarray, " A"]
    structure: Int[np.ndarray, " A"]
    dof: float | None = None
    """Degrees of freedom of the t distribution of the errors; None for a normal one."""

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
        return cls(error, variance, np.linalg.norm(target, axis=1), numbers, structure, predictions.forces.dof)

    def of_components(self, resampling: Resampling) -> MetricSummary:
        return summary_of_errors(self.error, self.variance, np.repeat(self.structure, 3), resampling, self.dof)

    def of_atoms(self, resampling: Resampling) -> MetricSummary:
        length = np.sqrt(np.einsum("ax,ax->a", self.error, self.error) / 3)
        return summary_of_lengths(length, self.variance.mean(1), self.structure, resampling)

    def scores(self, rows: Int[np.ndarray, " part"], bins: int) -> PaperMetrics:
        return paper_metrics(self.error[rows].ravel(), self.variance[rows].ravel(), bins, self.dof)


def _summary(found: Observed | None, resampling: Resampling) -> MetricSummary | None:
    if found is None:
        return None
    error = np.subtract(found.target, found.mean, dtype=float)
    return summary_of_errors(error, found.variance, found.structure, resampling, found.dof)


def _joint_nll(
    predictions: Predictions, resampling: Resampling, remarks: Remarks
) -> tuple[float | None, Interval | None]:
    """Mean over structures and its interval; infinite values are excluded, with a remark."""
    if predictions.joint_nll is None:
        return None, None
    known = predictions.joint_nll[~np.isnan(predictions.joint_nll)].astype(float)
    finite = known[np.isfinite(known)]
    if infinite := len(known) - len(finite):
        remarks.found.append(f"joint_nll: infinite for {infinite} of {len(known)} structures, which are excluded")
    if not len(finite):
        return None, None
    interval: Interval | None = None
    if resampling.resamples:
        compute = partial(interval_of_mean, "joint_nll", finite, resampling)
        interval = remarks.attempt("joint_nll: interval", compute, None)
    return float(finite.mean()), interval


def _not_predicted(predictions: Predictions) -> Iterator[str]:
    """Remarks on observed structures that the model did not predict."""
    block, energy, forces = predictions.structures, predictions.energy, predictions.forces
    if energy is not None:
        missing = int((block.has_energy & ~np.isfinite(energy.mean)).sum())
        yield from _unpredicted("energies", missing, int(block.has_energy.sum()))
    if forces is not None:
        atoms = np.repeat(block.has_forces, block.sizes) & ~predictions.atoms_observed
        missing = len(np.unique(predictions.structures.owners[atoms]))
        yield from _unpredicted("forces", missing, int(block.has_forces.sum()))
    stressed = int(strain_labels(block)[1].sum())
    if predictions.stress is not None and stressed:
        yield from _unpredicted("stresses", stressed - int(predictions.stress_observed.sum()), stressed)


def _unpredicted(name: str, missing: int, observed: int) -> Iterator[str]:
    if missing:
        yield f"{name}: not predicted for {missing} of {observed} structures with observed values"


def _parts(labels: Integer[np.ndarray, " n"], count: int) -> Iterator[Int[np.ndarray, " part"]]:
    """Indices of the entries with label 0, 1, ..., each increasing."""
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=count))
    yield from np.split(order, ends[:-1])


def _breakdown(predictions: Predictions, forces: _Forces | None, bins: int) -> tuple[Slice, ...]:
    by_atom = () if forces is None else (*_by_element(forces, bins), *_by_magnitude(forces, bins))
    return (*_by_dataset(predictions, forces, bins), *by_atom, *_by_group(predictions, forces, bins))


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


def _by_dataset(predictions: Predictions, forces: _Forces | None, bins: int) -> Iterator[Slice]:
    labels, part_of_structure = np.unique(np.array(predictions.structures.tags, str), return_inverse=True)
    if len(labels) > 1:
        yield from _by_structure(DATASET, labels.tolist(), part_of_structure, predictions, forces, bins)


def _by_group(predictions: Predictions, forces: _Forces | None, bins: int) -> Iterator[Slice]:
    labels, part_of_structure = _largest_groups(predictions.structures.groups)
    if labels:
        yield from _by_structure("group", labels, part_of_structure, predictions, forces, bins)


def _by_structure(
    kind: str,
    labels: Sequence[str],
    part_of_structure: Int[np.ndarray, " n"],
    predictions: Predictions,
    forces: _Forces | None,
    bins: int,
) -> Iterator[Slice]:
    """Slices of structures, by the number of the slice of each."""
    none = [None] * len(labels)
    by_forces = none if forces is None else _parts(part_of_structure[forces.structure], len(labels))
    energies, stresses, per_atom = (
        _scores_by_part(found, part_of_structure, len(labels), bins)
        for found in (
            predictions.observed_energies(),
            predictions.observed_stress(),
            predictions.observed_energies_per_atom(),
        )
    )
    for number, (label, atoms) in enumerate(zip(labels, by_forces, strict=True)):
        found = None if forces is None or atoms is None or not len(atoms) else forces.scores(atoms, bins)
        yield Slice(kind, label, energies[number], found, stresses[number], per_atom[number])


def _scores_by_part(
    found: Observed | None, part_of_structure: Int[np.ndarray, " n"], parts: int, bins: int
) -> list[PaperMetrics | None]:
    """Metrics of the entries in each part; None for parts without entries."""
    if found is None:
        return [None] * parts
    rows = _parts(part_of_structure[found.structure], parts)
    return [_scores(found, some, bins) if len(some) else None for some in rows]


def _scores(found: Observed, rows: Int[np.ndarray, " part"], bins: int) -> PaperMetrics:
    error = np.subtract(found.target[rows], found.mean[rows], dtype=float)
    return paper_metrics(error, found.variance[rows].astype(float), bins, found.dof)


def _largest_groups(groups: Sequence[str]) -> tuple[list[str], Int[np.ndarray, " n"]]:
    """Labels of the slices, and the number of the slice of each structure."""
    names, group, counts = np.unique(np.array(groups, str), return_inverse=True, return_counts=True)
    if not any(names):
        return [], np.zeros(len(groups), np.int64)
    largest = np.argsort(-counts, kind="stable")
    part = np.empty(len(names), np.int64)
    part[largest] = np.minimum(np.arange(len(names)), LARGEST_GROUPS)
    labels = [str(names[i]) or "no group" for i in largest[:LARGEST_GROUPS]]
    others = len(names) - len(labels)
    return labels + [f"{others} smaller groups together"] * bool(others), part[group]
