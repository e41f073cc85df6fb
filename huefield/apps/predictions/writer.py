"""Predictions as extended xyz, under the names that read_predictions and other tools know."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ase.data import chemical_symbols
from jaxtyping import Bool, Float

from huefield.apps.predictions.frames import FRAME
from huefield.apps.predictions.keys import ALEATORIC, EPISTEMIC, JOINT_NLL, MODEL
from huefield.apps.predictions.xyz import is_plain_text
from huefield.core.files import replacing
from huefield.core.structure import Block
from huefield.evaluation.predictions import Marginals, Predictions

NUMBER = "%.17g"
"""Every double comes back as it was."""

Columns = dict[str, Float[np.ndarray, "A 3"]]
Entries = dict[str, Float[np.ndarray, "n ..."]]


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write structures with predictions (``energy``, ``forces``), standard deviations and reference values.

    Uncertainties are ``energy_uncertainty`` and ``forces_uncertainty``, their parts have ``_aleatoric`` and
    ``_epistemic`` behind that; what was observed is ``REF_energy``, ``REF_forces`` and ``REF_stress``. ``frame`` is the
    number of a structure in its source. The file is written whole or not at all, frame by frame. What was left out is
    not written, nor what was not predicted of a structure (a mean of NaN).
    """
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(_frames(predictions))


def _frames(predictions: Predictions) -> Iterator[str]:
    block = predictions.structures
    energies, forces = _deviations("energy", predictions.energy), _deviations("forces", predictions.forces)
    joint: Entries = {} if predictions.joint_nll is None else {JOINT_NLL: predictions.joint_nll}
    observed: Columns = {"REF_forces": block.forces}
    with_energy, with_forces = _predicted(predictions)
    for index in range(len(block)):
        atoms = slice(block.starts[index], block.starts[index + 1])
        entries = {**(energies if with_energy[index] else {}), **joint}
        columns = {**(forces if with_forces[index] else {}), **(observed if block.has_forces[index] else {})}
        yield f"{block.sizes[index]}\n{_comment(predictions, index, entries, columns)}\n"
        yield _rows(block, atoms, columns)


def _predicted(predictions: Predictions) -> tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Structures whose energy was predicted, and those with all forces."""
    energy, forces, count = predictions.energy, predictions.forces, len(predictions)
    with_energy = np.zeros(count, bool) if energy is None else np.isfinite(energy.mean)
    if forces is None:
        return with_energy, np.zeros(count, bool)
    missing = ~np.isfinite(forces.mean).all(1)
    return with_energy, np.bincount(predictions.structures.owners, missing, count) == 0


def _deviations(quantity: str, marginals: Marginals | None) -> dict[str, Float[np.ndarray, "*n"]]:
    """Means, and standard deviations of what is known of the uncertainty."""
    if marginals is None:
        return {}
    name = f"{quantity}_uncertainty"
    variances = {
        name: marginals.variance,
        name + ALEATORIC: marginals.aleatoric_var,
        name + EPISTEMIC: marginals.epistemic_var,
    }
    return {quantity: marginals.mean, **{key: np.sqrt(var) for key, var in variances.items() if var is not None}}


def _comment(predictions: Predictions, index: int, entries: Entries, columns: Columns) -> str:
    block = predictions.structures
    words = [f"Properties=species:S:1:pos:R:3{''.join(f':{name}:R:3' for name in columns)}"]
    if block.cells[index].any():
        words.insert(0, f'Lattice="{_joined(block.cells[index])}"')
    words.append('pbc="' + " ".join("T" if periodic else "F" for periodic in block.pbc[index]) + '"')
    words.append(f"{FRAME}={block.frames[index]}")
    words += [f"{key}={NUMBER % values[index]}" for key, values in entries.items()]
    if block.has_energy[index]:
        words.append(f"REF_energy={NUMBER % block.energy[index]}")
    if block.has_stress[index]:
        words.append(f'REF_stress="{_joined(block.stress[index])}"')
    texts = {"group": block.groups[index], MODEL: predictions.name}
    words += [f"{key}={_text(text)}" for key, text in texts.items() if text]
    return " ".join(words)


def _rows(block: Block, atoms: slice, columns: Columns) -> str:
    """The lines of the atoms; one format for all of them is twice as fast as number by number."""
    values = np.hstack([block.positions[atoms], *(column[atoms] for column in columns.values())])
    row = " ".join([NUMBER] * values.shape[1])
    symbols = (chemical_symbols[number] for number in block.atomic_numbers[atoms])
    return "".join(f"{symbol} {row}\n" for symbol in symbols) % tuple(values.ravel().tolist())


def _joined(matrix: Float[np.ndarray, "3 3"]) -> str:
    return " ".join(NUMBER % value for value in matrix.ravel())


def _text(text: str) -> str:
    """Text that ASE reads back as the same text."""
    if is_plain_text(text):
        return text
    quoted = json.dumps(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"_JSON {quoted}"'
