from dataclasses import replace

import numpy as np
import pytest

from huefield.evaluation.report import selection
from huefield.evaluation.report.selection import StructureScores, choose_structures
from huefield.predict.marginals import EnergyForcesMarginals, Marginals
from huefield.predict.predictions import Predictions
from tests.evaluation.synthetic import predicted, waters
from tests.predict.helpers import changed


def by_hand() -> Predictions:
    """Two molecules of water: the first exact, of the second one atom off by (3, 0, 4) eV/Å and the energy by −2 eV."""
    block = waters(2)
    forces = block.forces.copy()
    forces[3] += [3.0, 0.0, 4.0]
    variance = np.repeat([1.0, 4.0], 9).reshape(6, 3)
    energy = Marginals(block.energy - [0, 2], np.array([9.0, 16.0]))
    return Predictions("m", block, EnergyForcesMarginals(energy, Marginals(forces, variance)))


def test_scores_by_hand() -> None:
    scores = StructureScores(by_hand())
    np.testing.assert_allclose(scores.energy_error, [0, 2], atol=1e-12)
    np.testing.assert_allclose(scores.energy_uncertainty, [3, 4])
    np.testing.assert_allclose(scores.atom_error, [0, 0, 0, 5, 0, 0], atol=1e-12)
    np.testing.assert_allclose(scores.atom_uncertainty, np.sqrt([3, 3, 3, 12, 12, 12]))
    np.testing.assert_allclose(scores.force_error, [0, np.sqrt(25 / 9)], atol=1e-12)
    np.testing.assert_allclose(scores.force_uncertainty, [1, 2])
    np.testing.assert_allclose(scores.worst_force_error, [0, 5], atol=1e-12)
    np.testing.assert_allclose(scores.worst_force_uncertainty, np.sqrt([3, 12]))


def test_what_was_not_observed_has_no_error() -> None:
    given = predicted(waters(3))
    block = replace(
        given.structures, has_energy=np.array([True, False, True]), has_forces=np.array([False, True, True])
    )
    scores = StructureScores(replace(given, structures=block))
    np.testing.assert_array_equal(np.isnan(scores.energy_error), [False, True, False])
    np.testing.assert_array_equal(np.isnan(scores.force_error), [True, False, False])
    np.testing.assert_array_equal(np.isnan(scores.worst_force_error), [True, False, False])
    assert np.isfinite(scores.force_uncertainty).all()


def test_what_was_not_predicted_has_no_score() -> None:
    scores = StructureScores(changed(predicted(waters(3)), energy=None, forces=None))
    for name in ("energy_error", "energy_uncertainty", "force_error", "force_uncertainty", "worst_force_error"):
        assert np.isnan(getattr(scores, name)).all()


def test_what_was_not_predicted_of_one_structure_is_not_known() -> None:
    given = by_hand()
    assert given.energy is not None
    assert given.forces is not None
    energy, forces = given.energy.mean * [1, np.nan], given.forces.mean.copy()
    forces[4, 1] = np.nan
    scores = StructureScores(
        changed(given, energy=replace(given.energy, mean=energy), forces=replace(given.forces, mean=forces))
    )
    for name in ("energy_error", "energy_uncertainty", "force_error", "force_uncertainty", "worst_force_error",
                 "worst_force_uncertainty"):  # fmt: skip
        np.testing.assert_array_equal(np.isnan(getattr(scores, name)), [False, True], name)
    np.testing.assert_array_equal(np.isnan(scores.atom_uncertainty), np.arange(6) == 4)


def test_few_structures_are_all_chosen() -> None:
    chosen = choose_structures(predicted(waters(7)), 7)
    np.testing.assert_array_equal(chosen.indices, np.arange(7))
    assert chosen.description == "all structures"


def test_the_extremes_are_chosen_and_the_rest_by_lot() -> None:
    given = predicted(waters(2000))
    scores = StructureScores(given)
    chosen = choose_structures(given, 50)
    assert len(chosen.indices) == len(set(chosen.indices.tolist())) == 50
    assert (np.diff(chosen.indices) > 0).all()
    for values in (scores.energy_error, scores.force_error, scores.energy_uncertainty, scores.force_uncertainty):
        assert set(np.argsort(-values)[:10]) <= set(chosen.indices)
    assert chosen.description == (
        "50 of 2 000 structures: those with the largest energy error, force error, energy uncertainty and force "
        "uncertainty, and a random selection of the others"
    )
    np.testing.assert_array_equal(chosen.indices, choose_structures(given, 50).indices)
    assert set(chosen.indices) != set(choose_structures(given, 50, seed=1).indices)


def test_a_model_without_uncertainties_is_ranked_by_errors_alone() -> None:
    given = predicted(waters(30), scale=0.0)
    assert choose_structures(given, 10).description == (
        "10 of 30 structures: those with the largest energy error and force error, and a random selection of the others"
    )


def test_nothing_known_leaves_the_lot() -> None:
    chosen = choose_structures(changed(predicted(waters(30)), energy=None, forces=None), 4)
    assert len(chosen.indices) == 4
    assert chosen.description == "4 of 30 structures: a random selection"


def test_too_many_atoms_for_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MOST_ATOMS", 30)
    given = predicted(waters(100))
    chosen = choose_structures(given, 50)
    assert len(chosen.indices) == 10
    assert np.argmax(StructureScores(given).energy_error) in chosen.indices


def test_one_large_structure_is_shown_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MOST_ATOMS", 2)
    chosen = choose_structures(predicted(waters(1)))
    np.testing.assert_array_equal(chosen.indices, [0])
    assert chosen.description == "the only structure"


@pytest.mark.parametrize(
    ("count", "limit", "message"),
    [(3, 0, "limit must be at least 1, but is 0: give the number"), (0, 5, "no structures to select from")],
)
def test_bad_input_is_named(count: int, limit: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_structures(predicted(waters(count)), limit)
