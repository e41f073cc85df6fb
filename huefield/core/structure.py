"""Structures with their labels, one at a time or packed, as readers yield and stores hold them.

Units: Å, eV, eV/Å, eV/Å³ (stress as ASE has it: positive under tension, 3 × 3). Cells have lattice vectors as rows; a
structure without a cell has zeros. Labels that were not observed are masked, and their arrays hold zeros.

A structure may carry the results of a baseline (:mod:`huefield.baselines`), which a model corrects.

Shapes: n structures of a block, A atoms of all of them together, N atoms of one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from huefield.support.checks import require_shape

Precision: TypeAlias = Literal["float32", "float64"]
"""Floating-point type of stored or computed numbers."""
MAX_ATOMIC_NUMBER = 118
TAG = "all"
"""The data set of all structures where no other is named."""
DEPENDENT = 1e-6
"""Lattice vectors that span less than this share of the product of their lengths are linearly dependent."""


@dataclass(frozen=True, eq=False)
class BaselineResult:
    """Energy, forces and stress of one structure by a baseline: a calculator whose errors a model corrects."""

    energy: float
    forces: Float[np.ndarray, "N 3"]
    stress: Float[np.ndarray, "3 3"] | None = None


@dataclass(frozen=True, eq=False)
class Structure:
    """Atoms with their labels."""

    atomic_numbers: UInt8[np.ndarray, " N"]
    positions: Float[np.ndarray, "N 3"]
    cell: Float[np.ndarray, "3 3"] = field(default_factory=lambda: np.zeros((3, 3)))
    pbc: Bool[np.ndarray, " 3"] = field(default_factory=lambda: np.zeros(3, bool))
    energy: float | None = None
    forces: Float[np.ndarray, "N 3"] | None = None
    stress: Float[np.ndarray, "3 3"] | None = None
    group: str = ""
    """Structures of one group stay together in splits: a reaction, a trajectory, a formula; empty if unknown."""
    tag: str = TAG
    """The data set that it belongs to, which decides its atomic reference energies."""
    baseline: BaselineResult | None = None

    def __post_init__(self) -> None:
        atoms = len(self.atomic_numbers)
        require_shape("positions", self.positions, (atoms, 3))
        require_shape("cell", self.cell, (3, 3))
        require_shape("pbc", self.pbc, (3,))
        if self.forces is not None:
            require_shape("forces", self.forces, (atoms, 3))
        if self.stress is not None:
            require_shape("stress", self.stress, (3, 3))
        if self.baseline is not None:
            require_shape("forces of the baseline", self.baseline.forces, (atoms, 3))

    def __len__(self) -> int:
        return len(self.atomic_numbers)


@dataclass(frozen=True, eq=False)
class BaselineColumns:
    """Results of a baseline for the structures of a block; entries that are not known hold zeros."""

    energy: Float[np.ndarray, " n"]
    forces: Float[np.ndarray, "A 3"]
    stress: Float[np.ndarray, "n 3 3"]
    known: Bool[np.ndarray, " n"]
    """Structures whose energy and forces are known."""
    has_stress: Bool[np.ndarray, " n"]

    @classmethod
    def unknown(cls, structures: int, atoms: int) -> "BaselineColumns":
        """Columns without any result."""
        nothing = np.zeros(structures, bool)
        return cls(np.zeros(structures), np.zeros((atoms, 3)), np.zeros((structures, 3, 3)), nothing, nothing)

    @classmethod
    def of(cls, results: Sequence[BaselineResult | None], sizes: Sequence[int]) -> "BaselineColumns":
        """Columns of results, None where there is none."""
        columns = cls.unknown(len(sizes), int(sum(sizes)))
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        for index, result in enumerate(results):
            if result is None:
                continue
            columns.energy[index], columns.known[index] = result.energy, True
            columns.forces[starts[index] : starts[index + 1]] = result.forces
            if result.stress is not None:
                columns.stress[index] = result.stress
        stressed = [result is not None and result.stress is not None for result in results]
        return replace(columns, has_stress=np.array(stressed, bool))

    @classmethod
    def joined(cls, parts: "Sequence[BaselineColumns]") -> "BaselineColumns":
        """The rows of some columns, one after the other."""
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def rows(self, structures: Int[np.ndarray, " m"], atoms: Int[np.ndarray, " k"]) -> "BaselineColumns":
        """Some structures and their atoms."""
        stress, known, has_stress = (each[structures] for each in (self.stress, self.known, self.has_stress))
        return BaselineColumns(self.energy[structures], self.forces[atoms], stress, known, has_stress)

    def result(self, index: int, atoms: slice) -> BaselineResult | None:
        """The result for one structure."""
        if not self.known[index]:
            return None
        stress = self.stress[index] if self.has_stress[index] else None
        return BaselineResult(float(self.energy[index]), self.forces[atoms], stress)


@dataclass(frozen=True, eq=False)
class Block:
    """Many structures of different sizes, packed: the atoms of all structures in one array."""

    sizes: Int[np.ndarray, " n"]
    atomic_numbers: UInt8[np.ndarray, " A"]
    positions: Float[np.ndarray, "A 3"]
    cells: Float[np.ndarray, "n 3 3"]
    pbc: Bool[np.ndarray, "n 3"]
    energy: Float[np.ndarray, " n"]
    has_energy: Bool[np.ndarray, " n"]
    forces: Float[np.ndarray, "A 3"]
    has_forces: Bool[np.ndarray, " n"]
    stress: Float[np.ndarray, "n 3 3"]
    has_stress: Bool[np.ndarray, " n"]
    groups: tuple[str, ...]
    """The group of each structure."""
    frames: Int[np.ndarray, " n"]
    """The number of each structure in its source, from 0, for messages."""
    source: str
    """The file, with the table in it if it has several (``file.h5:/data/C2H6O``)."""
    tags: tuple[str, ...] = ()
    """The data set of each structure; given as an empty tuple, all belong to ``TAG``."""
    baseline: BaselineColumns | None = None
    """Results of a baseline; None if no structure has one."""

    def __post_init__(self) -> None:
        n, atoms = len(self.sizes), int(self.sizes.sum())
        if not self.tags:
            object.__setattr__(self, "tags", (TAG,) * n)
        shapes = {
            "atomic_numbers": (atoms,), "positions": (atoms, 3), "cells": (n, 3, 3), "pbc": (n, 3), "energy": (n,),
            "has_energy": (n,), "forces": (atoms, 3), "has_forces": (n,), "stress": (n, 3, 3), "has_stress": (n,),
            "groups": (n,), "frames": (n,), "tags": (n,),
        }  # fmt: skip
        for name, shape in shapes.items():
            require_shape(f"{name} of {self.source}", getattr(self, name), shape)
        if self.baseline is not None:
            require_shape(f"baseline energies of {self.source}", self.baseline.energy, (n,))
            require_shape(f"baseline forces of {self.source}", self.baseline.forces, (atoms, 3))

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def starts(self) -> Int[np.ndarray, " n_plus_1"]:
        """Row of the first atom of each structure, followed by the number of all atoms."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @cached_property
    def owners(self) -> Int[np.ndarray, " A"]:
        """The number of the structure that each atom belongs to."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def __getitem__(self, index: int) -> Structure:
        if not 0 <= index < len(self):
            raise IndexError(f"structure {index} is out of range: the block of {self.source} has {len(self)}")
        starts = self.starts
        atoms = slice(starts[index], starts[index + 1])
        return Structure(
            self.atomic_numbers[atoms],
            self.positions[atoms],
            self.cells[index],
            self.pbc[index],
            float(self.energy[index]) if self.has_energy[index] else None,
            self.forces[atoms] if self.has_forces[index] else None,
            self.stress[index] if self.has_stress[index] else None,
            self.groups[index],
            self.tags[index],
            None if self.baseline is None else self.baseline.result(index, atoms),
        )

    def __iter__(self) -> Iterator[Structure]:
        return (self[index] for index in range(len(self)))

    def select(self, keep: Bool[np.ndarray, " n"]) -> "Block":
        """The structures that the mask keeps."""
        return self.block(np.flatnonzero(keep))

    def block(self, indices: Int[np.ndarray, " m"]) -> "Block":
        """The structures with these numbers, in this order."""
        atoms = row_ranges(self.starts[indices], self.starts[indices] + self.sizes[indices])
        return Block(
            self.sizes[indices], self.atomic_numbers[atoms], self.positions[atoms], self.cells[indices],
            self.pbc[indices], self.energy[indices], self.has_energy[indices], self.forces[atoms],
            self.has_forces[indices], self.stress[indices], self.has_stress[indices],
            tuple(self.groups[i] for i in indices), self.frames[indices], self.source,
            tuple(self.tags[i] for i in indices),
            None if self.baseline is None else self.baseline.rows(indices, atoms),
        )  # fmt: skip

    def with_baseline(self, results: Sequence[BaselineResult | None]) -> "Block":
        """The structures with results of a baseline, None where there is none."""
        return replace(self, baseline=BaselineColumns.of(results, self.sizes.tolist()))

    def relative_to_baseline(self) -> "Block":
        """The structures with labels less the results of the baseline, which a correction of it learns.

        A stress counts only where the baseline has one, too.
        """
        if self.baseline is None or not self.baseline.known.all():
            raise ValueError("labels can be relative to a baseline only if its result is known for every structure")
        base = self.baseline
        return replace(
            self,
            energy=np.where(self.has_energy, self.energy - base.energy, 0.0),
            forces=np.where(self.has_forces[self.owners, None], self.forces - base.forces, 0.0),
            stress=np.where(self.has_stress[:, None, None], self.stress - base.stress, 0.0),
            has_stress=self.has_stress & base.has_stress,
            baseline=None,
        )


def cell_volumes(cells: Float[np.ndarray, "*n 3 3"]) -> Float[np.ndarray, "*n"]:
    """Volume of each cell [Å³]; zero for cells whose lattice vectors are missing or linearly dependent."""
    volumes = np.abs(np.linalg.det(cells))
    return np.where(volumes > DEPENDENT * np.linalg.norm(cells, axis=-1).prod(-1), volumes, 0.0)


def stress_volumes(cells: Float[np.ndarray, "*n 3 3"], pbc: Bool[np.ndarray, "*n 3"]) -> Float[np.ndarray, "*n"]:
    """Volume that a stress refers to [Å³]; zero for structures that have no stress.

    A structure has a stress if it is periodic in some direction and its cell has a volume. A molecule in a box has
    none: without periodic directions its box has no meaning.
    """
    return np.where(np.asarray(pbc).any(-1), cell_volumes(cells), 0.0)


def strain_labels(block: Block) -> tuple[Float[np.ndarray, "n 3 3"], Bool[np.ndarray, " n"]]:
    """Strain derivatives ∂E/∂ε [eV] of the structures, stress times volume, and the structures that have one.

    The symmetric part of the stress counts: a rotation does not change an energy.
    """
    volumes = stress_volumes(block.cells, block.pbc)
    known = block.has_stress & (volumes > 0)
    symmetric = 0.5 * (block.stress + np.swapaxes(block.stress, 1, 2))
    return np.where(known[:, None, None], symmetric * volumes[:, None, None], 0.0), known


def row_ranges(first: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
    """The numbers from each ``first`` to before its ``stop``, one range after the other."""
    sizes = stop - first
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - sizes), sizes)


def joined(blocks: Sequence[Block], source: str) -> Block:
    """All structures of some blocks, one block after the other."""
    return Block(
        **{name: np.concatenate([getattr(b, name) for b in blocks]) for name in _ARRAYS},
        groups=tuple(group for block in blocks for group in block.groups),
        source=source,
        tags=tuple(tag for block in blocks for tag in block.tags),
        baseline=_joined_baselines(blocks),
    )


def _joined_baselines(blocks: Sequence[Block]) -> BaselineColumns | None:
    """The baselines of all blocks; None if no block has one."""
    if all(block.baseline is None for block in blocks):
        return None
    return BaselineColumns.joined(
        [block.baseline or BaselineColumns.unknown(len(block), len(block.positions)) for block in blocks]
    )


_ARRAYS = (
    "sizes", "atomic_numbers", "positions", "cells", "pbc", "energy", "has_energy", "forces", "has_forces", "stress",
    "has_stress", "frames",
)  # fmt: skip


def pack(structures: list[Structure], frames: Int[np.ndarray, " n"], source: str) -> Block:
    """Structures one after the other in a block."""

    def labels(name: str, missing: np.ndarray) -> list[np.ndarray]:
        values = (getattr(s, name) for s in structures)
        return [missing[: len(s)] if v is None else v for v, s in zip(values, structures, strict=True)]

    longest = max((len(s) for s in structures), default=0)
    nothing = np.zeros((longest, 3))
    return Block(
        sizes=np.array([len(s) for s in structures], np.int64),
        atomic_numbers=np.concatenate([np.zeros(0, np.uint8), *(s.atomic_numbers for s in structures)]),
        positions=np.concatenate([np.zeros((0, 3)), *(s.positions for s in structures)]),
        cells=np.array([s.cell for s in structures]).reshape(-1, 3, 3),
        pbc=np.array([s.pbc for s in structures], bool).reshape(-1, 3),
        energy=np.array([0.0 if s.energy is None else s.energy for s in structures], float),
        has_energy=np.array([s.energy is not None for s in structures], bool),
        forces=np.concatenate([np.zeros((0, 3)), *labels("forces", nothing)]),
        has_forces=np.array([s.forces is not None for s in structures], bool),
        stress=np.array([np.zeros((3, 3)) if s.stress is None else s.stress for s in structures]).reshape(-1, 3, 3),
        has_stress=np.array([s.stress is not None for s in structures], bool),
        groups=tuple(s.group for s in structures),
        frames=frames,
        source=source,
        tags=tuple(s.tag for s in structures),
        baseline=None if all(s.baseline is None for s in structures) else _packed_baselines(structures),
    )


def _packed_baselines(structures: Sequence[Structure]) -> BaselineColumns:
    return BaselineColumns.of([s.baseline for s in structures], [len(s) for s in structures])
