"""Data sets that come with huefield, made by ``huefield data make``, and their file format.

A file is an npz archive without pickled objects: ``sizes``, ``atomic_numbers`` (uint8), ``positions`` and ``forces``
(float32, Å and eV/Å), ``energies`` (float64, eV), ``groups`` and ``splits`` (indices into ``group_names`` and
``split_names``), ``atom_numbers`` and ``atom_energies`` (isolated atoms, eV), and ``provenance`` (JSON). Labels were
computed at the stored positions in single precision, so that they are exact for the positions that are read.
"""

import json
import re
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from huefield.core.structure import Block, Structure, pack
from huefield.support.errors import HuefieldError
from huefield.support.files import replacing

DEFAULT_LEVEL_OF_THEORY = "gfn2-xtb"


@dataclass(frozen=True, eq=False)
class SplitData:
    """A data set in its splits, with energies of isolated atoms and its provenance."""

    blocks: dict[str, Block]
    atom_energies: dict[int, float]
    provenance: dict[str, Any]

    @classmethod
    def from_structures(
        cls, structures: dict[str, list[Structure]], atom_energies: dict[int, float], provenance: dict[str, Any]
    ) -> "SplitData":
        """Pack the structures of each split."""
        blocks = {name: pack(items, np.arange(len(items)), name) for name, items in structures.items()}
        return cls(blocks, atom_energies, provenance)

    def block(self, split: str) -> Block:
        """The structures of a split."""
        if split not in self.blocks:
            raise HuefieldError(f"there is no split {split!r}; there are {', '.join(self.blocks)}")
        return self.blocks[split]


def write_splits(path: Path, data: SplitData) -> None:
    """Write a data set atomically."""
    blocks = list(data.blocks.values())
    names = [name for block in blocks for name in block.groups]
    group_names, groups = np.unique(np.array(names, np.str_), return_inverse=True)
    arrays = {
        "sizes": np.concatenate([b.sizes for b in blocks]).astype(np.uint16),
        "atomic_numbers": np.concatenate([b.atomic_numbers for b in blocks]),
        "positions": np.concatenate([b.positions for b in blocks]).astype(np.float32),
        "forces": np.concatenate([b.forces for b in blocks]).astype(np.float32),
        "energies": np.concatenate([b.energy for b in blocks]),
        "groups": groups.astype(np.uint16),
        "group_names": group_names,
        "splits": np.repeat(np.arange(len(blocks)), [len(b) for b in blocks]).astype(np.uint8),
        "split_names": np.array(list(data.blocks), np.str_),
        "atom_numbers": np.array(list(data.atom_energies), np.uint8),
        "atom_energies": np.array(list(data.atom_energies.values()), float),
        "provenance": np.frombuffer(json.dumps(data.provenance).encode(), np.uint8),
    }
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_splits(path: Path) -> SplitData:
    """Read a data set that :func:`write_splits` wrote."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            content = {name: archive[name] for name in archive.files}
        splits, groups = content["splits"], content["group_names"][content["groups"]]
        blocks = {
            str(name): _block(content, groups, splits == index, f"{path.name}:{name}")
            for index, name in enumerate(content["split_names"])
        }
        atoms = dict(zip(content["atom_numbers"].tolist(), content["atom_energies"].tolist(), strict=True))
        return SplitData(blocks, atoms, json.loads(content["provenance"].tobytes()))
    except (BadZipFile, KeyError, EOFError, ValueError, IndexError) as error:
        raise HuefieldError(
            f"{path} is not a data set of huefield, or is damaged ({error}); make or copy it again"
        ) from error


def bundled_levels_of_theory() -> tuple[str, ...]:
    """Levels of theory of the data sets that come with huefield."""
    return tuple(name for name in ("gfn2-xtb", "wb97x/6-31g(d)") if _resource(name).is_file())


def load_bundled(split: str, *, level_of_theory: str = DEFAULT_LEVEL_OF_THEORY) -> Block:
    """The structures of one split of a bundled data set: reactive molecules of H, C, N and O."""
    return bundled(level_of_theory=level_of_theory).block(split)


def bundled(*, level_of_theory: str = DEFAULT_LEVEL_OF_THEORY) -> SplitData:
    """A bundled data set with all its splits."""
    if level_of_theory not in bundled_levels_of_theory():
        raise HuefieldError(
            f"no data set at the level of theory {level_of_theory!r} comes with huefield; there are "
            f"{', '.join(bundled_levels_of_theory())}"
        )
    with as_file(_resource(level_of_theory)) as path:
        return read_splits(path)


def _resource(level_of_theory: str) -> Any:
    """The file of a data set: its level of theory with underscores for special characters."""
    return files("huefield.data.bundled") / (re.sub("[^a-z0-9]+", "_", level_of_theory).strip("_") + ".npz")


def _block(content: dict[str, np.ndarray], groups: np.ndarray, keep: np.ndarray, source: str) -> Block:
    """The structures of a mask, from the arrays of a file."""
    sizes = content["sizes"].astype(np.int64)
    atoms, n = np.repeat(keep, sizes), int(keep.sum())
    return Block(
        sizes=sizes[keep],
        atomic_numbers=content["atomic_numbers"][atoms],
        positions=content["positions"][atoms].astype(np.float64),
        cells=np.zeros((n, 3, 3)),
        pbc=np.zeros((n, 3), bool),
        energy=content["energies"][keep],
        has_energy=np.ones(n, bool),
        forces=content["forces"][atoms].astype(np.float64),
        has_forces=np.ones(n, bool),
        stress=np.zeros((n, 3, 3)),
        has_stress=np.zeros(n, bool),
        groups=tuple(groups[keep].tolist()),
        frames=np.arange(n),
        source=source,
    )
