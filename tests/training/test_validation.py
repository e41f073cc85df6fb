"""Metrics against sums over all structures at once, in numpy; some structures lack energies or forces."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from huefield.core.structure import TAG
from huefield.data.batches.prepared import Prepared
from huefield.data.dataset import open_part
from huefield.data.references import AtomicReferences
from huefield.evaluation.paper_metrics import paper_metrics
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.predict import predict_part
from huefield.support.defaults import BINS
from huefield.training import NLLStage, SquaredErrorStage
from huefield.training.feed import validation_batches
from huefield.training.mesh import Layout, MeshConfig
from huefield.training.outcome import EnsembleScores
from huefield.training.stages import AbstractStage
from huefield.training.validation import MemberMetrics, Validator, metrics_of
from tests.training.helpers import POTENTIAL, waters

SIZE, BATCH, MEMBERS = 7, 3, 2


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    path = tmp_path_factory.mktemp("data") / "waters.xyz"
    frames = waters(SIZE)
    energy, forces = frames[0].get_potential_energy(), frames[1].get_forces()
    frames[0].calc = SinglePointCalculator(frames[0], energy=energy)
    frames[1].calc = SinglePointCalculator(frames[1], forces=forces)
    write(path, frames, format="extxyz")
    part = open_part("train", [path])
    return Prepared.of(part, 3.0, AtomicReferences({TAG: {1: 0.0, 8: -2000.0}}).of_block)


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    config = {"potential": {**POTENTIAL, "elements": ["H", "O"]}, "noise": {"kind": "colored"}}
    with jax.enable_x64(True):
        return Ensemble.build(ForceField.Config.model_validate(config), MEMBERS, key=jax.random.key(3))


@pytest.fixture(scope="module")
def found(data: Prepared, ensemble: Ensemble) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Labels, and means and variances of each member, for energies and for force components."""
    with jax.enable_x64(True):
        batch = data.batch(np.arange(SIZE), data.shape_for([np.arange(SIZE)], ()))
        members = eqx.filter_jit(eqx.filter_vmap(lambda member: member(batch.graph)))(ensemble.members)
        spread = eqx.filter_vmap(lambda d: d.variance())(members)
    masks = {"energy": np.asarray(batch.labels.energy_mask), "forces": np.asarray(batch.labels.forces_mask)}
    assert (masks["energy"].sum(), masks["forces"].sum()) == (SIZE - 1, 3 * (SIZE - 1))

    def of(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        values = getattr(batch.labels, kind), getattr(members.mean, kind), getattr(spread, kind)
        label, mean, variance = (np.asarray(value) for value in values)
        return label[masks[kind]].ravel(), *(v[:, masks[kind]].reshape(MEMBERS, -1) for v in (mean, variance))

    return {kind: of(kind) for kind in ("energy", "forces")}


def metrics(label: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> dict[str, Any]:
    error = label - mean
    return {
        "mae": np.abs(error).mean(-1),
        "rmse": np.sqrt((error**2).mean(-1)),
        "nll": 0.5 * (error**2 / variance + np.log(2 * np.pi * variance)).mean(-1),
        "rzv": (error / np.sqrt(variance)).std(-1),
        "rmv": np.sqrt(variance.mean(-1)),
    }


def validated(data: Prepared, ensemble: Ensemble, stage: AbstractStage) -> MemberMetrics:
    layout = Layout(MEMBERS, MeshConfig())
    batches = validation_batches(data, layout, BATCH)
    assert len(batches) == 3
    return Validator(batches, layout, "auto", True)(ensemble.members, stage)


@pytest.mark.usefixtures("x64")
def test_scores_of_members_are_those_of_all_structures_at_once(data: Prepared, ensemble: Ensemble, found: Any) -> None:
    scores = validated(data, ensemble, NLLStage(steps=1, reduction="averages", force_weight=3.0))
    for name, kind in (("energy", "energy"), ("force", "forces")):
        for metric, expected in metrics(*found[kind]).items():
            np.testing.assert_allclose(getattr(scores, f"{name}_{metric}"), expected, rtol=1e-9)
    expected = scores.energy_nll + 3.0 * scores.force_nll
    np.testing.assert_allclose(scores.criterion, expected, rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_scores_of_the_ensemble_are_those_of_the_mixture(data: Prepared, ensemble: Ensemble, found: Any) -> None:
    totals = ensemble.with_atom_energies({1: 0.0, 8: -2000.0})
    scores = EnsembleScores.of(predict_part(totals, data.part, "x"))
    for kind, (label, means, variances) in found.items():
        entry = getattr(scores, kind)
        assert entry.count == label.size
        for metric, expected in metrics(label, means.mean(0), variances.mean(0) + means.var(0)).items():
            assert getattr(entry, metric) == pytest.approx(float(expected), rel=1e-9)


def test_nothing_is_said_about_noise_that_is_not_trained() -> None:
    class Total:
        criterion, criterion_counts = np.array([[6.0]]), np.array([[3.0]])
        counts, absolute, squared = np.array([[2.0, 0.0]]), np.array([[4.0, 0.0]]), np.array([[18.0, 0.0]])
        nll = z = squared_z = variance = np.zeros((1, 2))

    scores = metrics_of(Total(), with_noise=False)
    assert (scores.criterion[0], scores.energy_mae[0], scores.energy_rmse[0]) == (2.0, 2.0, 3.0)
    assert np.isnan([scores.energy_nll[0], scores.energy_rzv[0], scores.force_mae[0]]).all()
    assert not SquaredErrorStage(steps=1).trains_noise


def test_errors_of_nothing_and_without_noise() -> None:
    nothing = paper_metrics(np.zeros(0), np.zeros(0), BINS)
    assert nothing.count == 0
    assert np.isnan([nothing.mae, nothing.rmse, nothing.nll, nothing.rzv, nothing.rmv]).all()
    plain = paper_metrics(np.array([3.0, -4.0]), np.zeros(2), BINS)
    assert (plain.mae, plain.rmse) == (3.5, pytest.approx(np.sqrt(12.5)))
    assert np.isnan(plain.nll)


def test_one_structure_has_no_spread_of_z_scores() -> None:
    found = paper_metrics(np.array([0.3]), np.array([0.1]), BINS)
    assert (found.count, found.rmse) == (1, pytest.approx(0.3))
    assert np.isnan(found.rzv)
