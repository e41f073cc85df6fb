"""Predictions as extended xyz, under the names that read_predictions and other tools know."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ase.data import chemical_symbols
from jaxtyping import Float

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
    ``_epistemic`` behind that; what was observed is ``REF_energy``, ``REF_forces`` and ``REF_stress``. The file is
    written whole or not at all, frame by frame. What was left out is not written.
    """
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(_frames(predictions))


def _frames(predictions: Predictions) -> Iterator[str]:
    block = predictions.structures
    entries, columns = _entries(predictions), _columns(predictions)
    for index in range(len(block)):
        atoms = slice(block.starts[index], block.starts[index + 1])
        here = {key: value for key, value in columns.items() if key != "REF_forces" or block.has_forces[index]}
        yield f"{block.sizes[index]}\n{_comment(predictions, index, entries, here)}\n"
        yield _rows(block, atoms, here)


def _entries(predictions: Predictions) -> Entries:
    """Numbers of each structure."""
    entries: Entries = _deviations("energy", predictions.energy)
    if predictions.joint_nll is not None:
        entries[JOINT_NLL] = predictions.joint_nll
    return entries


def _columns(predictions: Predictions) -> Columns:
    """Vectors of each atom, behind the positions."""
    return {**_deviations("forces", predictions.forces), "REF_forces": predictions.structures.forces}


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
