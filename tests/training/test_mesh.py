"""Grids of devices, and that training on eight gives what training on one gives."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from huefield.training.mesh import Layout, MeshConfig, grid, own_share, require_work_for_all, shared
from tests.training.helpers import POTENTIAL, write_waters
from tests.training.jobs import losses, train_alone, write_config

EIGHT_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}


class TestGrid:
    @pytest.mark.parametrize(
        ("members", "devices", "given", "expected"),
        [
            (1, 1, {}, (1, 1)),
            (5, 1, {}, (1, 1)),
            (2, 8, {}, (2, 4)),
            (8, 8, {}, (8, 1)),
            (1, 8, {}, (1, 8)),
            (6, 4, {}, (2, 2)),
            (5, 8, {}, (1, 8)),
            (4, 8, {"data": 4}, (2, 4)),
            (4, 8, {"member": 1}, (1, 8)),
            (4, 8, {"member": 2, "data": 2}, (2, 2)),
        ],
    )
    def test_members_first_and_data_with_the_rest(
        self, members: int, devices: int, given: dict[str, int], expected: tuple[int, int]
    ) -> None:
        assert grid(members, devices, MeshConfig(**given)) == expected

    def test_members_that_cannot_be_shared(self) -> None:
        with pytest.raises(ValueError, match="5 members cannot be divided among 2 devices"):
            grid(5, 8, MeshConfig(member=2))

    def test_more_devices_than_there_are(self) -> None:
        with pytest.raises(ValueError, match="2 × 8 needs 16 devices, but there are 8"):
            grid(4, 8, MeshConfig(member=2, data=8))


class TestLayout:
    def test_what_is_put_can_be_fetched(self) -> None:
        layout = Layout(3, MeshConfig())
        tree: dict[str, Any] = {"a": np.arange(6.0, dtype=np.float32).reshape(3, 2), "name": "static"}
        spread = layout.put(tree, layout.states)
        assert isinstance(spread["a"], jax.Array)
        back = layout.fetch(layout.put(spread, layout.states))
        np.testing.assert_array_equal(back["a"], tree["a"])
        assert isinstance(back["a"], np.ndarray)
        assert back["name"] == "static"

    def test_one_process_has_all_places(self) -> None:
        layout = Layout(3, MeshConfig())
        assert layout.cells(layout.batches) == [(0, 0), (1, 0), (2, 0)]
        assert layout.cells(layout.shared) == [(0, 0)]

    def test_places_become_axes(self) -> None:
        layout = Layout(2, MeshConfig())
        parts = {(m, 0): {"x": np.full((3,), m, np.float32)} for m in range(2)}
        stacked = layout.stack(parts, layout.batches)["x"]
        np.testing.assert_array_equal(stacked, [[[0, 0, 0]], [[1, 1, 1]]])

    def test_one_process_agrees_with_itself(self) -> None:
        layout = Layout(1, MeshConfig())
        assert layout.agreed(True)
        assert not layout.agreed(False)
        assert layout.same_everywhere(7)


class TestProcesses:
    @pytest.mark.parametrize("count", [0, 1, 3, 4, 9, 16])
    def test_shares_are_all_that_there_is(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jax, "process_count", lambda: 4)
        found: list[int] = []
        for process in range(4):
            monkeypatch.setattr(jax, "process_index", lambda process=process: process)
            found += own_share(count)
        assert found == list(range(count))

    def test_shares_are_put_together_bit_by_bit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        values = np.array([0.1, -2000.123456789, 0.3])
        padded = [values[:2], np.array([0.3, 0.0])]

        def gather(own: np.ndarray, tiled: bool) -> np.ndarray:
            assert own.dtype == np.uint8
            return np.concatenate([part.view(np.uint8) for part in padded])

        monkeypatch.setattr(multihost_utils, "process_allgather", gather)
        np.testing.assert_array_equal(shared(values[2:], 3), values)

    def test_a_process_without_work(self) -> None:
        require_work_for_all([0, 0, 1, 1], 3)
        with pytest.raises(ValueError, match="2 of 4 devices, and 1 processes have none of them: start fewer"):
            require_work_for_all([0, 0, 1, 1], 2)


def relative_difference(run: Path, other: Path) -> float:
    first, second = losses(run), losses(other)
    assert first.shape == second.shape
    return float(np.max(np.abs(first / second - 1)))


@pytest.mark.slow
def test_eight_devices_give_the_losses_of_one(tmp_path: Path) -> None:
    data = write_waters(tmp_path / "waters.xyz")
    config = write_config(tmp_path / "config.yaml", data, 10, report_every=1)
    one = train_alone(config, tmp_path / "one")
    eight = train_alone(config, tmp_path / "eight", EIGHT_DEVICES)
    assert len(losses(one)) == 10
    assert relative_difference(eight, one) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("members", "mesh"), [(2, (2, 4)), (1, (1, 8)), (8, (8, 1)), (2, (1, 8))])
def test_a_hundred_steps_on_every_mesh(tmp_path: Path, members: int, mesh: tuple[int, int]) -> None:
    data = write_waters(tmp_path / "waters.xyz", 40)
    model = {"potential": POTENTIAL, "noise": {"kind": "colored"}}
    stages = [{"kind": "beta_nll", "steps": 100, "learning_rate": 3e-3, "initialise_noise": True}]
    changes: dict[str, Any] = {"members": members, "model": model, "stages": stages, "batch_size": 10}
    often: dict[str, Any] = {"report_every": 1, "validate_every": 20, "checkpoint_every": 50}
    shape = {"member": mesh[0], "data": mesh[1]}
    single = write_config(tmp_path / "one.yaml", data, 100, **changes, **often, mesh={"member": 1, "data": 1})
    spread = write_config(tmp_path / "eight.yaml", data, 100, **changes, **often, mesh=shape)
    one, eight = train_alone(single, tmp_path / "one"), train_alone(spread, tmp_path / "eight", EIGHT_DEVICES)
    assert len(losses(one)) == 100
    assert relative_difference(eight, one) < 1e-5
