"""Names of labels: a file has one name for its energies, one for its forces and one for its stresses.

The first frame with a label decides; a later frame with the label under another name is an error, since the two names
usually stand for two methods. Names that could be labels, but are not looked for, are listed in a remark.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from ase import Atoms

from huefield.data.readers.base import MixedLabelsError, Remark

LabelQuantity: TypeAlias = Literal["energy", "forces", "stress", "virial"]
NOT_STRESSES = ("uncertainty", "ensemble", "baseline", "std", "var")
"""Parts of names that stress labels do not have."""
SEARCHED_FRAMES = 100
"""Frames that are searched for labels under other names."""
SHOWN_NAMES = 8
ATOM_ARRAYS = frozenset({"numbers", "positions"})
NOT_ENERGIES = frozenset({"charge", "spin", "multiplicity", "frame"})
NOT_FORCES = frozenset({"momenta", "velocities", "initial_magmoms", "magmoms"})
HINTS: dict[LabelQuantity, tuple[str, ...]] = {"energy": ("energ", "ener", "free"), "forces": ("forc", "grad")}
"""Parts of names that labels usually have."""


def frame_entries(atoms: Atoms) -> dict[str, Any]:
    """Entries of ``info``, ``arrays`` and calculator besides the atoms; ``info`` wins, then ``arrays``."""
    results = {} if atoms.calc is None else atoms.calc.results
    entries = {**results, **atoms.arrays, **atoms.info}
    return {name: value for name, value in entries.items() if name not in ATOM_ARRAYS and value is not None}


@dataclass(frozen=True)
class _Choice:
    name: str
    frame: int


class LabelNames:
    """The names of the labels of one file.

    Args:
        source: the file, for messages.
        keys: names to look for by quantity, the first that a frame has wins.
        settings: all settings of the reader, which advice keeps.
    """

    def __init__(
        self, source: str, keys: Mapping[LabelQuantity, tuple[str, ...]], settings: Mapping[str, Any] | None = None
    ) -> None:
        self._source, self._keys, self._settings = source, keys, settings or {}
        self._chosen: dict[LabelQuantity, _Choice] = {}
        self._others: dict[LabelQuantity, dict[str, None]] = {"energy": {}, "forces": {}}
        self._virials: dict[str, None] = {}
        self._searched = 0

    def find(self, atoms: Atoms, frame: int) -> dict[LabelQuantity, Any]:
        """The labels of a frame; raises if an earlier frame has one of them under another name."""
        entries = frame_entries(atoms)
        first = {
            quantity: next((name for name in keys if name in entries), None) for quantity, keys in self._keys.items()
        }
        names = {quantity: name for quantity, name in first.items() if name is not None}
        self._require_one_name(names, frame)
        if frame < SEARCHED_FRAMES and not {"stress", "virial"} & self._chosen.keys():
            self._virials |= dict.fromkeys(_possible_virials(entries))
        if self._searched < SEARCHED_FRAMES and not {"energy", "forces"} <= self._chosen.keys():
            self._searched += 1
            for quantity, name in _possible_labels(entries, len(atoms)):
                self._others[quantity][name] = None
        return {quantity: entries[name] for quantity, name in names.items()}

    def _require_one_name(self, names: Mapping[LabelQuantity, str], frame: int) -> None:
        faults = []
        for quantity, name in names.items():
            first = self._chosen.setdefault(quantity, _Choice(name, frame))
            if first.name != name:
                faults.append(
                    f"the {quantity} label is {first.name!r} in frame {first.frame}, but {name!r} in frame {frame}"
                )
        if faults:
            chosen = {quantity: choice.name for quantity, choice in self._chosen.items()}
            raise MixedLabelsError(f"{self._source}: {'; '.join(faults)}", self._selecting(chosen))

    def _selecting(self, names: Mapping[LabelQuantity, str]) -> dict[str, Any]:
        """Settings of the reader with one name for each of these quantities."""
        return {"kind": "ase", **self._settings, **{f"{quantity}_keys": [name] for quantity, name in names.items()}}

    def virial_remark(self) -> Remark | None:
        """Entries that may be virials or stresses, if no stress is read: their sign, unit and order must be stated."""
        if not self._virials or {"stress", "virial"} & self._chosen.keys() or not self._keys.get("stress"):
            return None
        first = next(iter(self._virials))
        text = (
            f"no stress under {' or '.join(self._keys['stress'])}, but there is {', '.join(self._virials)}, whose "
            f"sign, unit and order are not guessed. If it is a virial in eV, virial_keys: [{first}] with virial_sign: "
            f"-stress*volume reads it; if it is a stress, stress_keys: [{first}] with stress_scale and stress_order"
        )
        return Remark(self._source, "stress", text)

    def remark(self) -> Remark | None:
        """Names under which the frames may hold energies or forces, if they have none under the known names."""
        missing = [q for q, names in self._others.items() if names and self._keys[q] and q not in self._chosen]
        if not missing:
            return None
        likely = {quantity: _likely(quantity, list(self._others[quantity])) for quantity in missing}
        texts = [
            f"no {quantity} under {' or '.join(self._keys[quantity])}, but there is {', '.join(names[:SHOWN_NAMES])}"
            for quantity, names in likely.items()
        ]
        settings = self._selecting({quantity: names[0] for quantity, names in likely.items()})
        return Remark(self._source, "labels", "; ".join(texts), settings=settings)


def _possible_labels(entries: Mapping[str, Any], atoms: int) -> Iterator[tuple[LabelQuantity, str]]:
    for name, value in entries.items():
        array = np.asarray(value)
        if array.dtype.kind not in "iuf" or name.startswith("baseline_"):
            continue
        if array.size == 1 and array.ndim < 2 and name not in NOT_ENERGIES:
            yield "energy", name
        elif array.shape == (atoms, 3) and name not in NOT_FORCES:
            yield "forces", name


def _possible_virials(entries: Mapping[str, Any]) -> Iterator[str]:
    """Entries with a name and a shape that virials and stresses have."""
    for name, value in entries.items():
        word = name.lower()
        if ("virial" in word or "stress" in word) and not any(other in word for other in NOT_STRESSES):
            array = np.asarray(value)
            if array.dtype.kind in "iuf" and array.shape in ((6,), (9,), (3, 3)):
                yield name


def _likely(quantity: LabelQuantity, names: list[str]) -> list[str]:
    """Names that contain the word for the quantity; all names if none does."""
    return [name for name in names if any(hint in name.lower() for hint in HINTS[quantity])] or names
