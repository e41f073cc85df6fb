"""Reference energies of the elements, which are subtracted from total energies before training.

The total energy of a molecule is −10³ to −10⁵ eV, nearly all of it a sum over its atoms. The rest after subtracting
E₀ = Σ_z n_z ε_z has a size that a network in single precision can learn. Each data set has references of its own: the
same functional in another basis shifts ε_z (ANI-1x has Cartesian, Transition1x spherical d functions: 0.13 eV for a
molecule).

The least-squares fit, min_ε Σ_s (E_s − Σ_z n_sz ε_z)², takes one pass in constant memory. Only the triangle R
of the QR decomposition of all rows (n_s, E_s) is kept; further rows are stacked beneath R and decomposed again. R has
the same solutions as all the rows, without the squared condition number of normal equations.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from ase.data import atomic_numbers as number_of_symbol
from jaxtyping import Bool, Float, Float64, Int, Shaped, UInt8
from pydantic import Field, ValidationError

from huefield.core.structure import Block
from huefield.data.composition import element_counts, present_elements, require_packed, runs, symbol
from huefield.support.checks import require_finite, require_shape
from huefield.support.config import FrozenConfig, explain
from huefield.support.errors import HuefieldError
from huefield.support.files import write_bytes

ISOLATED_ANGSTROM = 8.0
"""Smallest lattice vector of a box around an isolated atom; shorter ones make a crystal of it."""
SAME_ATOM_EV = 1e-3
"""Energies of one isolated atom that differ by more are an error."""


ELEMENTS = {name: number for name, number in number_of_symbol.items() if number}
"""Atomic numbers by symbol; ASE has a placeholder X with the number 0 besides."""


class MissingReferenceError(HuefieldError):
    """An element has no reference energy; the message says which, in which data set, and what to do."""


@dataclass(frozen=True, eq=False)
class EnergyChunk:
    """Compositions, energies and data sets of some structures."""

    sizes: Int[np.ndarray, " n"]
    atomic_numbers: UInt8[np.ndarray, " A"]
    energy: Float[np.ndarray, " n"]
    has_energy: Bool[np.ndarray, " n"]
    isolated: Bool[np.ndarray, " n"]
    """Isolated atoms: no neighbours, not even their own images."""
    tags: Shaped[np.ndarray, " n"]
    """The data set of each structure, as strings."""

    def __post_init__(self) -> None:
        require_packed(self.sizes, self.atomic_numbers)
        for name in ("energy", "has_energy", "isolated", "tags"):
            require_shape(name, getattr(self, name), self.sizes.shape)
        require_finite("energy", np.where(self.has_energy, self.energy, 0.0), hint="mark missing ones with has_energy")

    @classmethod
    def from_block(cls, block: Block, tag: str | None = None) -> "EnergyChunk":
        """The structures of a block, all of one data set; None for the data set of each."""
        alone = isolated_atoms(block.sizes, block.cells, block.pbc)
        tags = _tags_of(block, tag)
        return cls(block.sizes, block.atomic_numbers, block.energy, block.has_energy, alone, tags)

    def of(self, tag: str) -> "EnergyChunk":
        """The structures of one data set that have an energy."""
        keep = self.has_energy & (self.tags == tag)
        atoms = self.atomic_numbers[np.repeat(keep, self.sizes)]
        return EnergyChunk(
            self.sizes[keep], atoms, self.energy[keep], self.has_energy[keep], self.isolated[keep], self.tags[keep]
        )


def _tags_of(block: Block, tag: str | None) -> Shaped[np.ndarray, " n"]:
    return np.array(block.tags, np.str_) if tag is None else np.full(len(block), tag)


def isolated_atoms(
    sizes: Int[np.ndarray, " n"], cells: Float[np.ndarray, "n 3 3"], pbc: Bool[np.ndarray, "n 3"]
) -> Bool[np.ndarray, " n"]:
    """Which structures are one atom without close images."""
    near = pbc & (np.linalg.norm(cells, axis=2) < ISOLATED_ANGSTROM)
    return (sizes == 1) & ~near.any(1)


def _not_an_element(tag: str, element: str | int) -> HuefieldError:
    return HuefieldError(f"data set {tag!r} has a reference energy for {element!r}, which is not an element")


@dataclass(frozen=True)
class AtomicReferences:
    """The energy ε_z of each element in each data set, [eV]."""

    energies_ev: Mapping[str, Mapping[int, float]]
    """By data set, then by atomic number; files and configurations have symbols instead."""
    method: str = "given"
    underdetermined: tuple[str, ...] = ()
    """Data sets whose compositions do not fix the energies one by one (a single formula, for example).

    The smallest energies that fit are used: sums over the given formulas are right, but energies of single elements
    and sums over other formulas are wrong.
    """

    def __post_init__(self) -> None:
        if not self.energies_ev:
            raise HuefieldError("references need at least one data set, but none is given")
        for tag, energies in self.energies_ev.items():
            for number, energy in energies.items():
                if number not in ELEMENTS.values():
                    raise _not_an_element(tag, number)
                if not math.isfinite(energy):
                    raise HuefieldError(
                        f"the reference energy of {symbol(number)} in data set {tag!r} must be finite, but is {energy}"
                    )
        copied = {tag: {z: float(e) for z, e in energies.items()} for tag, energies in self.energies_ev.items()}
        object.__setattr__(self, "energies_ev", copied)

    @classmethod
    def from_symbols(
        cls,
        energies_ev: Mapping[str, Mapping[str, float]],
        method: str = "given",
        underdetermined: tuple[str, ...] = (),
    ) -> "AtomicReferences":
        """References from energies by data set and symbol."""
        for tag, energies in energies_ev.items():
            for name in energies:
                if name not in ELEMENTS:
                    raise _not_an_element(tag, name)
        numbered = {tag: {ELEMENTS[name]: e for name, e in energies.items()} for tag, energies in energies_ev.items()}
        return cls(numbered, method, underdetermined)

    def offsets(
        self, sizes: Int[np.ndarray, " n"], atomic_numbers: UInt8[np.ndarray, " A"], tags: Shaped[np.ndarray, " n"]
    ) -> Float64[np.ndarray, " n"]:
        """E₀ of each structure, [eV], to subtract from the total energy in double precision.

        Args:
            sizes: atoms of each structure.
            atomic_numbers: elements of all atoms, one structure after the other.
            tags: the data set of each structure, as strings.
        """
        require_packed(sizes, atomic_numbers)
        require_shape("tags", tags, sizes.shape)
        names, tag = np.unique(tags, return_inverse=True)
        elements = present_elements(atomic_numbers)
        table = np.array([self._row(name, elements) for name in names.tolist()]).reshape(len(names), len(elements))
        offsets = np.empty(len(sizes))
        for structures, atoms in runs(sizes):
            counts = element_counts(sizes[structures], atomic_numbers[atoms], elements)
            energies = np.where(counts > 0, table[tag[structures]], 0.0)
            self._require_known(energies, structures.start, elements, tags)
            offsets[structures] = (counts * energies).sum(1)
        return offsets

    def of_block(self, block: Block, tag: str | None = None) -> Float64[np.ndarray, " n"]:
        """E₀ of each structure of a block, all of one data set, [eV]; None for the data set of each."""
        return self.offsets(block.sizes, block.atomic_numbers, _tags_of(block, tag))

    def save(self, path: str | Path) -> None:
        """Write JSON, atomically."""
        energies = {tag: {symbol(z): e for z, e in row.items()} for tag, row in self.energies_ev.items()}
        file = _ReferenceFile(energies_ev=energies, method=self.method, underdetermined=self.underdetermined)
        write_bytes(Path(path), file.model_dump_json(indent=1).encode())

    @classmethod
    def load(cls, path: str | Path) -> "AtomicReferences":
        """Read a file that :meth:`save` wrote."""
        try:
            file = _ReferenceFile.model_validate(json.loads(Path(path).read_bytes()))
            return cls.from_symbols(file.energies_ev, file.method, file.underdetermined)
        except ValidationError as error:
            raise HuefieldError("not atomic references:\n" + explain(error, str(path))) from None
        except (ValueError, RecursionError) as error:
            raise HuefieldError(f"{path}: not atomic references, or cut off ({error})") from None

    def _row(self, tag: str, elements: Sequence[int]) -> list[float]:
        """Energies of the elements in a data set, NaN for none."""
        if tag not in self.energies_ev:
            raise MissingReferenceError(
                f"there are no reference energies for data set {tag!r}, only for {list(self.energies_ev)}: "
                "give or fit them too"
            )
        return [self.energies_ev[tag].get(number, math.nan) for number in elements]

    def _require_known(
        self, energies: Float[np.ndarray, "m Z"], start: int, elements: Sequence[int], tags: Shaped[np.ndarray, " n"]
    ) -> None:
        missing = np.argwhere(np.isnan(energies))
        if missing.size:
            structure, column = start + int(missing[0, 0]), int(missing[0, 1])
            tag = str(tags[structure])
            raise MissingReferenceError(
                f"element {symbol(elements[column])} has no reference energy in data set {tag!r} (needed by structure "
                f"{structure}; there are {', '.join(map(symbol, self.energies_ev[tag])) or 'none'}): give it by hand, "
                "add the isolated atom to the data, or fit by least squares"
            )


class _ReferenceFile(FrozenConfig):
    format: Literal["huefield-atomic-references"] = "huefield-atomic-references"
    version: Literal[1] = 1
    energies_ev: dict[str, dict[str, float]]
    method: str
    underdetermined: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class CompositionFit:
    """The triangle R of all rows (n_s, E_s) so far."""

    elements: tuple[int, ...] = ()
    triangle: Float64[np.ndarray, "r c"] = field(default_factory=lambda: np.zeros((0, 1)))
    num_structures: int = 0

    def seen(self, chunk: EnergyChunk) -> "CompositionFit":
        """The fit with the structures of a chunk added; all of them need energies."""
        fit = self
        for structures, atoms in runs(chunk.sizes):
            numbers = chunk.atomic_numbers[atoms]
            elements = tuple(sorted({*fit.elements, *present_elements(numbers)}))
            counts = element_counts(chunk.sizes[structures], numbers, elements)
            old = np.zeros((len(fit.triangle), len(elements) + 1))
            old[:, [*(elements.index(number) for number in fit.elements), -1]] = fit.triangle
            rows = np.concatenate([old, np.column_stack([counts, chunk.energy[structures]])])
            fit = CompositionFit(elements, np.asarray(np.linalg.qr(rows, mode="r")), fit.num_structures + len(counts))
        return fit

    def solved(self) -> tuple[Float64[np.ndarray, " Z"], bool]:
        """Energies of the elements, [eV], and whether the compositions determine them; the smallest ones if not."""
        tolerance = np.finfo(float).eps * max(self.num_structures, len(self.elements))
        energies, _, rank, _ = np.linalg.lstsq(self.triangle[:, :-1], self.triangle[:, -1], rcond=tolerance)
        return energies, int(rank) == len(self.elements)


def fitted_references(chunks: Iterable[EnergyChunk]) -> AtomicReferences:
    """Energies of the elements by least squares on the compositions, for each data set."""
    fits: dict[str, CompositionFit] = {}
    for chunk in chunks:
        for tag in np.unique(chunk.tags[chunk.has_energy]).tolist():
            fits[tag] = fits.get(tag, CompositionFit()).seen(chunk.of(tag))
    if not fits:
        raise HuefieldError("cannot fit reference energies: no structure has an energy")
    solved = {tag: fits[tag].solved() for tag in sorted(fits)}
    energies = {tag: dict(zip(fits[tag].elements, result.tolist(), strict=True)) for tag, (result, _) in solved.items()}
    return AtomicReferences(energies, "least_squares", tuple(tag for tag, (_, unique) in solved.items() if not unique))


def isolated_references(chunks: Iterable[EnergyChunk]) -> AtomicReferences:
    """Energies of the isolated atoms among the structures, for each data set."""
    found: dict[str, dict[int, float]] = {}
    for chunk in chunks:
        starts = np.cumsum(chunk.sizes) - chunk.sizes
        for index in np.flatnonzero(chunk.isolated & chunk.has_energy):
            number, energy = int(chunk.atomic_numbers[starts[index]]), float(chunk.energy[index])
            tag = str(chunk.tags[index])
            first = found.setdefault(tag, {}).setdefault(number, energy)
            if abs(first - energy) > SAME_ATOM_EV:
                raise HuefieldError(
                    f"data set {tag!r} has isolated atoms of {symbol(number)} with energies {first} and {energy} eV: "
                    "leave one out, or give the reference energies by hand"
                )
    if not found:
        raise HuefieldError(
            "there are no isolated atoms with an energy (structures of one atom): add them to the training data, give "
            "their energies, as in references: {kind: given, energies_ev: {all: {H: -13.6, C: -1029.5}}}, or fit them "
            "by least squares, references: {kind: least_squares}"
        )
    return AtomicReferences({tag: dict(sorted(row.items())) for tag, row in found.items()}, "isolated_atoms")


class GivenReferences(FrozenConfig):
    """Energies given by hand."""

    kind: Literal["given"] = "given"
    energies_ev: dict[str, dict[str, float]] = Field(description="by data set, then by symbol")

    def make(self, chunks: Iterable[EnergyChunk]) -> AtomicReferences:
        """The references; the structures are not used."""
        return AtomicReferences.from_symbols(self.energies_ev)


class IsolatedReferences(FrozenConfig):
    """Energies of isolated atoms in the data."""

    kind: Literal["isolated_atoms"] = "isolated_atoms"

    def make(self, chunks: Iterable[EnergyChunk]) -> AtomicReferences:
        """The references of these structures."""
        return isolated_references(chunks)


class FittedReferences(FrozenConfig):
    """Energies by least squares on the compositions."""

    kind: Literal["least_squares"] = "least_squares"

    def make(self, chunks: Iterable[EnergyChunk]) -> AtomicReferences:
        """The references of these structures."""
        return fitted_references(chunks)


ReferenceConfig = Annotated[GivenReferences | IsolatedReferences | FittedReferences, Field(discriminator="kind")]
