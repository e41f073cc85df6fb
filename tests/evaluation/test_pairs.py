"""Differences of energies within groups, and intervals that hold what they promise."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from huefield.core.structure import Block
from huefield.data.dataset import Part, open_part
from huefield.evaluation.calibrate import calibrate
from huefield.evaluation.pairs import EnergyPairs, drawn_pairs, energy_pairs, fit_differences
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from tests.potentials.cases import randomised
from tests.training.helpers import POTENTIAL, write_waters
from tests.training.helpers import waters as waters_of

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def model() -> Ensemble:
    potential = {**POTENTIAL, "elements": ["H", "O"]}
    config = ForceField.Config.model_validate({"potential": potential, "noise": {"kind": "colored"}})
    made = randomised(Ensemble.build(config, 2, key=jax.random.key(0)))
    return made.with_atom_energies({1: 0.0, 8: -2000.0})


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Part:
    return open_part("waters", [write_waters(tmp_path_factory.mktemp("pairs") / "waters.xyz", 64)])


@pytest.fixture(scope="module")
def waters(part: Part) -> Block:
    return part.block(np.arange(len(part)))


def test_pairs_are_those_of_groups_with_energies(model: Ensemble, waters: Block) -> None:
    groups = tuple("ab"[index % 2] for index in range(64))
    has_energy = np.arange(64) < 20
    found = energy_pairs(model, replace(waters, groups=groups, has_energy=has_energy))
    assert len(found) == 2 * 45
    assert found.groups == ("a",) * 45 + ("b",) * 45
    assert found.structures == 20
    assert (found.independent > 0).all()


def test_structures_of_two_data_sets_are_no_pair(waters: Block) -> None:
    """Their true energies are those of two methods."""
    tags = tuple("ab"[index % 2] for index in range(len(waters)))
    drawn = drawn_pairs(replace(waters, tags=tags), np.random.default_rng(0))
    assert len(drawn)
    assert all(tags[first] == tags[second] for first, second in drawn.tolist())
    assert any(tags[first] != tags[second] for first, second in drawn_pairs(waters, np.random.default_rng(0)).tolist())


def test_crystals_are_compared_in_one_cell(waters: Block) -> None:
    """Energies of cells of different shape have no common error; boxes around molecules do not matter."""
    cells = np.tile(9 * np.eye(3), (64, 1, 1))
    cells[::2] *= 1.01
    boxed = replace(waters, cells=cells)
    crystals = replace(boxed, pbc=np.ones((64, 3), bool))
    rng = np.random.default_rng(0)
    assert np.ptp(drawn_pairs(crystals, rng) % 2, axis=1).max() == 0
    assert np.ptp(drawn_pairs(boxed, rng) % 2, axis=1).max() == 1


def test_there_are_not_too_many_pairs(waters: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = tuple("abc"[min(index // 4, 2)] for index in range(64))
    block = replace(waters, groups=groups)
    drawn = drawn_pairs(block, np.random.default_rng(0))
    assert len(drawn) == 2 * 6 + 300
    assert len(np.unique(drawn, axis=0)) == len(drawn)
    assert (drawn[:, 0] < drawn[:, 1]).all()
    assert all(groups[a] == groups[b] for a, b in drawn)
    monkeypatch.setattr("huefield.evaluation.pairs.MOST_PAIRS_IN_ALL", 100)
    fewer = drawn_pairs(block, np.random.default_rng(0))
    assert len(fewer) == 100
    assert len(np.unique(fewer)) > 40
    np.testing.assert_array_equal(fewer, drawn_pairs(block, np.random.default_rng(0)))


def test_errors_are_predicted_less_true_differences(model: Ensemble, waters: Block) -> None:
    two = waters.block(np.array([3, 7]))
    found, expected = energy_pairs(model, two), model.energy_difference(waters[3], waters[7])
    assert len(found) == 1
    true = waters.energy[7] - waters.energy[3]
    assert found.error[0] == pytest.approx(expected.value - true, abs=1e-4)
    assert found.deviation[0] == pytest.approx(expected.uncertainty, rel=1e-3)


def made_up(count: int, rng: np.random.Generator) -> EnergyPairs:
    """Heavy tails."""
    deviation = rng.uniform(0.1, 1.0, count)
    return EnergyPairs(deviation * rng.standard_t(3, count), deviation, 2 * deviation, ("",) * count, count)


def test_intervals_hold_what_they_promise() -> None:
    widths = fit_differences(made_up(4000, RNG))
    assert widths is not None
    new = made_up(4000, RNG)
    for share in (0.5, 0.68, 0.95):
        assert new.held(widths.width(share)) == pytest.approx(share, abs=0.03)


def test_too_few_pairs_say_nothing() -> None:
    assert fit_differences(made_up(20, RNG)) is None
    assert fit_differences(replace(made_up(100, RNG), structures=29)) is None
    still = replace(made_up(100, RNG), error=np.zeros(100))
    assert fit_differences(still) is None


@pytest.mark.slow
def test_a_calibration_comes_with_differences(model: Ensemble, part: Part) -> None:
    found = calibrate(model, part, "scale")
    changed, done = found.ensemble, found.check
    assert changed.calibration is not None
    assert changed.calibration.differences is not None
    assert changed.typical is not None
    changes = {each.nominal: each for each in done.coverage()["energy differences"]}
    assert set(changes) == {0.5, 0.68, 0.9, 0.95}
    assert 0.3 < changes[0.68].after <= 1
    assert done.pairs is not None
    a, b = part.block(np.array([0, 1]))[0], part.block(np.array([0, 1]))[1]
    plain = changed.with_calibration(changed.calibration.model_copy(update={"differences": None}))
    raw, calibrated = plain.energy_difference(a, b), changed.energy_difference(a, b)
    wide = changed.calibration.differences.width
    assert calibrated.half_width(0.95) == pytest.approx(wide(0.95) * raw.uncertainty)
    assert calibrated.uncertainty == pytest.approx(wide(0.6826894921370859) * raw.uncertainty)


def test_too_few_structures_leave_differences_alone(model: Ensemble, part: Part) -> None:
    few = replace(part, indices=part.indices[:12])
    found = calibrate(model, few, "scale")
    changed, done = found.ensemble, found.check
    assert changed.calibration is not None
    assert changed.calibration.differences is None
    assert "differences of energies" not in done.coverage()


def test_without_energies_forces_are_calibrated(model: Ensemble, tmp_path: Path) -> None:
    frames = waters_of(16)
    for atoms in frames:
        atoms.calc = SinglePointCalculator(atoms, forces=atoms.get_forces())
    write(tmp_path / "forces.xyz", frames, format="extxyz")
    found = calibrate(model, open_part("forces", [tmp_path / "forces.xyz"]), "scale")
    changed, done = found.ensemble, found.check
    assert changed.calibration is not None
    assert changed.calibration.forces is not None
    assert changed.calibration.energy is changed.calibration.differences is None
    assert done.pairs is None
