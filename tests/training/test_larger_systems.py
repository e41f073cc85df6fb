"""A model of small clusters is less certain of a liquid than of a molecule: trained for real, with GFN2-xTB labels."""

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

import huefield
from huefield.ase.calculator import structure_of
from huefield.make_data.oracles import TbliteOracle

SPACING = 3.1  # Å between molecules of liquid water
SETTINGS = ["members=2", "stages.0.steps=150", "stages.1.steps=60", "stages.2.steps=90"]


def waters(count: int, rng: np.random.Generator) -> Atoms:
    """Molecules with random orientations near the points of a grid."""
    side = int(np.ceil(count ** (1 / 3)))
    points = np.stack(np.meshgrid(*[np.arange(side)] * 3), -1).reshape(-1, 3)[:count] * SPACING
    all_of_them = Atoms()
    for point in points:
        one = molecule("H2O")
        one.rattle(0.05, rng=rng)
        one.euler_rotate(*rng.uniform(0, 360, 3), center="COM")
        one.translate(point - one.get_center_of_mass() + rng.normal(0, 0.1, 3))
        all_of_them += one
    return all_of_them


def labelled(atoms: Atoms) -> Atoms:
    found = TbliteOracle().label(structure_of(atoms))
    atoms.info["energy"] = found.energy
    atoms.arrays["forces"] = found.forces
    return atoms


@pytest.mark.slow
def test_a_box_of_64_waters_is_less_certain_than_one_water(tmp_path: Path) -> None:
    pytest.importorskip("tblite")
    rng = np.random.default_rng(0)
    clusters = [labelled(waters(int(rng.integers(1, 5)), rng)) for _ in range(120)]
    trained = huefield.train("tiny", data=clusters, out=tmp_path / "run", overrides=SETTINGS, report=lambda event: None)
    calc = huefield.Calculator(huefield.calibrate(trained), warn_above=None)
    box = waters(64, rng)
    box.set_cell([4 * SPACING] * 3)
    box.pbc = True
    one, many = (calc.get_property("energy_uncertainty", atoms) for atoms in (waters(1, rng), box))
    assert many > 8 * one  # √64, if errors of molecules were independent; and forces do not become certain:
    forces = [np.sqrt(np.mean(calc.get_property("forces_uncertainty", a) ** 2)) for a in (waters(1, rng), box)]
    assert forces[1] > 0.5 * forces[0]
