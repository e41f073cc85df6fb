"""Transition1x in its official HDF5 layout: ``/data/<formula>/<reaction>``, and splits as links to formulas.

A reaction holds all frames of its nudged-elastic-band calculation (the path), and the converged reactant, transition
state and product once more. Energies are in eV, positions in Å, forces in eV/Å.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
from pydantic import Field

from huefield.data.readers.base import (
    Conformations,
    Frames,
    Notify,
    UnreadableFileError,
    ignore,
    naming,
    numbers_in,
    row_slices,
)
from huefield.support.config import FrozenConfig

PARTS = ("train", "val", "test")
ENERGY, FORCES = "wB97x_6-31G(d).energy", "wB97x_6-31G(d).forces"


class Transition1xReader(FrozenConfig):
    """Reads Transition1x; the group of a structure is its formula and reaction, ``C3H8O/rxn0926``."""

    kind: Literal["transition1x"] = "transition1x"
    split: Literal["train", "val", "test", "all"] = Field("all", description="official split by formula")
    only_final: bool = Field(False, description="reactant, transition state and product only, without the path")
    end_points: Literal["keep", "drop"] = Field(
        "keep",
        description="keep: reactant, product, then the path, as in the official loader, so that both end points come "
        "twice; drop: the path only",
    )

    def read(self, path: Path, *, notify: Notify = ignore) -> Frames:
        """Blocks of conformations of one reaction, in the order of the file."""
        with naming(path), h5py.File(path, "r") as file:
            for formula, reaction, table in self._reactions(path, file):
                for place in self._places():
                    source = f"{path}:/data/{formula}/{reaction}{place}"
                    for part in _parts(source, _below(table, place, source), f"{formula}/{reaction}"):
                        yield from part.frames()

    def official_parts(self, path: Path) -> dict[str, str]:
        """The official part (``train``, ``val`` or ``test``) of each formula."""
        with naming(path), h5py.File(path, "r") as file:
            return {
                formula: part for part in PARTS if part in file for formula in _group(file[part], f"{path}:/{part}")
            }

    def _places(self) -> tuple[str, ...]:
        if self.only_final:
            return ("/reactant", "/transition_state", "/product")
        return ("",) if self.end_points == "drop" else ("/reactant", "/product", "")

    def _reactions(self, path: Path, file: h5py.File) -> Iterator[tuple[str, str, h5py.Group]]:
        top = "data" if self.split == "all" else self.split
        if top not in file:
            found = ", ".join(sorted(file)) or "nothing"
            raise UnreadableFileError(f"{path} has no /{top}, which split={self.split!r} needs; it has {found}")
        for formula in _group(file[top], f"{path}:/{top}"):
            source = f"{path}:/{top}/{formula}"
            found = file[top].get(formula)
            if found is None:
                target = getattr(file[top].get(formula, getlink=True), "path", "nowhere")
                raise UnreadableFileError(f"{source} is a link to {target}, which is not in the file")
            for reaction, table in _group(found, source).items():
                yield formula, reaction, _group(table, f"{source}/{reaction}")


def _group(found: h5py.Group | h5py.Dataset, source: str) -> h5py.Group:
    if not isinstance(found, h5py.Group):
        raise UnreadableFileError(f"{source} is not a group: the layout of the file is not that of Transition1x")
    return found


def _below(table: h5py.Group, place: str, source: str) -> h5py.Group:
    """The subgroup of a reaction that ``place`` names; the reaction itself if ``place`` is empty."""
    name = place.strip("/")
    if name and name not in table:
        raise UnreadableFileError(f"{source} is not in the file; beside it are {', '.join(sorted(table)) or 'nothing'}")
    return _group(table[name], source) if name else table


def _parts(source: str, table: h5py.Group, group: str) -> Iterator[Conformations]:
    atomic_numbers = numbers_in(table, "atomic_numbers", source)[()]
    positions, energy, forces = (numbers_in(table, key, source) for key in ("positions", ENERGY, FORCES))
    for rows in row_slices(len(positions)):
        yield Conformations(
            source=source,
            atomic_numbers=atomic_numbers,
            positions=positions[rows].astype(float),
            energy=energy[rows].astype(float),
            forces=forces[rows].astype(float),
            rows=np.arange(rows.start, rows.stop),
            group=group,
        )
