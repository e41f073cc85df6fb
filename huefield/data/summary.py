"""Summary of a data set: counts, ranges, duplicates, and units that look wrong. One pass over blocks of structures.

Memory is constant except for 8 bytes per structure, which find duplicates. Units are judged by rules of thumb that hold
for most matter, so each hint only says "look like"; only energies below those of all electrons are certainly wrong:

- Energies. All-electron total energies are 0.64 to 0.95 of the Thomas-Fermi energy of the atoms, −0.7687 Z^(7/3)
  hartree each, for every element. If the median ratio is in this range in hartree, kcal/mol or kJ/mol instead of eV,
  energies look like that unit. Energies relative to atoms are in none of the ranges. Energies of valence electrons only
  (pseudopotentials) rarely are: Cl and Cu in eV look like hartree.
- Forces. At 300 K to 1000 K the median force on an atom is 0.3 to 3 eV/Å; a few extreme frames do not change the
  median. Above 6, forces look like kcal/mol/Å or kJ/mol/Å. If the root mean square of a component is below 0.05, forces
  look like hartree/bohr (or like relaxed structures).
- Lengths. The shortest distance in a structure, divided by the sum of the covalent radii of the two atoms, is about 1
  in bonded matter. If the median is above 1.5, lengths look like bohr; below 0.4, like nm. Noble gases, pairs across a
  cell's faces and structures of two atoms (distance scans) do not count.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from ase.data import chemical_symbols, covalent_radii
from jaxtyping import Float, Int
from scipy.spatial.distance import pdist

from huefield.core.structure import Block
from huefield.core.units import HARTREE_EV, KCAL_PER_MOL_EV, KJ_PER_MOL_EV
from huefield.data.splits.duplicates import block_hashes

SAMPLE = 50_000
"""Number of values in the sample of a distribution."""
DISTANCES_PER_BLOCK = 256
NOBLE_GASES = (2, 10, 18, 36, 54, 86)
PER_HARTREE = {
    "hartree": 1.0,
    "eV": HARTREE_EV,
    "kcal/mol": HARTREE_EV / KCAL_PER_MOL_EV,
    "kJ/mol": HARTREE_EV / KJ_PER_MOL_EV,
}
IMPOSSIBLE_ENERGY = 1.1
"""Total energy relative to the Thomas-Fermi law that no atoms have."""
LARGE_FORCE, SMALL_FORCE = 6.0, 0.05
MAX_SIZE = 4096
MAX_NUMBER = 256


class Distribution:
    """The exact range of values that arrive in parts, and a random sample of them."""

    def __init__(self) -> None:
        self.count, self.minimum, self.maximum, self._squares = 0, np.inf, -np.inf, 0.0
        self._values, self._keys = np.zeros(0), np.zeros(0)

    def add(self, values: Float[np.ndarray, " v"], *, rng: np.random.Generator) -> None:
        """Add values. Each value draws a random number; the values with the smallest numbers form the sample."""
        if not values.size:
            return
        self.count += values.size
        self.minimum, self.maximum = min(self.minimum, float(values.min())), max(self.maximum, float(values.max()))
        self._squares += float((values.astype(float) ** 2).sum())
        self._values, self._keys = np.append(self._values, values), np.append(self._keys, rng.random(values.size))
        if self._values.size > SAMPLE:
            kept = np.argpartition(self._keys, SAMPLE)[:SAMPLE]
            self._values, self._keys = self._values[kept], self._keys[kept]

    @property
    def sample(self) -> Float[np.ndarray, " v"]:
        """The random sample."""
        return self._values

    @property
    def median(self) -> float:
        """Median of the sample; NaN if it is empty."""
        return float(np.median(self._values)) if self.count else float("nan")

    @property
    def rms(self) -> float:
        """Root mean square of all values; NaN if there are none."""
        return float(np.sqrt(self._squares / self.count)) if self.count else float("nan")


@dataclass(frozen=True, eq=False)
class DataSummary:
    """Counts and distributions of a data set."""

    structures: int
    atoms: int
    elements: dict[str, int]
    """Number of atoms of each element, the most frequent first."""
    sizes: Int[np.ndarray, " s"]
    """Histogram: entry i is the number of structures with i atoms; the last entry includes all larger ones."""
    smallest: int
    largest: int
    with_energy: int
    with_forces: int
    with_stress: int
    periodic: int
    groups: int
    duplicates: int
    """Structures equal to an earlier one: same atoms in the same order, positions and cell equal to 0.0001 Å."""
    energy_per_atom: Distribution
    thomas_fermi_ratio: Distribution
    """Energies divided by the Thomas-Fermi energy in hartree."""
    force_component: Distribution
    force_norm: Distribution
    shortest_distance: Distribution
    shortest_ratio: Distribution
    """Shortest distances divided by the sum of covalent radii, for a sample of the structures."""

    @property
    def hints(self) -> "list[UnitHint]":
        """Units that look wrong, with the reason."""
        return unit_hints(
            self.thomas_fermi_ratio.median, self.force_norm.median, self.force_component.rms, self.shortest_ratio.median
        )


def summarise_data(blocks: Iterable[Block], *, rng: np.random.Generator) -> DataSummary:
    """Summarise all structures in one pass; ``rng`` draws the samples of distributions."""
    energy, law, component, norm, distance, ratio = (Distribution() for _ in range(6))
    counts = dict.fromkeys(("structures", "atoms", "with_energy", "with_forces", "with_stress", "periodic"), 0)
    sizes, numbers = np.zeros(MAX_SIZE + 1, np.int64), np.zeros(MAX_NUMBER, np.int64)
    groups: set[str] = set()
    hashes = [np.zeros(0, np.uint64)]
    smallest, largest = MAX_SIZE, 0
    for block in blocks:
        counts["structures"] += len(block)
        counts["atoms"] += int(block.sizes.sum())
        for name in ("energy", "forces", "stress"):
            counts[f"with_{name}"] += int(getattr(block, f"has_{name}").sum())
        counts["periodic"] += int(block.pbc.any(1).sum())
        sizes += np.bincount(block.sizes.clip(max=MAX_SIZE), minlength=MAX_SIZE + 1)
        numbers += np.bincount(block.atomic_numbers, minlength=MAX_NUMBER)
        smallest = min(smallest, int(block.sizes.min(initial=MAX_SIZE)))
        largest = max(largest, int(block.sizes.max(initial=0)))
        groups.update(block.groups)
        hashes.append(block_hashes(block))
        known = block.has_energy & (block.sizes > 0)
        energy.add(block.energy[known] / block.sizes[known], rng=rng)
        law.add((block.energy / thomas_fermi_hartree(block))[known], rng=rng)
        forces = block.forces[np.repeat(block.has_forces, block.sizes)].astype(float)
        component.add(forces.ravel(), rng=rng)
        norm.add(np.linalg.norm(forces, axis=1), rng=rng)
        for shortest in shortest_pairs(block, rng=rng):
            distance.add(shortest[:1], rng=rng)
            ratio.add(shortest[1:], rng=rng)
    return DataSummary(
        **counts,
        elements={chemical_symbols[z]: int(numbers[z]) for z in np.argsort(-numbers, kind="stable") if numbers[z]},
        sizes=np.trim_zeros(sizes, "b"),
        smallest=min(smallest, largest),
        largest=largest,
        groups=len(groups - {""}),
        duplicates=counts["structures"] - np.unique(np.concatenate(hashes)).size,
        energy_per_atom=energy,
        thomas_fermi_ratio=law,
        force_component=component,
        force_norm=norm,
        shortest_distance=distance,
        shortest_ratio=ratio,
    )


@dataclass(frozen=True)
class UnitHint:
    """A unit that looks wrong."""

    quantity: Literal["energies", "forces", "lengths"]
    unit: str | None
    """The unit that the values look like; None if they are too large for any."""
    text: str
    certain: bool = False
    """Whether no correct data have such values."""

    def __str__(self) -> str:
        return self.text


def unit_hints(
    thomas_fermi_ratio: float, force_median: float, force_rms: float, shortest_ratio: float
) -> list[UnitHint]:
    """Units that look wrong (see the module); NaN stands for an unknown argument.

    Args:
        thomas_fermi_ratio: median of the energies divided by the Thomas-Fermi energy in hartree.
        force_median: median force on an atom.
        force_rms: root mean square of a component of the forces.
        shortest_ratio: median of the shortest distances divided by the sum of covalent radii.
    """
    hints = list(_energy_hints(thomas_fermi_ratio))
    if force_median > LARGE_FORCE:
        text = f"forces look like kcal/mol/Å or kJ/mol/Å, not eV/Å: their median is {force_median:.3g}"
        hints.append(UnitHint("forces", "kcal/mol/Å", text))
    if 0 < force_rms < SMALL_FORCE:
        text = "forces look like hartree/bohr, not eV/Å, unless the structures are relaxed: their root mean square is "
        hints.append(UnitHint("forces", "hartree/bohr", f"{text}{force_rms:.3g}"))
    for unit, looks in (("bohr", shortest_ratio > 1.5), ("nm", shortest_ratio < 0.4)):
        if looks:
            text = f"lengths look like {unit}, not Å: shortest distances are {shortest_ratio:.2f} of a bond"
            hints.append(UnitHint("lengths", unit, text))
    return hints


def _energy_hints(ratio: float) -> Iterator[UnitHint]:
    impossible = ratio > IMPOSSIBLE_ENERGY * HARTREE_EV
    units = [unit for unit, factor in PER_HARTREE.items() if unit != "eV" and 0.64 <= ratio / factor <= 0.95]
    for unit in units:
        unless = "" if impossible else ", unless they include valence electrons only"
        text = f"energies look like {unit}, not eV{unless}: they are as large as all-electron energies in {unit}"
        yield UnitHint("energies", unit, text, certain=impossible)
    if impossible and not units:
        yield UnitHint(
            "energies", None, "energies are below the all-electron (Thomas-Fermi) energy in eV", certain=True
        )


def thomas_fermi_hartree(block: Block) -> Float[np.ndarray, " n"]:
    """The Thomas-Fermi energy: the sum of −0.7687 Z^(7/3) over the atoms of each structure."""
    atoms = -0.7687 * block.atomic_numbers.astype(float) ** (7 / 3)
    return np.bincount(block.owners, atoms, minlength=len(block))


def shortest_pairs(block: Block, *, rng: np.random.Generator) -> Float[np.ndarray, "p 2"]:
    """The shortest distance [Å], and the shortest relative to covalent radii, for a sample of structures."""
    chosen = rng.permutation(np.flatnonzero(block.sizes > 2))[:DISTANCES_PER_BLOCK]
    starts, found = block.starts, []
    for index in chosen:
        atoms = slice(starts[index], starts[index + 1])
        bonding = ~np.isin(block.atomic_numbers[atoms], NOBLE_GASES)
        if bonding.sum() > 1:
            distances = pdist(block.positions[atoms][bonding].astype(float))
            radii = covalent_radii[block.atomic_numbers[atoms][bonding]]
            first, second = np.triu_indices(radii.size, 1)
            found.append((distances.min(), (distances / (radii[first] + radii[second])).min()))
    return np.array(found).reshape(-1, 2)


def describe(summary: DataSummary) -> list[str]:
    """The lines that ``huefield data info`` prints."""

    def span(values: Distribution, unit: str) -> str:
        if not values.count:
            return "none"
        return f"{values.minimum:.6g} to {values.maximum:.6g} {unit}, median {values.median:.6g}"

    n = summary.structures
    missing = {"energy": summary.with_energy, "forces": summary.with_forces, "stress": summary.with_stress}
    return [
        f"structures        {n} ({summary.periodic} periodic)",
        f"atoms             {summary.atoms}, {summary.smallest} to {summary.largest} in a structure",
        "elements          " + ", ".join(f"{symbol} {count}" for symbol, count in summary.elements.items()),
        f"groups            {summary.groups or 'none'}",
        f"energy per atom   {span(summary.energy_per_atom, 'eV')}",
        f"force on an atom  {span(summary.force_norm, 'eV/Å')}",
        f"shortest distance {span(summary.shortest_distance, 'Å')} (in a sample of structures)",
        "without labels    " + ", ".join(f"{name} {n - count}" for name, count in missing.items()),
        f"duplicates        {summary.duplicates}",
        *(f"suspicious        {hint}" for hint in summary.hints),
    ]
