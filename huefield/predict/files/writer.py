"""Predictions as extended xyz, under the names that read_predictions and other tools know."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from ase.data import chemical_symbols
from ase.stress import full_3x3_to_voigt_6_stress
from jaxtyping import Bool, Float

from huefield.data.xyz_text import frame_text, joined, periodic_word, text_word
from huefield.predict.files.frames import FRAME
from huefield.predict.files.keys import ALEATORIC, DOF, EPISTEMIC, JOINT_NLL, MODEL
from huefield.predict.marginals import QUANTITIES, Marginals
from huefield.predict.predictions import Predictions
from huefield.support.files import replacing

NUMBER = "%.17g"
"""Every double is read back exactly."""

Columns = dict[str, Float[np.ndarray, "A k"]]
InfoEntries = dict[str, Float[np.ndarray, " n *k"]]


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write structures with predictions (``energy``, ``forces``), standard deviations and reference values.

    Uncertainties are ``energy_uncertainty`` and ``forces_uncertainty``; names of their parts end with ``_aleatoric`` or
    ``_epistemic``; ``stress`` likewise, if it was predicted. ``energy_dof``, ``forces_dof`` and ``stress_dof`` are the
    degrees of freedom of errors that follow a Student t distribution. Means of members are ``energy_ensemble``, and
    ``forces_ensemble`` with three columns for each member. Labels are ``REF_energy``, ``REF_forces`` and
    ``REF_stress``. ``frame`` is the number of a structure in its source. The file is written whole or not at all, frame
    by frame. Quantities that were not predicted for a structure (NaN means) are not written.
    """
    with writing_predictions(path) as write:
        write(predictions)


@contextmanager
def writing_predictions(path: Path) -> Iterator[Callable[[Predictions], None]]:
    """A function that appends predictions to a file, which is written whole or not at all."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        yield lambda predictions: file.writelines(_frames(predictions))


def _frames(predictions: Predictions) -> Iterator[str]:
    block = predictions.structures
    energies, forces = _deviations("energy", predictions.energy), _deviations("forces", predictions.forces)
    stresses = _stresses(predictions.stress)
    if predictions.energy is not None and predictions.energy.members is not None:
        energies["energy_ensemble"] = predictions.energy.members.T
    if predictions.forces is not None and predictions.forces.members is not None:
        forces["forces_ensemble"] = np.moveaxis(predictions.forces.members, 0, 1).reshape(len(block.positions), -1)
    joint: InfoEntries = {} if predictions.joint_nll is None else {JOINT_NLL: predictions.joint_nll}
    observed: Columns = {"REF_forces": block.forces}
    with_energy, with_forces, with_stress = _predicted(predictions)
    tails = {name: _tails(name, getattr(predictions, name), len(block)) for name in QUANTITIES}
    for index in range(len(block)):
        atoms = slice(block.starts[index], block.starts[index + 1])
        entries = {
            **({**energies, **tails["energy"]} if with_energy[index] else {}),
            **(tails["forces"] if with_forces[index] else {}),
            **({**stresses, **tails["stress"]} if with_stress[index] else {}),
            **joint,
        }
        columns = {**(forces if with_forces[index] else {}), **(observed if block.has_forces[index] else {})}
        yield frame_text(
            (chemical_symbols[number] for number in block.atomic_numbers[atoms]),
            block.positions[atoms],
            block.cells[index],
            {name: values[atoms] for name, values in columns.items()},
            _words(predictions, index, entries),
            NUMBER,
        )


def _predicted(predictions: Predictions) -> tuple[Bool[np.ndarray, " n"], ...]:
    """Structures whose energy was predicted, those with all forces, and those with a stress."""
    energy, forces, stress, count = predictions.energy, predictions.forces, predictions.stress, len(predictions)
    nothing = np.zeros(count, bool)
    missing = np.ones(len(predictions.structures.positions), bool) if forces is None else np.isnan(forces.mean).any(1)
    return (
        nothing if energy is None else np.isfinite(energy.mean),
        np.bincount(predictions.structures.owners, missing, count) == 0,
        nothing if stress is None else np.isfinite(stress.mean).all((1, 2)),
    )


def _deviations(quantity: str, marginals: Marginals | None) -> dict[str, Float[np.ndarray, "*n"]]:
    """Means, and the standard deviations that are known."""
    if marginals is None:
        return {}
    name = f"{quantity}_uncertainty"
    variances = {
        name: marginals.variance,
        name + ALEATORIC: marginals.aleatoric_var,
        name + EPISTEMIC: marginals.epistemic_var,
    }
    return {quantity: marginals.mean, **{key: np.sqrt(var) for key, var in variances.items() if var is not None}}


def _tails(quantity: str, marginals: Marginals | None, count: int) -> InfoEntries:
    """Degrees of freedom, the same for all structures; nothing for normal errors."""
    if marginals is None or marginals.dof is None:
        return {}
    return {quantity + DOF: np.full(count, marginals.dof)}


def _stresses(marginals: Marginals | None) -> InfoEntries:
    """Nine components of a stress, as ASE reads it; six components of its uncertainties."""
    found = _deviations("stress", marginals)
    return {
        name: value.reshape(-1, 9) if name == "stress" else full_3x3_to_voigt_6_stress(value)
        for name, value in found.items()
    }


def _words(predictions: Predictions, index: int, entries: InfoEntries) -> list[str]:
    """Words of the comment line of a structure."""
    block = predictions.structures
    words = [periodic_word(block.pbc[index]), f"{FRAME}={block.frames[index]}"]
    words += [f"{key}={joined(values[index], NUMBER)}" for key, values in entries.items()]
    if block.has_energy[index]:
        words.append(f"REF_energy={joined(block.energy[index], NUMBER)}")
    if block.has_stress[index]:
        words.append(f"REF_stress={joined(block.stress[index], NUMBER)}")
    texts = {"group": block.groups[index], MODEL: predictions.name}
    return words + [f"{key}={text_word(text)}" for key, text in texts.items() if text]
