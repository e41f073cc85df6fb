"""Structures with their labels, one at a time or packed, as readers yield and stores hold them.

Units: Å, eV, eV/Å, eV/Å³ (stress as ASE has it: positive under tension, 3 × 3). Cells have lattice vectors as rows; a
structure without a cell has zeros. Labels that were not observed are masked, and their arrays hold zeros.

Shapes: n structures of a block, A atoms of all of them together, N atoms of one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from huefield.support.checks import require_shape

Precision: TypeAlias = Literal["float32", "float64"]
"""Floating-point type of stored or computed numbers."""
MAX_ATOMIC_NUMBER = 118
DEPENDENT = 1e-6
"""Lattice vectors that span less than this share of the product of their lengths are linearly dependent."""


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

    def __post_init__(self) -> None:
        atoms = len(self.atomic_numbers)
        require_shape("positions", self.positions, (atoms, 3))
        require_shape("cell", self.cell, (3, 3))
        require_shape("pbc", self.pbc, (3,))
        if self.forces is not None:
            require_shape("forces", self.forces, (atoms, 3))
        if self.stress is not None:
            require_shape("stress", self.stress, (3, 3))

    def __len__(self) -> int:
        return len(self.atomic_numbers)


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

    def __post_init__(self) -> None:
        n, atoms = len(self.sizes), int(self.sizes.sum())
        shapes = {
            "atomic_numbers": (atoms,), "positions": (atoms, 3), "cells": (n, 3, 3), "pbc": (n, 3), "energy": (n,),
            "has_energy": (n,), "forces": (atoms, 3), "has_forces": (n,), "stress": (n, 3, 3), "has_stress": (n,),
            "groups": (n,), "frames": (n,),
        }  # fmt: skip
        for name, shape in shapes.items():
            require_shape(f"{name} of {self.source}", getattr(self, name), shape)

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
        )  # fmt: skip


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
    )
