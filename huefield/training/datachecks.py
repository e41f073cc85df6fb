"""Checks of the data before training: certain faults stop it, doubtful ones are warnings.

Units and single labels are judged as ``huefield data info`` judges them (:mod:`huefield.data.summary`,
:mod:`huefield.data.outliers`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from huefield.core.structure import Block, strain_labels
from huefield.data.dataset import DataConfig, FileData, Part, Parts
from huefield.data.outliers import LabelSizes
from huefield.data.readers.base import Remark, reader_of_training
from huefield.data.references import AtomicReferences
from huefield.data.summary import UnitHint, summarise_data
from huefield.support.errors import HuefieldError
from huefield.training.inputs import DECISIVE


def require_trainable(parts: Parts, remarks: Sequence[Remark] = ()) -> None:
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
    _require_all_datasets(parts)
    unknown = _unknown_elements(parts)
    if "validation" in unknown:
        raise HuefieldError(
            f"the part 'validation' has {unknown['validation']}, but the training data have only "
            f"{', '.join(parts['train'].elements())}: remove such structures, or add some to the training data"
        )


def _require_all_datasets(parts: Parts) -> None:
    """Raise unless each data set has structures for training and validation, with the same elements."""
    train, validation = parts["train"], parts["validation"]
    if len({**train.datasets, **validation.datasets}) < 2:
        return
    for tag in {**train.datasets, **validation.datasets}:
        empty = next((part.name for part in (train, validation) if tag not in part.datasets), None)
        if empty is not None:
            raise HuefieldError(
                f"there are no structures of data set {tag!r} for {empty}: split at random, which splits each data "
                "set, or change the seed or the limits"
            )
        known = train.of_dataset(tag).elements()
        unknown = [each for each in validation.of_dataset(tag).elements() if each not in known]
        if unknown:
            raise HuefieldError(
                f"data set {tag!r} has {', '.join(unknown)} for validation, but only {', '.join(known)} for training, "
                "so that it has no reference energies for them: add such structures, or change the seed of the split"
            )


def _unknown_elements(parts: Parts) -> dict[str, str]:
    """For each part with elements that the training data lack, these elements."""
    known = parts["train"].elements()
    unknown = {name: [each for each in part.elements() if each not in known] for name, part in parts.items()}
    return {name: ", ".join(elements) for name, elements in unknown.items() if elements}


def overview(parts: Parts, references: AtomicReferences, members: range, total: int) -> Iterator[str]:
    """Lines about the data and what they lack.

    Args:
        parts: the data.
        references: energies of isolated atoms.
        members: the members to train.
        total: members of the ensemble.
    """
    train, counts = parts["train"], {name: len(parts[name]) for name in DECISIVE}
    together = f"{total} member" + "s" * (total > 1)
    who = together if len(members) == total else f"member {members[0]} of {total}"
    yield (
        f"{counts['train']} structures of {', '.join(train.elements())} for training, {counts['validation']} for "
        f"validation; {who}"
    )
    several = len(train.datasets) > 1
    if several:
        yield "data sets: " + ", ".join(
            f"{tag} ({count} + {parts['validation'].datasets.get(tag, 0)} structures)"
            for tag, count in train.datasets.items()
        )
    if references.underdetermined:
        which = f" in {', '.join(references.underdetermined)}" if several else ""
        yield (
            f"warning: the compositions of the training data{which} do not determine the energies of isolated atoms, "
            "so that energies of other compositions will be wrong; references: {kind: isolated_atoms} takes them from "
            "isolated atoms in the training data"
        )
    for tag in train.datasets if several else ():
        if not any(block.has_energy.any() for block in train.of_dataset(tag).blocks()):
            yield f"warning: data set {tag!r} has no energies: only forces are learnt from it"
    if not any(block.has_forces.any() for block in train.blocks()):
        yield "warning: no structure for training has forces; they are learnt from energies alone"
    for name, elements in _unknown_elements(parts).items():
        yield f"warning: structures of {name} with {elements}, which the training data lack, are skipped"
    given, used = np.sum([_stress_counts(block) for block in train.blocks()], axis=0)
    if used:
        yield f"the stress of {used} structures for training is known, which stages learn with their stress_weight"
    if given > used:
        yield (
            f"warning: {given - used} structures for training have a stress, but no periodic cell that it could refer "
            "to; it is ignored"
        )


def _stress_counts(block: Block) -> tuple[int, int]:
    """Structures with a stress label, and those of them that have a stress."""
    return int(block.has_stress.sum()), int(strain_labels(block)[1].sum())


def label_warnings(parts: Parts, data: DataConfig | None = None, *, resumed: bool = False) -> Iterator[str]:
    """Warnings about labels that look wrong; raises if units or single labels are certainly wrong.

    Args:
        parts: the data.
        data: their configuration, which may state the units or allow such labels.
        resumed: whether training has begun already: nothing stops it then.
    """
    files = data if isinstance(data, FileData) else None
    allowed = resumed or (files is not None and files.allow_labels)
    stated = {
        file.dataset
        for file in (() if files is None else (*files.train_files, *files.validation_files))
        if getattr(file.reader, "energy_unit", None) is not None
    }
    for tag, title, part in _by_dataset(parts):
        for finding in _findings(title, part, units_stated=tag in stated):
            if finding.certain and not allowed:
                raise HuefieldError(f"{finding.text}. {finding.cure}; if they are right, set data.allow_labels=true")
            yield f"warning: {finding.text}"


def _by_dataset(parts: Parts) -> Iterator[tuple[str, str, Part]]:
    """The data sets of each decisive part: tag, title for messages, structures."""
    for name in DECISIVE:
        datasets = parts[name].datasets
        if len(datasets) == 1:
            yield next(iter(datasets)), name, parts[name]
        else:
            yield from ((tag, f"{name} ({tag})", parts[name].of_dataset(tag)) for tag in datasets)


@dataclass(frozen=True)
class _Finding:
    """Labels that look wrong."""

    text: str
    certain: bool = False
    cure: str = ""


def _findings(name: str, part: Part, *, units_stated: bool) -> Iterator[_Finding]:
    """Units and single labels that look wrong, in one pass over the structures."""
    sizes = LabelSizes()
    hints = summarise_data(sizes.through(part.blocks()), rng=np.random.default_rng(0)).hints
    if not units_stated:
        yield from _units(name, hints)
    for found in sizes.outliers(part.where):
        if found.certain:
            yield _Finding(f"labels for {name} are wrong: {found.frames}", certain=True, cure="Correct or remove them")
        else:
            yield _Finding(f"labels for {name} are unusual: {found.frames}")


def _units(name: str, hints: Sequence[UnitHint]) -> Iterator[_Finding]:
    if any(hint.certain for hint in hints):
        text = f"the labels for {name} are in other units than eV and Å: {'; '.join(map(str, hints))}"
        cure = "State the unit, as in reader: {kind: ase, energy_unit: kcal/mol}, or convert the labels"
        yield _Finding(text, certain=True, cure=cure)
    else:
        yield from (_Finding(f"for {name}, {hint}") for hint in hints)
