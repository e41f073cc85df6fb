"""Checks of the data before training: certain faults stop it, doubtful ones are warnings.

Units are judged as ``huefield data info`` judges them (:mod:`huefield.data.summary`). No total energy is below that of
all electrons, for which the Thomas-Fermi law gives a bound: energies beyond it are certainly wrong, as are forces
beyond ``IMPOSSIBLE_FORCE``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from huefield.core.units import HARTREE_EV
from huefield.data.composition import formula_index
from huefield.data.dataset import DataConfig, FileData, Part, Parts
from huefield.data.readers.base import Remark, reader_of_training
from huefield.data.references import AtomicReferences
from huefield.data.summary import IMPOSSIBLE_ENERGY, summarise, thomas_fermi_hartree
from huefield.support.errors import HuefieldError
from huefield.training.inputs import DECISIVE

IMPOSSIBLE_FORCE = 1e4
"""Force on an atom that no structure worth training on has, [eV/Å]."""
UNUSUAL = 100.0
"""Factor above the median from which a label is worth a warning."""
UNUSUAL_FORCE, UNUSUAL_ENERGY = 30.0, 1.0
"""Smallest force [eV/Å] and deviation of an energy [eV per atom] that are worth a warning."""
SHOWN = 3
"""Frames that a message names."""


def require_usable(parts: Parts, remarks: Sequence[Remark] = ()) -> None:
    """Raise if training would fail, or its result would be useless.

    Args:
        parts: the data.
        remarks: remarks of the readers, which may know other names of missing labels.
    """
    others = "".join(f". {remark.advised(reader_of_training)}" for remark in remarks if remark.kind == "labels")
    for name in DECISIVE:
        if name not in parts:
            raise HuefieldError(f"the split has no part {name!r}, only {list(parts)}: rename one of them")
        if not len(parts[name]):
            raise HuefieldError(f"there are no structures for {name}: change the split or the files")
        if not any((block.has_energy | block.has_forces).any() for block in parts[name].blocks()):
            raise HuefieldError(f"no structure for {name} has an energy or forces{others or ': are they in the file?'}")
    if not any(block.has_energy.any() for block in parts["train"].blocks()):
        raise HuefieldError(f"no structure for training has an energy, so that energies cannot be learnt{others}")
    known = parts["train"].elements()
    for name, part in parts.items():
        unknown = [element for element in part.elements() if element not in known]
        if unknown:
            raise HuefieldError(
                f"the part {name!r} has {', '.join(unknown)}, but the training data have only {', '.join(known)}: "
                "remove such structures, or add some to the training data"
            )


def overview(parts: Parts, references: AtomicReferences, members: range) -> Iterator[str]:
    """Lines about the data and what they lack."""
    train, counts = parts["train"], {name: len(parts[name]) for name in DECISIVE}
    alone = "1 member" if members[0] == 0 else f"member {members[0]}"
    who = f"{len(members)} members" if len(members) > 1 else alone
    yield (
        f"{counts['train']} structures of {', '.join(train.elements())} for training, {counts['validation']} for "
        f"validation; {who}"
    )
    if references.underdetermined:
        yield (
            "warning: the compositions of the training data do not determine the energies of isolated atoms, so that "
            "energies of other compositions will be wrong; references: {kind: isolated_atoms} takes them from isolated "
            "atoms in the training data"
        )
    if not any(block.has_forces.any() for block in train.blocks()):
        yield "warning: no structure for training has forces; they are learnt from energies alone"
    stresses = sum(int(block.has_stress.sum()) for block in train.blocks())
    if stresses:
        yield f"warning: {stresses} structures for training have a stress, which training does not use yet"


def label_warnings(parts: Parts, data: DataConfig | None = None, *, resumed: bool = False) -> Iterator[str]:
    """Warnings about labels that look wrong; raises if units or single labels are certainly wrong.

    Args:
        parts: the data.
        data: their configuration, which may state the units or allow such labels.
        resumed: whether training has begun already: nothing stops it then.
    """
    files = data if isinstance(data, FileData) else None
    units_stated = files is not None and getattr(files.reader, "energy_unit", None) is not None
    allowed = resumed or (files is not None and files.allow_labels)
    for name in DECISIVE:
        findings = [] if units_stated else list(_units(name, parts[name]))
        for finding in (*findings, *_outliers(name, parts[name], _Labels.of(parts[name]))):
            if finding.certain and not allowed:
                raise HuefieldError(f"{finding.text}. {finding.cure}; if they are right, set data.allow_labels=true")
            yield f"warning: {finding.text}"


@dataclass(frozen=True)
class _Finding:
    """Labels that look wrong."""

    text: str
    certain: bool = False
    cure: str = ""


def _units(name: str, part: Part) -> Iterator[_Finding]:
    hints = summarise(part.blocks(), rng=np.random.default_rng(0)).hints
    if any(hint.certain for hint in hints):
        text = f"the labels for {name} are in other units than eV and Å: {'; '.join(map(str, hints))}"
        cure = "State the unit, as in reader: {kind: ase, energy_unit: kcal/mol}, or convert the labels"
        yield _Finding(text, certain=True, cure=cure)
    else:
        yield from (_Finding(f"for {name}, {hint}") for hint in hints)


@dataclass(frozen=True, eq=False)
class _Labels:
    """Labels of each structure of a part; NaN where there are none."""

    largest_force: Float[np.ndarray, " n"]
    deviation: Float[np.ndarray, " n"]
    """Energy minus the median of structures with the same formula, per atom."""
    thomas_fermi: Float[np.ndarray, " n"]
    """Energy relative to the Thomas-Fermi law."""

    @classmethod
    def of(cls, part: Part) -> "_Labels":
        forces, energies, laws, sizes, numbers = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)], [], []
        for block in part.blocks():
            largest = np.zeros(len(block))
            np.maximum.at(largest, block.owners, np.linalg.norm(block.forces.astype(float), axis=1))
            forces.append(np.where(block.has_forces, largest, np.nan))
            energies.append(np.where(block.has_energy, block.energy, np.nan))
            laws.append(HARTREE_EV * thomas_fermi_hartree(block))
            sizes.append(block.sizes)
            numbers.append(block.atomic_numbers)
        energy, size = np.concatenate(energies), np.concatenate(sizes)
        _, formula = formula_index(size, np.concatenate(numbers))
        return cls(np.concatenate(forces), (energy - _medians(energy, formula)) / size, energy / np.concatenate(laws))


def _outliers(name: str, part: Part, labels: _Labels) -> Iterator[_Finding]:
    force, deviation, law = labels.largest_force, labels.deviation, labels.thomas_fermi
    usual_force, usual_energy = _median(force), _median(np.abs(deviation))
    impossible = (
        (force > IMPOSSIBLE_FORCE, lambda i: f"a force of {force[i]:.3g} eV/Å"),
        (
            np.abs(law) > IMPOSSIBLE_ENERGY,
            lambda i: f"an energy {law[i]:.3g} times the all-electron (Thomas-Fermi) energy",
        ),
    )
    unusual = (
        (
            force > max(UNUSUAL * usual_force, UNUSUAL_FORCE),
            lambda i: f"a force of {force[i]:.3g} eV/Å; the median is {usual_force:.3g} eV/Å",
        ),
        (
            np.abs(deviation) > max(UNUSUAL * usual_energy, UNUSUAL_ENERGY),
            lambda i: f"an energy {deviation[i]:+.3g} eV per atom from the median of its formula",
        ),
    )
    for bad, about in impossible:
        if bad.any():
            text = f"labels for {name} are wrong: {_frames(part, bad, about)}"
            yield _Finding(text, certain=True, cure="Correct or remove them")
    for bad, about in unusual:
        if bad.any():
            yield _Finding(f"labels for {name} are unusual: {_frames(part, bad, about)}")


def _frames(part: Part, bad: Bool[np.ndarray, " n"], about: Callable[[int], str]) -> str:
    """The first bad structures with what is wrong about them, and the number of the others."""
    found = np.flatnonzero(bad).tolist()
    shown = [f"{part.where(index)} has {about(index)}" for index in found[:SHOWN]]
    return "; ".join(shown) + (f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def _median(values: Float[np.ndarray, " n"]) -> float:
    return float(np.nanmedian(values)) if np.isfinite(values).any() else np.inf


def _medians(values: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """For each value the median of its group, NaN left out."""
    order = np.lexsort((values, group))  # NaN last
    known = np.bincount(group, np.isfinite(values)).astype(int)
    starts = np.concatenate([[0], np.cumsum(np.bincount(group))])[:-1]
    ranked = values[order]
    low, high = starts + np.maximum(known - 1, 0) // 2, starts + known // 2
    middle = 0.5 * (ranked[low] + ranked[np.minimum(high, len(ranked) - 1)])
    return np.where(known > 0, middle, np.nan)[group]
