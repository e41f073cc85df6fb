"""Open atoms in memory, files, a store, or the data of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from ase import Atoms

from huefield.core.structure import TAG, joined
from huefield.data.dataset import Part, open_part
from huefield.data.readers.ase_files import AseReader
from huefield.data.readers.base import Remark, reader_option, warn_of
from huefield.data.readers.detect import ReaderConfig, read_atoms
from huefield.data.runs import is_run, part_of_run
from huefield.support.errors import HuefieldError

AtomsOrPaths: TypeAlias = Atoms | Sequence[Atoms] | str | Path | Sequence[str | Path]
"""ASE atoms, or paths of files or stores."""
DataSource: TypeAlias = Part | AtomsOrPaths
"""A part of a data set, ASE atoms with labels, files or stores, or the folder of a run."""
IN_MEMORY = "atoms in memory"


def open_data(
    data: DataSource, *, part: str | None = None, usual_part: str = "test", reader: ReaderConfig | None = None
) -> Part:
    """Open labelled structures. Remarks of the readers, such as charges that models ignore, are shown as warnings.

    Args:
        data: see :data:`DataSource`.
        part: name of the part, if ``data`` is the folder of a run.
        usual_part: name of the part of a run if ``part`` is None.
        reader: how to read files or the labels of atoms; None to find out.
    """
    if isinstance(data, Part):
        _require_none("part", part, "the data are a part already")
        _require_none("reader", reader, "the data are read already")
        return data
    atoms, given = atoms_and_paths(data)
    if atoms:
        _require_none("part", part, "it selects a part of the data of a run")
        return _atoms_part(atoms, reader)
    paths, remarks = [Path(each) for each in given], list[Remark]()
    if len(paths) == 1 and is_run(paths[0]):
        _require_none("reader", reader, "the run records how its data are read")
        return _labelled(part_of_run(paths[0], part or usual_part, remarks.append), remarks)
    _require_none("part", part, f"{paths[0]} is not the folder of a run")
    return _labelled(open_part(", ".join(map(str, paths)), paths, reader, remarks.append), remarks)


def of_dataset(part: Part, dataset: str | None) -> Part:
    """The structures of a data set, if structures name theirs; otherwise all, since they may belong to any."""
    if dataset is None or set(part.datasets) == {TAG}:
        return part
    if dataset not in part.datasets:
        raise HuefieldError(f"{part.name} has no structure of data set {dataset!r}, but of {', '.join(part.datasets)}")
    return part.of_dataset(dataset)


def atoms_and_paths(data: AtomsOrPaths) -> tuple[list[Atoms], list[str | Path]]:
    """The atoms and the paths that were given; one of the two lists is empty."""
    items = [data] if isinstance(data, str | Path | Atoms) else list(data)
    if not items:
        raise HuefieldError("there are no structures: the list is empty")
    atoms = [each for each in items if isinstance(each, Atoms)]
    paths = [each for each in items if isinstance(each, str | Path)]
    if len(items) not in (len(atoms), len(paths)):
        kinds = ", ".join(sorted({type(each).__name__ for each in items}))
        raise HuefieldError(f"structures are ase.Atoms or paths of files, but these are {kinds}")
    return atoms, paths


def _atoms_part(atoms: list[Atoms], reader: ReaderConfig | None) -> Part:
    if reader is not None and not isinstance(reader, AseReader):
        raise HuefieldError(f"the reader of atoms in memory has the kind 'ase', but this one is {reader.kind!r}")
    remarks: list[Remark] = []
    block = joined(list(read_atoms(atoms, reader, source=IN_MEMORY, on_remark=remarks.append)), IN_MEMORY)
    return _labelled(Part(IN_MEMORY, block, np.arange(len(block))), remarks)


def _labelled(part: Part, remarks: Sequence[Remark]) -> Part:
    """The part, with the remarks as warnings; an error that lists other names of labels if it has no labels."""
    if not any((block.has_energy | block.has_forces).any() for block in part.blocks()):
        others = "".join(f". {remark.advised(reader_option)}" for remark in remarks if remark.kind == "labels")
        raise HuefieldError(f"no structure of {part.name} has an energy or forces{others}")
    for remark in remarks:
        warn_of(remark)
    return part


def _require_none(name: str, value: object, why: str) -> None:
    if value is not None:
        raise HuefieldError(f"{name} has no effect here: {why}")
