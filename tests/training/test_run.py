"""The guard of a run: failing steps are not taken, then training goes back, and in the end it says why."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from huefield.core import Labels
from huefield.data import toy
from huefield.data.batches.batching import Batch, Place
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.training import TrainConfig, TrainingDivergedError, TrainingStoppedError
from huefield.training import run as run_module
from huefield.training.checkpoint import checkpoints_in
from huefield.training.feed import AbstractFeed
from huefield.training.history import read_history
from huefield.training.job import loop_settings
from huefield.training.mesh import Layout, MeshConfig
from huefield.training.run import BAD_IN_A_ROW, ROLLBACKS, SMALLER_RATE, Run
from huefield.training.setting import Setting
from huefield.training.validation import Validator
from tests.training.test_tensorboard import scalars

pytestmark = pytest.mark.usefixtures("x64")

STEPS = 40
MODEL = {"potential": {"kind": "mlp", "width": 4, "depth": 1}, "noise": {"kind": "colored"}}
Poison = Callable[[int, int, int], float]
"""What is added to the labels of a member's batch: (how often the feed was started, member, batch)."""


@cache
def good_batch() -> Batch:
    points = toy.draw_toy(toy.ToyProcess(num_train=6), np.linspace(-1, 1, 3), key=jax.random.key(0)).train
    graph, labels = toy.toy_graph(points.x), toy.toy_labels(points)
    return Batch(graph, labels, jnp.ones(graph.partition.num_structures, bool))


def toy_batch(added: float) -> Batch:
    if added == 0.0:
        return good_batch()
    good = good_batch().labels
    labels = Labels(good.energy + added, good.forces, good.energy_mask, good.forces_mask)
    return Batch(good_batch().graph, labels, good_batch().structure_mask)


class PoisonedFeed(AbstractFeed):
    """The same structures in every batch, with labels that may be wrong."""

    def __init__(self, layout: Layout, poison: Poison) -> None:
        self.layout, self.poison, self.starts = layout, poison, count()

    def indices(self, place: Place) -> Iterator[tuple[Place, list[np.ndarray]]]:
        for number in count(place.position):
            yield Place(0, number + 1), [np.array([number, member]) for member in range(self.layout.num_members)]

    def start(self, place: Place) -> Iterator[tuple[Place, Batch]]:
        start = next(self.starts)
        for number in count(place.position):
            cells = {(m, 0): toy_batch(self.poison(start, m, number)) for m in range(self.layout.num_members)}
            yield Place(0, number + 1), self.layout.stack(cells, self.layout.batches)


def run_with(folder: Path, poison: Poison, stop_at: int | None = None, **changes: Any) -> Run:
    """A run of two members with a network of some numbers."""
    given = {
        "data": {"kind": "bundled"},
        "model": MODEL,
        "stages": [{"kind": "squared_error", "steps": STEPS, "learning_rate": 1e-2}],
        "members": 2,
        "validate_every": 20,
        "checkpoint_every": 5,
        "report_every": 5,
    }
    config = TrainConfig.model_validate({**given, **changes})
    layout, asked = Layout(2, MeshConfig()), count(1)
    feed = PoisonedFeed(layout, poison)
    members = Ensemble.build(ForceField.Config.model_validate(MODEL), 2, key=jax.random.key(1)).members
    setting = Setting(
        loop=loop_settings(config),
        layout=layout,
        validator=Validator([layout.stack({(0, 0): toy_batch(0.0)}, layout.shared)], layout, "auto", True),
        feed_for=lambda stage: feed,
        folder=folder,
        fingerprint={},
        report=lambda event: None,
        should_stop=lambda: next(asked) == stop_at,
        diagnose=lambda one, batches, stage: f"Looked at {[b.tolist() for b in batches]}.",
    )
    run = Run(setting, members)
    run.resume()
    return run


@pytest.fixture(autouse=True)
def finite_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else happens, every checkpoint that is written has numbers only."""
    save = run_module.save_checkpoint

    def checked(*arguments: Any) -> Path:
        path = save(*arguments)
        arrays = {name: a for name, a in load_file(path).items() if name.startswith(("states", "best."))}
        assert len(arrays) > 10
        assert not [name for name, a in arrays.items() if not np.isfinite(a).all()]
        return path

    monkeypatch.setattr(run_module, "save_checkpoint", checked)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_history(folder / "history.jsonl") if event["event"] == kind]


def saved_rates(folder: Path) -> list[float]:
    return load_file(checkpoints_in(folder / "checkpoints")[0])["states.rate"].tolist()


def test_single_failures_are_skipped_and_counted(tmp_path: Path) -> None:
    """No number, one that overflows, and one out of all proportion."""
    wrong = {3: np.nan, 24: 1e200, 30: 1e4}
    run = run_with(tmp_path, lambda start, member, batch: wrong.get(batch, 0.0) if member else 0.0, tensorboard=True)
    best = run()
    assert events(tmp_path, "steps")[-1]["skipped"] == [0, 3]
    assert not events(tmp_path, "rollback")
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(best) if isinstance(leaf, jax.Array))
    check_tensorboard(tmp_path)


def check_tensorboard(folder: Path) -> None:
    """It has what the history has."""
    found = {(tag, step): value for tag, step, value in scalars(folder / "tensorboard")}
    steps = events(folder, "steps")
    (validation,) = (event for event in events(folder, "validation") if event["step"] == 20)
    for name in ("loss", "gradient_norm", "gamma"):
        assert found[f"steps/{name}/member-1", STEPS] == pytest.approx(steps[-1][name][1], rel=1e-6)
    for name in ("criterion", "energy_mae", "force_rmse"):
        assert found[f"validation/{name}/member-0", 20] == pytest.approx(validation[name][0], rel=1e-6)


def test_repeated_failures_make_it_go_back_with_a_smaller_rate_for_that_member(tmp_path: Path) -> None:
    run_with(tmp_path, lambda start, member, batch: np.nan if start == 0 and member == 1 and batch >= 12 else 0.0)()
    (rollback,) = events(tmp_path, "rollback")
    assert rollback["members"] == [1]
    assert (rollback["step"], rollback["to_step"]) == (25, 10)
    assert events(tmp_path, "steps")[-1]["step"] == STEPS
    np.testing.assert_allclose(saved_rates(tmp_path), [1.0, SMALLER_RATE])


def test_smaller_rates_are_kept_when_another_member_fails(tmp_path: Path) -> None:
    run_with(tmp_path, lambda start, member, batch: np.nan if member == start and batch >= 12 else 0.0)()
    assert [event["members"] for event in events(tmp_path, "rollback")] == [[0], [1]]
    np.testing.assert_allclose(saved_rates(tmp_path), [SMALLER_RATE, SMALLER_RATE])


def test_no_state_in_the_middle_of_failures_is_saved(tmp_path: Path) -> None:
    """Reports are rarer than checkpoints here: there is time to save states that are none to go back to."""
    run = run_with(tmp_path, lambda start, member, batch: np.nan if start == 0 and batch >= 7 else 0.0, report_every=20)
    run()
    assert events(tmp_path, "rollback")[0]["to_step"] == 5


def test_in_the_end_it_stops_with_the_batches_that_failed(tmp_path: Path) -> None:
    run = run_with(tmp_path, lambda start, member, batch: np.nan if member == 1 and batch >= 7 else 0.0)
    with pytest.raises(TrainingDivergedError, match="member 1 diverged at step 20 of stage 1") as error:
        run()
    assert len(events(tmp_path, "rollback")) == ROLLBACKS
    assert f"Looked at {[[batch, 1] for batch in range(20 - BAD_IN_A_ROW, 20)]}." in str(error.value)
    np.testing.assert_allclose(saved_rates(tmp_path), [1.0, SMALLER_RATE**ROLLBACKS])


def test_a_new_stage_may_go_back_as_often_as_the_one_before(tmp_path: Path) -> None:
    stages = [{"kind": kind, "steps": 25, "learning_rate": 1e-2} for kind in ("squared_error", "nll")]
    run = run_with(
        tmp_path, lambda start, _, batch: np.nan if start in (0, 1, 3, 4) and batch > 6 else 0.0, stages=stages
    )
    run()
    assert [event["stage"] for event in events(tmp_path, "rollback")] == [0, 0, 1, 1]
    assert events(tmp_path, "steps")[-1]["kind"] == "nll"


def test_a_resumed_run_remembers_that_it_went_back(tmp_path: Path) -> None:
    def poison(start: int, member: int, batch: int) -> float:
        return np.nan if member == 1 and batch >= 7 else 0.0

    with pytest.raises(TrainingStoppedError):
        run_with(tmp_path, poison, stop_at=22)()  # 20 steps, back to 5, and some more
    with pytest.raises(TrainingDivergedError):
        run_with(tmp_path, poison)()
    assert len(events(tmp_path, "rollback")) == ROLLBACKS


@pytest.mark.parametrize(("kind", "handed_over"), [("squared_error", min), ("nll", lambda scores: scores[-1])])
def test_what_a_stage_hands_over(kind: str, handed_over: Callable[[list[float]], float], tmp_path: Path) -> None:
    """The best mean; but noise as it is in the end, even if it was better before."""
    stages = [{"kind": kind, "steps": 40, "learning_rate": 0.3}, {"kind": kind, "steps": 1}]
    run_with(tmp_path, lambda start, member, batch: 0.3 if batch > 25 else 0.0, stages=stages, validate_every=5)()
    for member in (0, 1):
        first, second = (
            [e["criterion"][member] for e in events(tmp_path, "validation") if e["stage"] == stage] for stage in (0, 1)
        )
        assert second[0] == handed_over(first)
        assert min(first) < first[-1]
