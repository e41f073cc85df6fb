"""Remarks on predictions and reference values in different units or of different levels of theory, if that is certain.

A factor between units scales energies as a whole. Another level of theory shifts them by a constant for each element,
which can look like a factor: the 15 atoms of acetylacetone have 15.08 times the energy in DFT that they have in
GFN2-xTB. But only a true factor leaves less than the differences between structures of one composition.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from huefield.core.units import BOHR_ANGSTROM, ENERGY_UNITS_EV, LENGTH_UNITS_ANGSTROM
from huefield.predict.predictions import Observed, Predictions, linear_in_composition

EXPLAINED = 0.1
"""Largest part of the error, and of the reference, that remains if a factor explains the error."""
ACCIDENTAL = 1e-3
"""Part of the reference that an accidental factor may leave if all structures are alike."""
UNMISTAKABLE = 0.5
"""The same for the sign of forces and for factors on forces that no model is wrong by."""
LARGE_FACTOR = 10.0
"""Smallest such factor, or its inverse."""
FEWEST_COMPONENTS = 30
"""Force components needed for that."""
WELL_PREDICTED = 0.4
"""Part of the forces; if errors are smaller, none of these factors can reduce them."""
ENERGY_UNITS = {name: factor for name, factor in ENERGY_UNITS_EV.items() if name != "eV"}
"""In eV."""
FORCE_UNITS = {
    **{f"{name}/Å": factor for name, factor in ENERGY_UNITS.items()},
    "eV/bohr": 1 / BOHR_ANGSTROM,
    "hartree/bohr": ENERGY_UNITS_EV["hartree"] / BOHR_ANGSTROM,
    "kJ/mol/nm": ENERGY_UNITS_EV["kJ/mol"] / LENGTH_UNITS_ANGSTROM["nm"],
}
"""In eV/Å."""
SHIFTED = 20.0
"""Smallest ratio of errors to those that remain without a constant for each element."""
BEYOND_ERROR_BARS = 5.0
"""Smallest ratio of errors to predicted standard deviations."""
FEWEST_MORE = 10
"""Energies needed in excess of the number of constants."""
SIGNS = "predicted and reference forces have opposite signs"


@dataclass(frozen=True, eq=False)
class _Guess:
    """A possible mistake, and the ratio of predictions to reference values that it causes."""

    text: str
    ratio: float | Float[np.ndarray, " n"]
    explained: float = EXPLAINED
    """Largest part of the error that may remain."""

    def left(self, values: Observed) -> float:
        """The root mean squared error under this guess."""
        return _size(values.mean / self.ratio - values.target)


def unit_remark(predictions: Predictions) -> str | None:
    """A remark if predictions fit their reference in exactly one other choice of units; None if that is not certain.

    A factor explains the errors if predictions divided by it leave less than a tenth of the root mean squared error and
    of the root mean square of the reference; for energies, also less than the part that is not linear in the
    composition, or a thousandth of the reference. For many forces that have the opposite sign, or are more than ten
    times too large or too small, half may remain: a poor model errs as much, but not by such a factor.
    """
    remarks = (_energy_remark(predictions), _forces_remark(predictions.observed_forces()))
    return " ".join(remark for remark in remarks if remark is not None) or None


def _energy_remark(predictions: Predictions) -> str | None:
    energies = predictions.observed_energies()
    if energies is None:
        return None
    guesses = _guesses("energies", ENERGY_UNITS)
    block = predictions.structures.block(energies.structure)
    sizes = block.sizes.astype(float)
    if sizes.max() > 1:
        guesses.append(_Guess("the predicted energies seem to be energies per atom", 1 / sizes))
        guesses.append(_Guess("the reference energies seem to be energies per atom", sizes))
    spread = _size(energies.target - linear_in_composition(block, energies.target))
    allowed = max(spread, ACCIDENTAL * _size(energies.target))
    return _remark(energies, guesses, allowed, "eV for the whole structure")


def theory_remark(predictions: Predictions) -> str | None:
    """A remark if errors of energies are one constant for each element; None if that is not certain."""
    energies = predictions.observed_energies()
    if energies is None:
        return None
    block, error = predictions.structures.block(energies.structure), energies.error
    free = len(error) - len(np.unique(block.atomic_numbers))
    if free < FEWEST_MORE:
        return None
    left = _size(error - linear_in_composition(block, error)) * np.sqrt(len(error) / free)
    size, expected = _size(error), float(np.sqrt(energies.variance.mean()))
    if size < SHIFTED * left or size < BEYOND_ERROR_BARS * expected or size == 0:
        return None
    return (
        "energies differ from the model's by a constant per element: another level of theory, columns "
        f"of another baseline, or other reference energies? (Root mean squared error {size:.3g} eV, but {left:.3g} "
        "without these constants)"
    )


def _forces_remark(forces: Observed | None) -> str | None:
    if forces is None or _size(forces.error) < WELL_PREDICTED * _size(forces.target):
        return None
    unmistakable = UNMISTAKABLE if len(forces.mean) >= FEWEST_COMPONENTS else EXPLAINED
    same = _guesses("forces", FORCE_UNITS, large=unmistakable)
    turned = [_Guess(f"{SIGNS}, and {guess.text}", -guess.ratio) for guess in same]
    sign = _Guess(SIGNS, -1.0, unmistakable)
    return _remark(forces, [*same, *turned, sign], np.inf, "eV/Å, and the negative gradient of the energy")


def _guesses(quantity: str, units: Mapping[str, float], large: float = EXPLAINED) -> list[_Guess]:
    """One guess for each unit of the predictions and of the reference; ``large`` may remain for large factors."""
    ratios = {
        **{f"the predicted {quantity} seem to be in {name}": 1 / factor for name, factor in units.items()},
        **{f"the reference {quantity} seem to be in {name}": factor for name, factor in units.items()},
    }
    return [
        _Guess(text, ratio, large if max(ratio, 1 / ratio) > LARGE_FACTOR else EXPLAINED)
        for text, ratio in ratios.items()
    ]


def _remark(values: Observed, guesses: list[_Guess], allowed: float, expected: str) -> str | None:
    """The guess with the smallest remaining error, if it is small enough."""
    error, scale = _size(values.mean - values.target), _size(values.target)
    left = {guess: guess.left(values) for guess in guesses}
    good = [guess for guess in guesses if left[guess] < min(guess.explained * error, guess.explained * scale, allowed)]
    if not good:
        return None
    best = min(good, key=left.__getitem__)
    return (
        f"Units may differ: {best.text} (root mean squared error {error:.3g}, but {left[best]:.3g} if so). "
        f"Both must be {expected}."
    )


def _size(values: Float[np.ndarray, " n"]) -> float:
    return float(np.sqrt(np.mean(values**2)))
