"""How far off and how uncertain each structure is, and which structures are worth looking at."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from huefield.predict.predictions import Marginals, Predictions
from huefield.support.errors import HuefieldError

MOST_ATOMS = 40_000
"""That a page can hold and a browser can open at once."""


@dataclass(frozen=True, eq=False)
class StructureScores:
    """Errors and uncertainties of each structure (eV, eV/Å); NaN where something was not predicted or observed."""

    predictions: Predictions

    @cached_property
    def energy_error(self) -> Float[np.ndarray, " n"]:
        """|predicted − observed|."""
        block, energy = self.predictions.structures, self.predictions.energy
        if energy is None:
            return np.full(len(block), np.nan)
        return np.where(block.has_energy, np.abs(energy.mean - block.energy), np.nan)

    @cached_property
    def energy_uncertainty(self) -> Float[np.ndarray, " n"]:
        """Predicted standard deviation."""
        energy = self.predictions.energy
        if energy is None:
            return np.full(len(self.predictions), np.nan)
        return np.where(np.isfinite(energy.mean), np.sqrt(energy.variance), np.nan)

    @cached_property
    def atom_error(self) -> Float[np.ndarray, " A"]:
        """Length of the error of the force on each atom."""
        given, forces = self.predictions, self.predictions.forces
        if forces is None:
            return np.full(len(given.structures.positions), np.nan)
        error = np.sqrt(((forces.mean - given.structures.forces) ** 2).sum(1))
        return np.where(given.atoms_observed, error, np.nan)

    @cached_property
    def atom_uncertainty(self) -> Float[np.ndarray, " A"]:
        """Root of the summed variances of the three components of the force on each atom."""
        forces = self.predictions.forces
        if forces is None:
            return np.full(len(self.predictions.structures.positions), np.nan)
        return np.where(np.isfinite(forces.mean).all(1), np.sqrt(forces.variance.sum(1)), np.nan)

    @cached_property
    def force_error(self) -> Float[np.ndarray, " n"]:
        """Root mean square over the components of all atoms."""
        return self._rms(self.atom_error)

    @cached_property
    def force_uncertainty(self) -> Float[np.ndarray, " n"]:
        """Root of the mean variance of the components of all atoms."""
        return self._rms(self.atom_uncertainty)

    @cached_property
    def worst_force_error(self) -> Float[np.ndarray, " n"]:
        """Of the atom that is farthest off."""
        return self._largest(self.atom_error)

    @cached_property
    def worst_force_uncertainty(self) -> Float[np.ndarray, " n"]:
        """Of the most uncertain atom."""
        return self._largest(self.atom_uncertainty)

    def _rms(self, length: Float[np.ndarray, " A"]) -> Float[np.ndarray, " n"]:
        given = self.predictions
        sums = np.bincount(given.structures.owners, length**2, minlength=len(given))
        return np.sqrt(sums / (3 * np.maximum(given.structures.sizes, 1)))

    def _largest(self, length: Float[np.ndarray, " A"]) -> Float[np.ndarray, " n"]:
        largest = np.zeros(len(self.predictions))
        with np.errstate(invalid="ignore"):  # NaN is larger than anything here
            np.maximum.at(largest, self.predictions.structures.owners, length)
        return largest


@dataclass(frozen=True, eq=False)
class Selection:
    """Some of many structures."""

    indices: Int[np.ndarray, " m"]
    """Their numbers, ascending."""
    said: str
    """Which they are, of how many, in words."""


def choose_structures(predictions: Predictions, limit: int = 500, *, seed: int = 0) -> Selection:
    """The structures that are farthest off, those that are most uncertain, and others by lot: ``limit`` at most.

    Energies and forces count alike. There are fewer where more would have too many atoms for a page.
    """
    if limit < 1:
        raise HuefieldError(f"limit must be at least 1, but is {limit}: say how many structures to show")
    if len(predictions) == 0:
        raise HuefieldError("there are no structures to choose from: the predictions are empty")
    sizes = predictions.structures.sizes
    ranked, lot = _rankings(predictions), np.random.default_rng(seed).permutation(len(predictions))
    chosen = _pick(ranked, lot, limit)
    while len(chosen) > 1 and (atoms := int(sizes[chosen].sum())) > MOST_ATOMS:
        chosen = _pick(ranked, lot, min(len(chosen) - 1, len(chosen) * MOST_ATOMS // atoms + 1))
    return Selection(np.sort(chosen), _said(chosen, ranked, len(predictions)))


def _rankings(predictions: Predictions) -> dict[str, Int[np.ndarray, " m"]]:
    """For each quantity that is known: the numbers of structures, the largest value first."""
    scores = StructureScores(predictions)
    quantities = {
        "energy error": scores.energy_error,
        "force error": scores.force_error,
        "energy uncertainty": _spread(scores.energy_uncertainty, predictions.energy),
        "force uncertainty": _spread(scores.force_uncertainty, predictions.forces),
    }
    known = {name: values for name, values in quantities.items() if np.isfinite(values).any()}
    return {
        name: np.argsort(-values, kind="stable")[: np.isfinite(values).sum()]  # NaN is sorted behind all
        for name, values in known.items()
    }


def _spread(values: Float[np.ndarray, " n"], marginals: Marginals | None) -> Float[np.ndarray, " n"]:
    """Uncertainties, or nothing at all from a model that never is uncertain."""
    return values if marginals is not None and np.any(marginals.variance > 0) else np.full_like(values, np.nan)


def _pick(ranked: dict[str, Int[np.ndarray, " m"]], lot: Int[np.ndarray, " n"], limit: int) -> Int[np.ndarray, " k"]:
    share = -(-limit // (len(ranked) + 1))
    tops = [order[:share] for order in ranked.values()]
    return np.array(list(dict.fromkeys(np.concatenate([*tops, lot]).tolist()))[:limit], np.int64)


def _said(chosen: Int[np.ndarray, " k"], ranked: dict[str, Int[np.ndarray, " m"]], total: int) -> str:
    if len(chosen) == total:
        return "all structures" if total > 1 else "the only structure"
    *first, last = ranked or [""]
    kinds = f"{', '.join(first)} and {last}" if first else last
    most = f"those with the largest {kinds}, and " if ranked else ""
    rest = "others by lot" if ranked else "chosen by lot"
    return f"{grouped_digits(len(chosen))} of {grouped_digits(total)} structures: {most}{rest}"


def grouped_digits(value: int) -> str:
    """A whole number with its thousands apart."""
    return f"{value:,}".replace(",", " ")
