"""Any file that ASE reads, in ASE's conventions: eV, Å, stress positive under tension."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from ase import Atoms
from pydantic import Field, model_validator

from huefield.core.structure import BaselineResult, Structure, pack, stress_volumes
from huefield.data.readers.base import (
    EnergyUnit,
    Fault,
    Frames,
    LengthUnit,
    Notify,
    Remark,
    Units,
    UnknownUnitsError,
    UnreadableFileError,
    ignore,
    naming,
    require_elements,
)
from huefield.data.readers.electrons import ignored_by_models, ignored_text
from huefield.data.readers.images import Image, ase_format_of, explained, images_in, units_of_database
from huefield.data.readers.labels import LabelNames, LabelQuantity, frame_entries
from huefield.support.checks import require_shape
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

FRAMES_PER_BLOCK = 256
BASELINE_ENERGY, BASELINE_FORCES, BASELINE_STRESS = "baseline_energy", "baseline_forces", "baseline_stress"
"""Names of the results of a baseline in info and arrays."""
GROUP_KEYS = ("group", "config_type")
VOIGT = {
    "ase": np.array([[0, 5, 4], [5, 1, 3], [4, 3, 2]]),
    "vasp": np.array([[0, 3, 5], [3, 1, 4], [5, 4, 2]]),
}
"""Index of each element of a 3 × 3 stress among its six components."""


class AseReader(FrozenConfig):
    """Reads files through ASE. A label is the first of its keys that a frame has in info, arrays or calculator.

    All frames of a file must have a label under the same name, or not at all.
    """

    kind: Literal["ase"] = "ase"
    ase_format: str | None = Field(None, description="ASE's name of the file format; null to let ASE find out")
    energy_keys: tuple[str, ...] = Field(
        ("REF_energy", "energy"), description="names of the energy, the first wins; free_energy is VASP's with forces"
    )
    forces_keys: tuple[str, ...] = Field(("REF_forces", "forces"), description="names of the forces, the first wins")
    stress_keys: tuple[str, ...] = Field(("REF_stress", "stress"), description="names of the stress, the first wins")
    stress_order: Literal["ase", "vasp"] = Field(
        "ase",
        description="order of six components of a stress or virial: ase has xx yy zz yz xz xy, vasp has xx yy zz xy yz "
        "xz",
    )
    stress_scale: float = Field(
        1.0, description="factor of the stress besides its units, for instance -1/1602.1766 for VASP's kbar"
    )
    group_key: str | tuple[str, ...] | None = Field(
        GROUP_KEYS,
        description="entry of info that is the group: one that every frame must have, or a list of which the first "
        "that a frame has counts; null for no groups",
    )
    energy_unit: EnergyUnit | None = Field(None, description="unit of energies; null for ASE's, eV")
    length_unit: LengthUnit | None = Field(None, description="unit of lengths; null for ASE's, Å")
    virial_keys: tuple[str, ...] = Field(
        (), description="names of the virial, in the unit of energies, which is converted to a stress; the first wins"
    )
    virial_sign: Literal["-stress*volume", "stress*volume"] | None = Field(
        None, description="what the virial is; -stress*volume in extended xyz files of QUIP, GAP and MACE"
    )

    @model_validator(mode="after")
    def _virials_are_stated(self) -> "AseReader":
        if self.virial_keys and self.virial_sign is None:
            raise HuefieldError(
                f"the sign of the virial {self.virial_keys[0]!r} must be stated: virial_sign is '-stress*volume' in "
                "extended xyz files of QUIP, GAP and MACE, or 'stress*volume'"
            )
        if self.virial_sign is not None and not self.virial_keys:
            raise HuefieldError(
                "virial_sign is given, but no virial_keys: name the virial, as in virial_keys: [virial]"
            )
        return self

    def read(self, path: Path, *, notify: Notify = ignore) -> Frames:
        """Blocks of consecutive frames."""
        with naming(path):
            format_name = ase_format_of(path) if self.ase_format is None else self.ase_format
            if format_name == "db" and self.energy_unit is None:
                self._require_ev(path)
            images = images_in(path, format_name)
            yield from self.frames(images, str(path), notify=notify)

    def _require_ev(self, path: Path) -> None:
        """Raise if a database of SchNetPack says that its energies are not in eV."""
        units = units_of_database(path)
        stated = next((units[name] for name in self.energy_keys if name in units), "eV")
        if stated.lower() != "ev":
            example = json.dumps({"kind": "ase", "energy_unit": "kcal/mol"})
            raise UnknownUnitsError(
                f"{path}: its metadata say that energies are in {stated}, but the reader takes them as eV: state it, "
                f"as in --reader '{example}'; there are {', '.join(get_args(EnergyUnit))}"
            )

    def frames(self, images: Iterable[Image | Fault], source: str, *, notify: Notify = ignore) -> Frames:
        """Blocks of the given frames, which all have their labels under the same names."""
        names, told = self._names(source), False

        def structures() -> Iterator[_Numbered | Fault]:
            nonlocal told
            for image in images:
                if isinstance(image, Fault):
                    yield image
                    continue
                try:
                    atoms = image.parse()
                    if not told and (ignored := list(ignored_by_models(atoms))):
                        told = True
                        notify(Remark(source, "electrons", ignored_text(ignored), image.frame))
                    labels = names.find(atoms, image.frame)
                    yield _Numbered(image.frame, self._structure(atoms, labels, convention=image.convention))
                except UnknownUnitsError as error:
                    raise UnknownUnitsError(f"{source}, frame {image.frame}: {error}") from error
                except UnreadableFileError:
                    raise
                except Exception as error:  # ASE raises any exception on damaged text
                    yield Fault(source, image.frame, explained(error))

        yield from _in_blocks(structures(), source)
        for remark in (names.remark(), names.virial_remark()):
            if remark is not None:
                notify(remark)

    def convert(self, atoms: Atoms) -> Structure:
        """A structure with its labels in eV and Å from one ``Atoms``; :meth:`frames` converts many."""
        return self._structure(atoms, self._names("atoms").find(atoms, 0))

    def _names(self, source: str) -> LabelNames:
        keys = {
            "energy": self.energy_keys,
            "forces": self.forces_keys,
            "stress": self.stress_keys,
            "virial": self.virial_keys,
        }
        return LabelNames(source, cast(dict[LabelQuantity, tuple[str, ...]], keys), self._given(source))

    def _given(self, source: str) -> dict[str, Any]:
        """Settings that are neither defaults nor evident from the name of the file."""
        given = self.model_dump(mode="json", exclude_defaults=True)
        with suppress(HuefieldError, OSError):
            if self.ase_format is not None and ase_format_of(Path(source)) == self.ase_format:
                del given["ase_format"]
        return given

    def _structure(self, atoms: Atoms, labels: dict[LabelQuantity, Any], *, convention: bool = True) -> Structure:
        """The structure in eV and Å; ``convention`` says whether the source follows ASE's units."""
        if labels and not convention and self.energy_unit is None:
            raise UnknownUnitsError(
                "a plain xyz frame (without Properties= or Lattice=) does not fix the unit of its labels; state it: "
                """--reader '{"kind": "ase", "energy_unit": "eV"}', or hartree, kcal/mol, kJ/mol, meV"""
            )
        units = Units.named(self.energy_unit or "eV", self.length_unit or "angstrom")
        require_elements(atoms.numbers)
        return Structure(
            atomic_numbers=atoms.numbers.astype(np.uint8),
            positions=atoms.positions.astype(float) * units.length,
            cell=np.array(atoms.cell, float) * units.length,
            pbc=np.array(atoms.pbc, bool),
            energy=_energy(labels["energy"]) * units.energy if "energy" in labels else None,
            forces=_forces(labels["forces"], len(atoms)) * units.force if "forces" in labels else None,
            stress=self._stress(atoms, labels, units),
            group="" if self.group_key is None else _group(atoms, self.group_key),
            baseline=_baseline(atoms),
        )

    def _stress(self, atoms: Atoms, labels: dict[LabelQuantity, Any], units: Units) -> np.ndarray | None:
        """The stress label in eV/Å³, from a stress or from a virial; None if there is none."""
        if "stress" in labels and "virial" in labels:
            raise HuefieldError(
                "there are a stress and a virial: set stress_keys: [] to use the virial, or virial_keys: [] to use the "
                "stress"
            )
        if "stress" in labels:
            return stress_tensor(labels["stress"], self.stress_order) * units.stress * self.stress_scale
        if "virial" not in labels:
            return None
        volume = float(stress_volumes(np.array(atoms.cell, float), np.array(atoms.pbc, bool))) * units.length**3
        if not volume:
            return None  # as for all labels of molecules in boxes
        sign = -1.0 if self.virial_sign == "-stress*volume" else 1.0
        return sign * stress_tensor(labels["virial"], self.stress_order, "virial") * units.energy / volume


@dataclass(frozen=True, eq=False)
class _Numbered:
    frame: int
    structure: Structure


def _in_blocks(items: Iterable[_Numbered | Fault], source: str) -> Frames:
    """Structures packed in blocks, with faults between them in the order of the file."""
    waiting: list[_Numbered] = []

    def packed() -> Frames:
        if waiting:
            yield pack([w.structure for w in waiting], np.array([w.frame for w in waiting]), source)
            waiting.clear()

    for item in items:
        if isinstance(item, Fault):
            yield from packed()
            yield item
            continue
        waiting.append(item)
        if len(waiting) == FRAMES_PER_BLOCK:
            yield from packed()
    yield from packed()


def _numbers(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise HuefieldError(f"the {name} must be numbers, but is {str(value)[:60]!r}")
    return array.astype(float)


def _energy(value: Any) -> float:
    array = _numbers("energy", value)
    if array.size != 1:
        raise HuefieldError(f"the energy must be one number, but has shape {array.shape}")
    return float(array.reshape(()))


def _forces(value: Any, atoms: int) -> np.ndarray:
    array = _numbers("forces", value)
    require_shape("forces", array, (atoms, 3))
    return array


def _baseline(atoms: Atoms) -> BaselineResult | None:
    """The result of a baseline, if the frame has one: always in eV, eV/Å and eV/Å³, in the order of ASE."""
    entries = frame_entries(atoms)
    names = [name for name in (BASELINE_ENERGY, BASELINE_FORCES) if name in entries]
    if not names:
        return None
    if len(names) == 1:
        other = BASELINE_FORCES if names[0] == BASELINE_ENERGY else BASELINE_ENERGY
        raise HuefieldError(f"the frame has {names[0]}, but no {other}: a baseline needs both")
    stress = None
    if BASELINE_STRESS in entries:
        stress = stress_tensor(entries[BASELINE_STRESS], "ase")
    energy, forces = _energy(entries[BASELINE_ENERGY]), _forces(entries[BASELINE_FORCES], len(atoms))
    found = BaselineResult(energy, forces, stress)
    if not found.is_finite:
        raise HuefieldError("a result of the baseline is NaN or infinite")
    return found


def stress_tensor(value: Any, order: str, name: str = "stress") -> np.ndarray:
    """3 × 3 from six components in ASE's or VASP's order, from nine, or from a tensor; ``name`` is for messages."""
    array = _numbers(name, value)
    if array.shape == (6,):
        return array[VOIGT[order]]
    if array.shape not in ((9,), (3, 3)):
        raise HuefieldError(f"the {name} must have 6 or 3 × 3 components, but has shape {array.shape}")
    return array.reshape(3, 3)


def _group(atoms: Atoms, key: str | tuple[str, ...]) -> str:
    """The group of a frame; a single key must be there, a list of keys need not."""
    if isinstance(key, tuple):
        return next((str(atoms.info[each]) for each in key if each in atoms.info), "")
    if key not in atoms.info:
        raise HuefieldError(f"no group: info has no {key!r}; it has {', '.join(sorted(atoms.info)) or 'nothing'}")
    return str(atoms.info[key])
