"""Reference values from another file than the predictions: the same structures, in the same order."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from huefield.core.structure import Block, joined
from huefield.data.convert import read_any
from huefield.data.readers.ase_files import AseReader
from huefield.data.readers.base import Fault, Remark
from huefield.data.readers.detect import detect, read_blocks
from huefield.data.store.store import is_store
from huefield.predict.files.keys import PredictionKeys
from huefield.support.errors import HuefieldError

SAME_ANGSTROM = 0.01
"""Largest distance of an atom from its reference position: files are written with few decimals."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Structures with reference values."""

    structures: Block
    numbers: Int[np.ndarray, " n"]
    """Number of each structure in its file, increasing."""
    length: int
    """Number of structures of the file, including those that cannot be used."""

    def has(self, numbers: Int[np.ndarray, " m"]) -> Bool[np.ndarray, " m"]:
        """Which of these numbers exist."""
        return np.isin(numbers, self.numbers)

    def at(self, numbers: Int[np.ndarray, " m"]) -> Block:
        """Structures by their numbers, which must all exist."""
        return self.structures.block(np.searchsorted(self.numbers, numbers))


def read_reference(path: Path, keys: PredictionKeys) -> Reference:
    """All structures of a store or of a file that readers know, with energies and forces.

    Bad frames are left out of files that ASE reads, in which frames have numbers; in other files they are errors.
    """
    reader = None if is_store(path) else detect(path)
    faults: list[Fault] = []
    remarks: list[Remark] = []
    if isinstance(reader, AseReader):
        names = {"energy_keys": keys.reference_energy, "forces_keys": keys.reference_forces}
        chosen = reader.model_copy(update=names)
        blocks = list(read_blocks(path, chosen, on_fault=faults.append, on_remark=remarks.append))
    else:
        blocks = list(read_any(path, reader))
    if not blocks:
        raise HuefieldError(f"{path} has no structures that can be used as a reference: {faults[0]}")
    structures = joined(blocks, str(path))
    if not (structures.has_energy.any() or structures.has_forces.any()):
        others = "; ".join(remark.text for remark in remarks if remark.kind == "labels")
        wanted = others or f"none of its structures has {', '.join((*keys.reference_energy, *keys.reference_forces))}"
        raise HuefieldError(
            f"{path} has no reference values: {wanted}; name them, for instance "
            """--keys '{"reference_energy": "dft_energy"}'"""
        )
    numbers = structures.frames if isinstance(reader, AseReader) else np.arange(len(structures))
    return Reference(structures, numbers, len(structures) + len(faults))


def with_values_of(reference: Block, block: Block) -> Block:
    """The block with the values of the reference; raises if atoms differ, and names the first such structure."""
    _refuse(block, reference, block.sizes != reference.sizes, "another number of atoms")
    owner = block.owners
    others = np.zeros(len(block), bool)
    others[owner[block.atomic_numbers != reference.atomic_numbers]] = True
    _refuse(block, reference, others, "other elements, or the same in another order")
    moved = np.array([_largest_shift(block, reference, i) > SAME_ANGSTROM for i in range(len(block))], bool)
    _refuse(block, reference, moved, f"atoms that are more than {SAME_ANGSTROM} Å from there")
    return replace(
        block,
        energy=reference.energy,
        has_energy=reference.has_energy,
        forces=reference.forces,
        has_forces=reference.has_forces,
        stress=reference.stress,
        has_stress=reference.has_stress,
        groups=block.groups if any(block.groups) else reference.groups,
    )


def _refuse(block: Block, reference: Block, bad: Bool[np.ndarray, " n"], what: str) -> None:
    if not bad.any():
        return
    first = int(np.flatnonzero(bad)[0])
    sizes = f"{block.sizes[first]} and {reference.sizes[first]} atoms"
    raise HuefieldError(
        f"{block.source}, frame {block.frames[first]}: it has {what} than its reference in {reference.source} "
        f"({sizes}; {int(bad.sum())} of {len(block)} structures): the reference must be the same structures "
        "in the same order"
    )


def _largest_shift(block: Block, reference: Block, index: int) -> float:
    """Largest distance of an atom from its reference [Å]. Molecules may be shifted, periodic atoms wrapped."""
    atoms = slice(block.starts[index], block.starts[index + 1])
    shift: Float[np.ndarray, "N 3"] = block.positions[atoms] - reference.positions[atoms]
    pbc = reference.pbc[index]
    if not pbc.any():
        return float(np.abs(shift - shift.mean(axis=0)).max(initial=0.0))
    cell = np.where(pbc[:, None], reference.cells[index], 0.0)
    turns = np.round(shift @ np.linalg.pinv(cell)) * pbc
    return float(np.abs(shift - turns @ cell).max(initial=0.0))
