"""ANI-1x in its official HDF5 layout: one group for each formula, NaN for missing values, no split.

Energies are in Hartree, forces in Hartree/Å, positions in Å.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
from pydantic import Field

from huefield.core.units import HARTREE_EV
from huefield.data.readers.base import Conformations, Frames, LeftOut, Notify, ignore, naming, numbers_in, row_slices
from huefield.support.config import FrozenConfig


class Ani1xReader(FrozenConfig):
    """Reads ANI-1x; the group of a structure is its formula.

    Conformations without a requested label (NaN) are left out and reported.
    """

    kind: Literal["ani1x"] = "ani1x"
    energy_key: str = Field("wb97x_dz.energy", description="data set with energies in Hartree")
    forces_key: str | None = Field(
        "wb97x_dz.forces", description="data set with forces in Hartree/Å; null for no forces"
    )

    def read(self, path: Path, *, notify: Notify = ignore) -> Frames:
        """Blocks of conformations of one formula, in the order of the file."""
        with naming(path), h5py.File(path, "r") as file:
            for formula, group in file.items():
                for part in self._parts(f"{path}:/{formula}", formula, group):
                    yield from _without_missing(part, notify).frames()

    def _parts(self, source: str, formula: str, group: h5py.Group | h5py.Dataset) -> Iterator[Conformations]:
        atomic_numbers = numbers_in(group, "atomic_numbers", source)[()]
        positions = numbers_in(group, "coordinates", source)
        energy = numbers_in(group, self.energy_key, source)
        forces = None if self.forces_key is None else numbers_in(group, self.forces_key, source)
        for rows in row_slices(len(positions)):
            yield Conformations(
                source=source,
                atomic_numbers=atomic_numbers,
                positions=positions[rows].astype(float),
                energy=energy[rows].astype(float) * HARTREE_EV,
                forces=None if forces is None else forces[rows].astype(float) * HARTREE_EV,
                rows=np.arange(rows.start, rows.stop),
                group=formula,
            )


def _without_missing(part: Conformations, notify: Notify) -> Conformations:
    """The conformations that have all labels; arrays of different lengths are passed on, to become faults."""
    labels = [part.energy] if part.forces is None else [part.energy, part.forces]
    n = len(part.rows)
    if any(len(array) != n for array in (part.positions, *labels)):
        return part
    missing = np.any([np.isnan(array).reshape(n, -1).any(1) for array in labels], axis=0)
    if not missing.any():
        return part
    notify(LeftOut(part.source, int(missing.sum()), "a requested label is missing (NaN)"))
    keep = ~missing
    forces = None if part.forces is None else part.forces[keep]
    return Conformations(
        part.source, part.atomic_numbers, part.positions[keep], part.energy[keep], forces, part.rows[keep], part.group
    )
