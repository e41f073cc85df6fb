import json
from dataclasses import replace

import numpy as np
import pytest

from huefield.core.structure import Block
from huefield.evaluation.bootstrap import Resampling, interval_of_mean
from huefield.evaluation.paper_metrics import PaperMetrics, paper_metrics
from huefield.evaluation.slices import breakdown, summarise
from huefield.evaluation.summaries import summary
from huefield.predict.marginals import EnergyForcesMarginals, Marginals
from huefield.predict.predictions import Predictions
from huefield.support.plain import plain
from tests.predict.helpers import changed


def _predictions(groups: tuple[str, ...], seed: int = 0) -> Predictions:
    """Molecules of three to eight atoms; the third has no energy, the fourth no forces."""
    rng = np.random.default_rng(seed)
    n = len(groups)
    sizes = rng.integers(3, 9, n)
    atoms = int(sizes.sum())
    with_energy, with_forces = np.arange(n) != 2, np.arange(n) != 3
    zeros = np.zeros((n, 3, 3))
    forces = rng.standard_normal((atoms, 3)) * np.repeat(with_forces, sizes)[:, None]
    block = Block(
        sizes, rng.choice(np.array([1, 6, 8], np.uint8), atoms), rng.random((atoms, 3)), zeros, np.zeros((n, 3), bool),
        rng.standard_normal(n), with_energy, forces, with_forces, zeros, np.zeros(n, bool), groups,
        np.arange(n), "test",
    )  # fmt: skip
    energy = Marginals(rng.standard_normal(n), rng.gamma(2.0, 1.0, n))
    predicted_forces = Marginals(rng.standard_normal((atoms, 3)), rng.gamma(2.0, 1.0, (atoms, 3)))
    return Predictions("model", block, EnergyForcesMarginals(energy, predicted_forces))


@pytest.fixture
def predictions() -> Predictions:
    return _predictions(("a", "b", "") * 20)


def _forces(predictions: Predictions, atoms: np.ndarray, bins: int = 10) -> PaperMetrics:
    assert predictions.forces is not None
    error = (predictions.structures.forces - predictions.forces.mean)[atoms]
    return paper_metrics(error.ravel(), predictions.forces.variance[atoms].ravel(), bins)


def _same(found: PaperMetrics | None, expected: PaperMetrics) -> None:
    assert found is not None
    assert found.remarks == expected.remarks
    numbers = (np.array(list(vars(scores).values())[:-1], float) for scores in (found, expected))
    np.testing.assert_allclose(*numbers, rtol=1e-12)


def test_elements_are_parts_of_the_observed_atoms(predictions: Predictions) -> None:
    parts = [part for part in breakdown(predictions) if part.kind == "element"]
    assert [part.label for part in parts] == ["H", "C", "O"]
    for part, number in zip(parts, (1, 6, 8), strict=True):
        assert part.energy is None
        chosen = predictions.atoms_observed & (predictions.structures.atomic_numbers == number)
        _same(part.forces, _forces(predictions, chosen))


def test_magnitudes_are_quantiles_of_the_observed_forces(predictions: Predictions) -> None:
    parts = [part for part in breakdown(predictions, bins=4) if part.kind == "force magnitude"]
    magnitude = np.linalg.norm(predictions.structures.forces, axis=1)
    observed = np.flatnonzero(predictions.atoms_observed)
    rows = np.array_split(observed[np.argsort(magnitude[observed])], 4)
    for part, chosen in zip(parts, rows, strict=True):
        inside = magnitude[chosen]
        assert part.label == f"{inside.min():.3g} to {inside.max():.3g} eV/Å"
        _same(part.forces, _forces(predictions, chosen, bins=4))


def test_groups_have_energies_and_forces(predictions: Predictions) -> None:
    parts = [part for part in breakdown(predictions) if part.kind == "group"]
    assert [part.label for part in parts] == ["no group", "a", "b"]
    assert predictions.energy is not None
    for part, name in zip(parts, ("", "a", "b"), strict=True):
        chosen = np.array(predictions.structures.groups) == name
        atoms = chosen[predictions.structures.owners] & predictions.atoms_observed
        _same(part.forces, _forces(predictions, atoms))
        chosen &= predictions.structures.has_energy
        error = predictions.structures.energy - predictions.energy.mean
        _same(part.energy, paper_metrics(error[chosen], predictions.energy.variance[chosen], 10))


def test_data_sets_come_first_and_have_energies_and_forces(predictions: Predictions) -> None:
    assert all(part.kind != "data set" for part in breakdown(predictions))
    tags = np.array(["b", "a", "a"] * 20)
    tagged = replace(predictions, structures=replace(predictions.structures, tags=tuple(tags.tolist())))
    parts = breakdown(tagged)[:2]
    assert [(part.kind, part.label) for part in parts] == [("data set", "a"), ("data set", "b")]
    for part in parts:
        of_set = tags == part.label
        atoms = predictions.atoms_observed & of_set[predictions.structures.owners]
        _same(part.forces, _forces(predictions, atoms))
        found = predictions.observed_energies()
        assert found is not None
        rows = of_set[found.structure]
        _same(part.energy, paper_metrics(found.error[rows], found.variance[rows], 10))


def test_small_groups_are_taken_together() -> None:
    groups = tuple(f"large {i:02}" for i in range(20)) * 2 + tuple(f"small {i}" for i in range(5))
    found = _predictions(groups)
    parts = [part for part in breakdown(found) if part.kind == "group"]
    assert [part.label for part in parts] == [f"large {i:02}" for i in range(20)] + ["5 smaller groups together"]
    assert [part.energy.count for part in parts if part.energy is not None] == [2, 2, 1, *[2] * 17, 5]


def test_parts_without_anything_observed_are_none() -> None:
    parts = [part for part in breakdown(_predictions(("a", "a", "b", "c"))) if part.kind == "group"]
    assert [(part.label, part.energy is None, part.forces is None) for part in parts] == [
        ("a", False, False),
        ("b", True, False),
        ("c", False, True),
    ]


def test_structures_without_groups_have_none() -> None:
    assert {part.kind for part in breakdown(_predictions(("",) * 9))} == {"element", "force magnitude"}


def test_everything_together(predictions: Predictions) -> None:
    found = summarise(predictions, bins=5, resamples=20, seed=3)
    for observed, part in (
        (predictions.observed_energies(), found.energy),
        (predictions.observed_forces(), found.forces),
    ):
        assert observed is not None
        assert part is not None
        columns = (observed.mean, observed.variance, observed.target)
        expected = summary(*columns, bins=5, structure=observed.structure, resamples=20, seed=3)
        assert part.as_dict() == expected.as_dict()
    assert found.name == "model"
    assert found.joint_nll is None
    assert found.breakdown == breakdown(predictions, bins=5)


def test_every_part_uses_the_tails_of_its_quantity(predictions: Predictions) -> None:
    assert predictions.energy is not None
    assert predictions.forces is not None
    marginals = {"energy": replace(predictions.energy, dof=5.0), "forces": replace(predictions.forces, dof=3.1)}
    with_tails = changed(predictions, **marginals)
    found = summarise(with_tails, resamples=20)
    for observed, part in (
        (with_tails.observed_energies(), found.energy),
        (with_tails.observed_forces(), found.forces),
    ):
        assert observed is not None
        assert part is not None
        columns = (observed.mean, observed.variance, observed.target)
        expected = summary(*columns, structure=observed.structure, resamples=20, dof=observed.dof)
        assert part.as_dict() == expected.as_dict()
        assert part.dof == observed.dof
    assert found.forces_per_atom is not None
    assert found.forces_per_atom.dof is None
    for part in found.breakdown:
        if part.kind == "element":
            number = {"H": 1, "C": 6, "O": 8}[part.label]
            chosen = predictions.atoms_observed & (predictions.structures.atomic_numbers == number)
            error = (predictions.structures.forces - predictions.forces.mean)[chosen].ravel()
            _same(part.forces, paper_metrics(error, predictions.forces.variance[chosen].ravel(), 10, 3.1))
        elif part.kind == "group":
            chosen = np.array(predictions.structures.groups) == part.label.replace("no group", "")
            chosen &= predictions.structures.has_energy
            error = predictions.structures.energy - predictions.energy.mean
            _same(part.energy, paper_metrics(error[chosen], predictions.energy.variance[chosen], 10, 5.0))


def test_forces_of_atoms(predictions: Predictions) -> None:
    found = summarise(predictions)
    assert found.forces is not None
    assert found.forces_per_atom is not None
    assert predictions.forces is not None
    assert found.forces_per_atom.count == found.forces.count / 3
    for name in ("rmse", "rmv"):
        assert getattr(found.forces_per_atom, name) == pytest.approx(getattr(found.forces, name), rel=1e-12)
    error = (predictions.structures.forces - predictions.forces.mean)[predictions.atoms_observed]
    assert found.forces_per_atom.mae == pytest.approx(np.linalg.norm(error, axis=1).mean() / np.sqrt(3), rel=1e-12)


def test_single_precision_and_all_observed() -> None:
    found = _predictions(("a",) * 3)
    assert found.forces is not None
    single = Marginals(found.forces.mean.astype(np.float32), found.forces.variance.astype(np.float32))
    forces = summarise(changed(found, forces=single)).forces
    expected = summarise(found).forces
    assert forces is not None
    assert expected is not None
    assert forces.nll == pytest.approx(expected.nll, rel=1e-5)


@pytest.mark.parametrize("kind", ["energy", "forces"])
def test_models_that_say_nothing_about_one_of_them(predictions: Predictions, kind: str) -> None:
    found = summarise(changed(predictions, **{kind: None}))
    assert getattr(found, kind) is None
    assert all(getattr(part, kind) is None for part in found.breakdown)
    assert (found.forces_per_atom is None) == (kind == "forces")
    assert {part.kind for part in found.breakdown} == (
        {"group"} if kind == "forces" else {"element", "force magnitude", "group"}
    )


def test_joint_nll_is_the_mean_of_what_is_known(predictions: Predictions) -> None:
    joint = np.full(60, np.nan)
    assert summarise(changed(predictions, joint_nll=joint)).joint_nll is None
    joint[:2] = [1.0, 4.0]
    assert summarise(changed(predictions, joint_nll=joint)).joint_nll == 2.5
    joint[2] = np.inf
    found = summarise(changed(predictions, joint_nll=joint))
    assert found.joint_nll == 2.5
    assert found.remarks == ("joint_nll: infinite for 1 of 3 structures, which are excluded",)
    assert found.joint_nll_interval is None


def test_the_joint_nll_has_an_interval(predictions: Predictions) -> None:
    joint = np.append(np.random.default_rng(0).standard_normal(58), [np.nan, np.inf])
    found = summarise(changed(predictions, joint_nll=joint), resamples=50, seed=3)
    assert found.joint_nll_interval == interval_of_mean("joint_nll", joint[:58], Resampling(50, 3, 10))
    assert found.as_dict()["joint_nll_interval"] == plain(found.joint_nll_interval)


def test_one_joint_nll_has_no_interval_and_a_remark(predictions: Predictions) -> None:
    joint = np.append(np.full(59, np.nan), 1.0)
    found = summarise(changed(predictions, joint_nll=joint), resamples=50)
    assert (found.joint_nll, found.joint_nll_interval) == (1.0, None)
    assert found.remarks == ("joint_nll: interval: a single structure cannot be resampled",)


def test_one_structure_only() -> None:
    found = summarise(_predictions(("a",)), resamples=10)
    assert found.energy is not None
    assert found.energy.mae == found.energy.rmse
    assert "intervals: a single structure cannot be resampled" in found.energy.remarks
    json.dumps(found.as_dict(), allow_nan=False)


def test_json_says_what_was_left_out(predictions: Predictions) -> None:
    found = summarise(replace(predictions, left_out={"NaN energy": 2}))
    read = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert read["left_out"] == {"NaN energy": 2}
    assert read["breakdown"][0]["kind"] == "element"
    assert read["breakdown"][0]["forces"]["count"] == found.breakdown[0].forces.count  # type: ignore[union-attr]


def _unpredicted(predictions: Predictions, structure: int) -> Predictions:
    """The same without predictions of one structure."""
    assert predictions.energy is not None
    assert predictions.forces is not None
    energy, forces = predictions.energy.mean.copy(), predictions.forces.mean.copy()
    energy[structure] = np.nan
    forces[predictions.structures.owners == structure] = np.nan
    return changed(
        predictions, energy=replace(predictions.energy, mean=energy), forces=replace(predictions.forces, mean=forces)
    )


def test_what_was_not_predicted_is_left_out_and_counted(predictions: Predictions) -> None:
    """As if it had not been observed, but for a remark."""
    found = summarise(_unpredicted(predictions, 5))
    block = predictions.structures
    others = np.arange(60) != 5
    hidden = replace(block, has_energy=block.has_energy & others, has_forces=block.has_forces & others)
    expected = summarise(replace(predictions, structures=hidden))
    assert found.remarks == (
        "energies: not predicted for 1 of 59 structures with observed values",
        "forces: not predicted for 1 of 59 structures with observed values",
    )
    assert {**found.as_dict(), "remarks": []} == expected.as_dict()


def test_nothing_predicted_is_nothing_judged(predictions: Predictions) -> None:
    for structure in range(60):
        predictions = _unpredicted(predictions, structure)
    found = summarise(predictions)
    assert (found.energy, found.forces, found.forces_per_atom) == (None, None, None)
    assert {part.kind for part in found.breakdown} == {"group"}
    assert all(part.energy is None and part.forces is None for part in found.breakdown)


def test_variances_that_are_not_numbers_are_named(predictions: Predictions) -> None:
    assert predictions.forces is not None
    variance = predictions.forces.variance.copy()
    variance[1, 2] = np.inf
    with pytest.raises(ValueError, match=r"variance must be finite, but is inf at index \(1, 2\)"):
        summarise(changed(predictions, forces=replace(predictions.forces, variance=variance)))
