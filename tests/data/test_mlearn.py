"""Stress labels of real crystals: their sign, unit and order agree with energies of strained cells."""

import re
from itertools import pairwise

import ase.io
import numpy as np
import pytest
from scipy.linalg import logm

from huefield.core.structure import Structure, cell_volumes
from huefield.data.readers.ase_files import AseReader
from tests.data.readers.test_detect import real_file

KBAR = 1 / 1602.1766208
"""eV/Å³."""
SETTINGS = {"stress_keys": ["virial_stress"], "stress_order": "vasp", "stress_scale": -KBAR, "group_key": "group"}


def strained(mode: int, **changes: object) -> list[Structure]:
    """Silicon crystals of one mode of strain, by its amount."""
    reader, found = AseReader.model_validate({**SETTINGS, **changes}), {}
    for atoms in ase.io.read(real_file("mlearn/Si_training.xyz"), index=":"):
        text = re.search(rf"mode {mode}, strain ([-.0-9]+)", atoms.info["description"])
        if text:
            found[float(text.group(1))] = reader.convert(atoms)
    return [structure for _, structure in sorted(found.items())]


def works(crystals: list[Structure]) -> tuple[np.ndarray, np.ndarray]:
    """Energy differences of neighbouring strains, and ∫ W : dε by the trapezoidal rule."""
    differences, found = [], []
    for first, second in pairwise(crystals):
        strain = logm(np.linalg.solve(first.cell, second.cell)).real
        derivatives = [each.stress * cell_volumes(each.cell) for each in (first, second)]
        differences.append(second.energy - first.energy)
        found.append(0.5 * np.sum((derivatives[0] + derivatives[1]) * strain))
    return np.array(differences), np.array(found)


@pytest.mark.parametrize("mode", range(6))
def test_stresses_are_strain_derivatives_of_energies(mode: int) -> None:
    """Within 3 % of the largest difference; atoms of sheared crystals were not relaxed, so no work is lost."""
    expected, found = works(strained(mode))
    assert len(expected) == 8
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("mode", "wrong"),
    [(0, {"stress_scale": KBAR}), (3, {"stress_scale": KBAR}), (4, {"stress_order": "ase"})],
    ids=["sign", "sign of shear", "order"],
)
def test_wrong_statements_show(mode: int, wrong: dict[str, object]) -> None:
    expected, found = works(strained(mode, **wrong))
    assert np.abs(found - expected).max() > 0.5 * np.abs(expected).max()


def test_a_stress_in_kbar_is_no_virial_in_ev() -> None:
    """The numbers are of similar size, which is why nothing is guessed: errors would be a quarter."""
    virials = {"stress_keys": [], "virial_keys": ["virial_stress"], "virial_sign": "-stress*volume"}
    expected, found = works(strained(0, **virials))
    assert 0.1 < np.abs(found - expected).max() / np.abs(expected).max() < 0.5
