"""Error and uncertainty of each structure, and a selection of structures to show."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from huefield.predict.marginals import Marginals
from huefield.predict.predictions import Predictions
from huefield.support.errors import HuefieldError

MOST_ATOMS = 40_000
"""Largest number of atoms in a page, so that a browser can open it."""


@dataclass(frozen=True, eq=False)
class StructureScores:
    """Errors and uncertainties of each structure (eV, eV/Å); NaN if a value was not predicted or not observed."""

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
        """Error of the atom with the largest error."""
        return self._largest(self.atom_error)

    @cached_property
    def worst_force_uncertainty(self) -> Float[np.ndarray, " n"]:
        """Uncertainty of the most uncertain atom."""
        return self._largest(self.atom_uncertainty)

    def _rms(self, length: Float[np.ndarray, " A"]) -> Float[np.ndarray, " n"]:
        given = self.predictions
        sums = np.bincount(given.structures.owners, length**2, minlength=len(given))
        return np.sqrt(sums / (3 * np.maximum(given.structures.sizes, 1)))

    def _largest(self, length: Float[np.ndarray, " A"]) -> Float[np.ndarray, " n"]:
        largest = np.zeros(len(self.predictions))
        with np.errstate(invalid="ignore"):  # np.maximum propagates NaN
            np.maximum.at(largest, self.predictions.structures.owners, length)
        return largest


@dataclass(frozen=True, eq=False)
class Selection:
    """Selected structures."""

    indices: Int[np.ndarray, " m"]
    """Indices of the structures, increasing."""
    description: str
    """Which structures these are, in words."""


def choose_structures(predictions: Predictions, limit: int = 500, *, seed: int = 0) -> Selection:
    """Select at most ``limit`` structures: those with the largest errors and uncertainties, and random others.

    Energies and forces have equal shares. Fewer are selected if a page could not hold all their atoms.
    """
    if limit < 1:
        raise HuefieldError(f"limit must be at least 1, but is {limit}: give the number of structures to show")
    if len(predictions) == 0:
        raise HuefieldError("there are no structures to select from: the predictions are empty")
    sizes = predictions.structures.sizes
    ranked, lot = _rankings(predictions), np.random.default_rng(seed).permutation(len(predictions))
    chosen = _pick(ranked, lot, limit)
    while len(chosen) > 1 and (atoms := int(sizes[chosen].sum())) > MOST_ATOMS:
        chosen = _pick(ranked, lot, min(len(chosen) - 1, len(chosen) * MOST_ATOMS // atoms + 1))
    return Selection(np.sort(chosen), _description(chosen, ranked, len(predictions)))


def _rankings(predictions: Predictions) -> dict[str, Int[np.ndarray, " m"]]:
    """For each known quantity, the indices of the structures in decreasing order."""
    scores = StructureScores(predictions)
    quantities = {
        "energy error": scores.energy_error,
        "force error": scores.force_error,
        "energy uncertainty": _spread(scores.energy_uncertainty, predictions.energy),
        "force uncertainty": _spread(scores.force_uncertainty, predictions.forces),
    }
    known = {name: values for name, values in quantities.items() if np.isfinite(values).any()}
    return {
        name: np.argsort(-values, kind="stable")[: np.isfinite(values).sum()]  # NaN is sorted to the end
        for name, values in known.items()
    }


def _spread(values: Float[np.ndarray, " n"], marginals: Marginals | None) -> Float[np.ndarray, " n"]:
    """Uncertainties; NaN for a model whose uncertainties are all zero."""
    return values if marginals is not None and np.any(marginals.variance > 0) else np.full_like(values, np.nan)


def _pick(ranked: dict[str, Int[np.ndarray, " m"]], lot: Int[np.ndarray, " n"], limit: int) -> Int[np.ndarray, " k"]:
    share = -(-limit // (len(ranked) + 1))
    tops = [order[:share] for order in ranked.values()]
    return np.array(list(dict.fromkeys(np.concatenate([*tops, lot]).tolist()))[:limit], np.int64)


def _description(chosen: Int[np.ndarray, " k"], ranked: dict[str, Int[np.ndarray, " m"]], total: int) -> str:
    if len(chosen) == total:
        return "all structures" if total > 1 else "the only structure"
    *first, last = ranked or [""]
    kinds = f"{', '.join(first)} and {last}" if first else last
    most = f"those with the largest {kinds}, and " if ranked else ""
    rest = "a random selection of the others" if ranked else "a random selection"
    return f"{grouped_digits(len(chosen))} of {grouped_digits(total)} structures: {most}{rest}"


def grouped_digits(value: int) -> str:
    """An integer with groups of three digits."""
    return f"{value:,}".replace(",", " ")
