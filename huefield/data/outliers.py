"""Single labels that are impossible or unusual, for ``huefield data info`` and training alike.

No total energy is below that of all electrons, for which the Thomas-Fermi law gives a bound: energies beyond it are
certainly wrong, as are forces beyond ``IMPOSSIBLE_FORCE``.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from huefield.core.structure import Block
from huefield.core.units import HARTREE_EV
from huefield.data.composition import formula_index
from huefield.data.summary import IMPOSSIBLE_ENERGY, thomas_fermi_hartree

IMPOSSIBLE_FORCE = 1e4
"""Force on an atom that no structure worth training on has, [eV/Å]."""
UNUSUAL = 100.0
"""Factor above the median from which a label is worth a warning."""
UNUSUAL_FORCE, UNUSUAL_ENERGY = 30.0, 1.0
"""Smallest force [eV/Å] and deviation of an energy [eV per atom] that are worth a warning."""
SHOWN = 3
"""Frames that a message names."""


@dataclass(frozen=True)
class Outliers:
    """Labels of some frames that are wrong or unusual."""

    frames: str
    """The first frames with their labels, and the number of the others."""
    certain: bool
    """Whether the labels are impossible."""


class LabelSizes:
    """Sizes of the labels of structures, collected block by block; NaN for missing labels."""

    def __init__(self) -> None:
        self._forces, self._energies, self._bounds = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
        self._sizes, self._numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.uint8)]
        self._places: list[tuple[str, Int[np.ndarray, " m"]]] = []

    def through(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Collect the labels of blocks on their way to another function."""
        for block in blocks:
            largest = np.zeros(len(block))
            np.maximum.at(largest, block.owners, np.linalg.norm(block.forces.astype(float), axis=1))
            self._forces.append(np.where(block.has_forces, largest, np.nan))
            self._energies.append(np.where(block.has_energy, block.energy, np.nan))
            self._bounds.append(HARTREE_EV * thomas_fermi_hartree(block))
            self._sizes.append(block.sizes)
            self._numbers.append(block.atomic_numbers)
            self._places.append((block.source, block.frames))
            yield block

    def outliers(self, where: Callable[[int], str] | None = None) -> list[Outliers]:
        """Impossible labels first, then unusual ones.

        Args:
            where: the place of a structure in words, by its number; None for its frame and the source of its block.
        """
        force, energy, size = (np.concatenate(each) for each in (self._forces, self._energies, self._sizes))
        if not len(force):
            return []
        _, formula = formula_index(size, np.concatenate(self._numbers))
        deviation, ratio = (energy - _medians(energy, formula)) / size, energy / np.concatenate(self._bounds)
        usual_force, usual_energy = _median(force), _median(np.abs(deviation))
        rules = (
            (True, force > IMPOSSIBLE_FORCE, lambda i: f"a force of {force[i]:.3g} eV/Å"),
            (
                True,
                np.abs(ratio) > IMPOSSIBLE_ENERGY,
                lambda i: f"an energy {ratio[i]:.3g} times the all-electron (Thomas-Fermi) energy",
            ),
            (
                False,
                force > max(UNUSUAL * usual_force, UNUSUAL_FORCE),
                lambda i: f"a force of {force[i]:.3g} eV/Å; the median is {usual_force:.3g} eV/Å",
            ),
            (
                False,
                np.abs(deviation) > max(UNUSUAL * usual_energy, UNUSUAL_ENERGY),
                lambda i: f"an energy {deviation[i]:+.3g} eV per atom from the median of its formula",
            ),
        )
        place = where or self._place
        return [Outliers(_frames(bad, place, about), certain) for certain, bad, about in rules if bad.any()]

    def _place(self, index: int) -> str:
        for source, frames in self._places:
            if index < len(frames):
                return f"frame {frames[index]} of {source}"
            index -= len(frames)
        raise IndexError(f"there is no structure {index}")


def _frames(bad: Bool[np.ndarray, " n"], where: Callable[[int], str], about: Callable[[int], str]) -> str:
    """The first bad structures and their labels, and the number of the others."""
    found = np.flatnonzero(bad).tolist()
    shown = [f"{where(index)} has {about(index)}" for index in found[:SHOWN]]
    return "; ".join(shown) + (f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def _median(values: Float[np.ndarray, " n"]) -> float:
    return float(np.nanmedian(values)) if np.isfinite(values).any() else np.inf


def _medians(values: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """For each value the median of its group, without NaN."""
    order = np.lexsort((values, group))  # NaN last
    known = np.bincount(group, np.isfinite(values)).astype(int)
    starts = np.concatenate([[0], np.cumsum(np.bincount(group))])[:-1]
    ranked = values[order]
    low, high = starts + np.maximum(known - 1, 0) // 2, starts + known // 2
    middle = 0.5 * (ranked[low] + ranked[np.minimum(high, len(ranked) - 1)])
    return np.where(known > 0, middle, np.nan)[group]
