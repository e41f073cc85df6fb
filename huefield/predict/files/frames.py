"""Frames of a prediction file: atoms, predictions with their variances, and reference values."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Shaped

from huefield.core.structure import Structure
from huefield.core.tails import FEWEST_DOF
from huefield.data.readers.ase_files import stress_tensor
from huefield.data.readers.base import Fault, naming, require_elements
from huefield.data.readers.images import Image, ase_format_of, explained, images_in
from huefield.data.readers.labels import frame_entries
from huefield.predict.files.keys import ALEATORIC, EPISTEMIC, JOINT_NLL, MODEL, ChosenKeys, PredictionKeys
from huefield.predict.marginals import Marginals
from huefield.support.errors import HuefieldError

FRAME = "frame"
"""Entry of ``info`` in files that huefield wrote: the number of the structure in its source, from 0."""


class BadValueError(HuefieldError):
    """A frame cannot be used; frames are counted by the message."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Atoms of a frame with its entries of known names."""

    number: int
    """Number in the file, from 0."""
    atoms: Structure
    values: dict[str, Shaped[np.ndarray, "..."]]

    def predicted(self, names: ChosenKeys) -> Marginals | None:
        """The prediction of a quantity; None if the frame has none."""
        mean = self._numbers(names.mean, names)
        if mean is None:
            return None
        _require(np.isfinite(mean), f"{names.mean} is NaN or infinite")
        if names.uncertainty is None:
            return Marginals(mean, np.zeros(mean.shape))
        variance, dof = self._variance(names.uncertainty, names), self._dof(names.dof)
        if variance is None:
            raise BadValueError(f"{names.mean} has no uncertainty ({names.uncertainty})")
        if names.deviation is None:
            return Marginals(mean, variance, dof=dof)
        aleatoric, epistemic = (self._variance(names.deviation + part, names) for part in (ALEATORIC, EPISTEMIC))
        return Marginals(mean, variance, aleatoric, epistemic, dof=dof)

    def labelled(self, chosen: tuple[ChosenKeys, ChosenKeys], keys: PredictionKeys) -> Structure:
        """The structure with its reference values; NaN counts as not observed."""
        values = (self._numbers(names.reference, names) for names in chosen)
        energy, forces = (None if v is None or not np.isfinite(v).all() else v for v in values)
        return replace(
            self.atoms,
            energy=None if energy is None else float(energy[0]),
            forces=forces,
            stress=self._stress(keys),
            group=next((str(self.values[key]) for key in keys.group if key in self.values), ""),
        )

    @property
    def joint_nll(self) -> float | None:
        """Joint negative log-likelihood, if huefield wrote the file."""
        value = self.values.get(JOINT_NLL)
        return float(value) if value is not None and value.size == 1 and value.dtype.kind in "iuf" else None

    @property
    def source_number(self) -> int | None:
        """Number of the structure in its source, if the file states it."""
        value = self.values.get(FRAME)
        whole = value is not None and value.size == 1 and value.dtype.kind in "iu"
        return int(value) if value is not None and whole and value >= 0 else None

    def _stress(self, keys: PredictionKeys) -> Float[np.ndarray, "3 3"] | None:
        found = next((self.values[key] for key in keys.reference_stress if key in self.values), None)
        try:
            return None if found is None else stress_tensor(found, "ase")
        except ValueError as error:
            raise BadValueError(str(error)) from error

    def _variance(self, key: str, names: ChosenKeys) -> Float[np.ndarray, "*n"] | None:
        value = self._numbers(key, names)
        if value is None:
            return None
        _require(np.isfinite(value), f"{key} is NaN or infinite")
        _require(value >= 0, f"{key} is negative")
        return value if key == names.variance else value**2

    def _dof(self, key: str | None) -> float | None:
        """Degrees of freedom of the errors; None for a normal distribution."""
        if key is None or key not in self.values:
            return None
        value = self.values[key]
        if value.size != 1 or value.dtype.kind not in "iuf":
            raise BadValueError(f"{key} is not one number")
        number = value.astype(float).reshape(1)
        _require(np.isfinite(number) & (number >= FEWEST_DOF), f"{key} is not a number of at least {FEWEST_DOF}")
        return float(number[0])

    def _numbers(self, key: str | None, names: ChosenKeys) -> Float[np.ndarray, "*n"] | None:
        """The numbers under a name; raises if they do not have the shape of the quantity."""
        if key is None or key not in self.values:
            return None
        value = self.values[key]
        if value.dtype.kind not in "iuf":
            raise BadValueError(f"{key} is not a number")
        if names.quantity == "energy" and value.size != 1:
            raise BadValueError(f"{key} is not one number for a structure, but several")
        if names.quantity == "forces" and value.shape != (len(self.atoms), 3):
            raise BadValueError(f"{key} has another shape than three numbers for each atom")
        return value.astype(float).reshape(-1, 3) if names.quantity == "forces" else value.astype(float).reshape(1)


@dataclass(frozen=True, eq=False)
class Contents:
    """All frames of a file."""

    frames: list[Frame]
    faults: Counter[str]
    """Number of frames that cannot be read, by the reason."""
    names: frozenset[str]
    """Names of all entries of all frames, apart from the atoms."""

    @property
    def length(self) -> int:
        """Number of frames of the file, readable or not."""
        return len(self.frames) + self.faults.total()

    @property
    def model(self) -> str | None:
        """The name of the model, if all frames state the same."""
        stated = {str(frame.values[MODEL]) if MODEL in frame.values else None for frame in self.frames}
        return stated.pop() if len(stated) == 1 else None


def read_contents(path: Path, keys: PredictionKeys) -> Contents:
    """Read the frames of a file with their entries of these names."""
    frames: list[Frame] = []
    faults: Counter[str] = Counter()
    names: set[str] = set()
    wanted = keys.all_names() | {FRAME}
    with naming(path):
        for image in images_in(path, ase_format_of(path)):
            frame = image if isinstance(image, Fault) else _frame(image, wanted, names)
            if isinstance(frame, Fault):
                faults[f"the frame cannot be read: {frame.reason}"] += 1
            else:
                frames.append(frame)
    if not frames:
        raise HuefieldError("; ".join([f"{path} has no structures that can be read", *faults]))
    return Contents(frames, faults, frozenset(names))


def _frame(image: Image, wanted: frozenset[str], names: set[str]) -> Frame | Fault:
    """A frame; its names are added to ``names``."""
    try:
        atoms = image.parse()
        require_elements(atoms.numbers)
    except Exception as error:  # ASE raises anything on damaged text
        return Fault(image.source, image.frame, explained(error))
    entries = frame_entries(atoms)
    names.update(entries)
    cell, pbc = np.array(atoms.cell, float), np.array(atoms.pbc, bool)
    structure = Structure(atoms.numbers.astype(np.uint8), atoms.positions, cell, pbc)
    return Frame(image.frame, structure, {key: np.asarray(entries[key]) for key in wanted & entries.keys()})


def _require(good: Bool[np.ndarray, "*n"], reason: str) -> None:
    if not good.all():
        raise BadValueError(reason)
