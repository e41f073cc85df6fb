"""What a run ends with."""

import math
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from huefield.core.structure import TAG, Block
from huefield.data import dataset
from huefield.data.batches.prepared import Prepared
from huefield.data.dataset import Part, open_part
from huefield.data.references import AtomicReferences
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.predict import batches, predict_part
from huefield.training import NLLStage, SquaredErrorStage
from huefield.training.outcome import Candidates, EnsembleScores, criterion, evaluated, select
from tests.training.helpers import write_waters

CUTOFF = 3.0
MODEL = {
    "potential": {
        "kind": "painn",
        "elements": ["H", "O"],
        "features": 4,
        "layers": 1,
        "radial_functions": 4,
        "cutoff_angstrom": CUTOFF,
    },
    "noise": {"kind": "colored"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    path = write_waters(tmp_path_factory.mktemp("data") / "waters.xyz")
    part = open_part("validation", [path])
    return Prepared.of(part, CUTOFF, AtomicReferences({TAG: {1: 0.0, 8: -2000.0}}).of_block)


def with_noise(levels: float) -> Ensemble:
    """Two members that differ only in their noise from those with other levels."""
    built = Ensemble.build(ForceField.Config.model_validate(MODEL), 2, key=jax.random.key(0))
    noise = eqx.filter_vmap(lambda one: one.noise.initialised(levels, levels))(built.members)
    members = eqx.tree_at(lambda m: m.noise, built.members, noise)
    return Ensemble(members).with_atom_energies({1: 0.0, 8: -2000.0})


def test_the_criterion_is_that_of_the_whole_ensemble(data: Prepared) -> None:
    """Which has the spread of members in its variance."""
    ensemble = with_noise(0.5)
    scores = EnsembleScores.of(predict_part(ensemble, data.part, "x"))
    nll = scores.energy.nll * scores.energy.count + scores.forces.nll * scores.forces.count
    assert criterion(ensemble, data, NLLStage(steps=1)) == pytest.approx(nll / len(data), rel=1e-5)
    squares = scores.energy.rmse**2 * scores.energy.count + scores.forces.rmse**2 * scores.forces.count
    assert criterion(ensemble, data, SquaredErrorStage(steps=1)) == pytest.approx(0.5 * squares / len(data), rel=1e-5)


@pytest.mark.parametrize("last_is_better", [True, False])
def test_the_better_ensemble_is_kept(data: Prepared, last_is_better: bool) -> None:
    right, wrong, told = with_noise(1.0), with_noise(1e-3), list[str]()
    candidates = Candidates(wrong, right) if last_is_better else Candidates(right, wrong)
    assert select(candidates, data, NLLStage(steps=1), lambda event: told.append(str(event))) is right
    assert [text.split(":")[0] for text in told] == ["keeping each member's last parameters"] * last_is_better


def test_predictions_that_are_no_numbers_are_never_kept(data: Prepared) -> None:
    good = with_noise(1.0)
    scale = lambda e: e.members.potential.scale_ev  # noqa: E731
    wild = eqx.tree_at(scale, good, jnp.full_like(scale(good), 3e38))
    assert criterion(wild, data, NLLStage(steps=1)) == math.inf
    assert select(Candidates(good, wild), data, NLLStage(steps=1), lambda event: None) is good


def test_structures_are_predicted_a_few_at_a_time(data: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics are those of all at once, but most structures are not in memory."""
    whole, quantiles = evaluated(with_noise(0.5), {"validation": data.part, "test": data.part})
    alive: weakref.WeakSet[Block] = weakref.WeakSet()
    most = []

    class Watched(Part):
        def block(self, indices: np.ndarray) -> Block:
            found = super().block(indices)
            alive.add(found)
            most.append(sum(map(len, alive)))
            return found

    monkeypatch.setattr(dataset, "BLOCK", 4)
    monkeypatch.setattr(batches, "CHUNK_STRUCTURES", 4)
    parts = {name: Watched(name, data.part.source, data.part.indices) for name in ("validation", "test")}
    found, typical = evaluated(with_noise(0.5), parts)
    assert len(most) >= len(data) / 2
    assert max(most) <= 24 < 2 * len(data)
    for name in ("validation", "test"):
        assert found[name].forces.rmse == pytest.approx(whole["validation"].forces.rmse, rel=1e-5)
        assert found[name].energy.count == len(data)
    assert typical is not None
    assert quantiles is not None
    assert typical.structures == quantiles.structures == len(data)
    assert typical.quantile(0.9, "max") == pytest.approx(quantiles.quantile(0.9, "max"), rel=1e-5)


def test_equal_ones_are_the_best(data: Prepared) -> None:
    same = Candidates(with_noise(1.0), with_noise(1.0))
    assert select(same, data, NLLStage(steps=1), lambda event: None) is same.best
