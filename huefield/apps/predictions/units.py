"""Whether predictions and reference values are in the same units."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from huefield.core.units import BOHR_ANGSTROM, ENERGY_UNITS_EV, LENGTH_UNITS_ANGSTROM
from huefield.evaluation.predictions import Observed, Predictions

EXPLAINED = 0.1
"""Part of the error that may be left, and of the reference itself, where a factor explains the error."""
ENERGY_UNITS = {name: factor for name, factor in ENERGY_UNITS_EV.items() if name != "eV"}
"""In eV."""
FORCE_UNITS = {
    **{f"{name}/Å": factor for name, factor in ENERGY_UNITS.items()},
    "eV/bohr": 1 / BOHR_ANGSTROM,
    "hartree/bohr": ENERGY_UNITS_EV["hartree"] / BOHR_ANGSTROM,
    "kJ/mol/nm": ENERGY_UNITS_EV["kJ/mol"] / LENGTH_UNITS_ANGSTROM["nm"],
}
"""In eV/Å."""


@dataclass(frozen=True, eq=False)
class _Guess:
    """What may be wrong, and the ratio of predictions to reference values that it brings about."""

    text: str
    ratio: Float[np.ndarray, "..."]


def unit_remark(predictions: Predictions) -> str | None:
    """Say so where predictions would fit their reference far better in other units; None where they would not.

    A factor is held to explain the errors if predictions divided by it leave less than a tenth of the root mean
    squared error, and less than a tenth of the root mean square of the reference.
    """
    remarks = (_energy_remark(predictions), _forces_remark(predictions.observed_forces()))
    return " ".join(remark for remark in remarks if remark is not None) or None


def _energy_remark(predictions: Predictions) -> str | None:
    energies = predictions.observed_energies()
    if energies is None:
        return None
    guesses = _guesses("energies", ENERGY_UNITS)
    sizes = predictions.structures.sizes[energies.structure].astype(float)
    if sizes.max() > 1:
        guesses.append(_Guess("the predicted energies seem to be energies per atom", 1 / sizes))
        guesses.append(_Guess("the reference energies seem to be energies per atom", sizes))
    return _remark(energies, guesses, "eV for the whole structure")


def _forces_remark(forces: Observed | None) -> str | None:
    if forces is None:
        return None
    guesses = _guesses("forces", FORCE_UNITS)
    guesses.append(_Guess("predicted and reference forces seem to have opposite signs", np.array(-1.0)))
    return _remark(forces, guesses, "eV/Å, and the negative gradient of the energy")


def _guesses(quantity: str, units: Mapping[str, float]) -> list[_Guess]:
    predicted = [_Guess(f"the predicted {quantity} seem to be in {name}", np.array(1 / f)) for name, f in units.items()]
    reference = [_Guess(f"the reference {quantity} seem to be in {name}", np.array(f)) for name, f in units.items()]
    return predicted + reference


def _remark(values: Observed, guesses: list[_Guess], expected: str) -> str | None:
    """The guess that leaves least, if that is little enough."""
    error, scale = _size(values.mean - values.target), _size(values.target)
    left = [_size(values.mean / guess.ratio - values.target) for guess in guesses]
    best = int(np.argmin(left))
    if not left[best] < EXPLAINED * min(error, scale):
        return None
    return (
        f"Units may differ: {guesses[best].text} (root mean squared error {error:.3g}, but {left[best]:.3g} if so). "
        f"Both must be {expected}."
    )


def _size(values: Float[np.ndarray, " n"]) -> float:
    return float(np.sqrt(np.mean(values**2)))
