import json
from pathlib import Path

import jax
import numpy as np
import pytest
from pydantic import ValidationError

import huefield
from huefield.data import toy
from huefield.reproduce.toy import ToyConfig, ToyResult, run_toy, toy_scores, write_toy

SMALL = {"members": 3, "steps": (150, 50, 100), "grid_points": 33}


@pytest.fixture(scope="module")
def small() -> ToyResult:
    return run_toy(ToyConfig(**SMALL))


def test_one_command_writes_figure_numbers_and_model(small: ToyResult, tmp_path: Path) -> None:
    paths = write_toy(small, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in paths}
    assert [p.suffix for p in paths] == [".safetensors", ".json", ".pdf", ".png"]
    assert paths[3].read_bytes().startswith(b"\x89PNG")
    assert paths[2].read_bytes().startswith(b"%PDF")
    numbers = json.loads(paths[1].read_text())
    assert len(numbers["gamma"]) == 3
    assert numbers["true_gamma"] == 4.0
    with jax.enable_x64(True):
        again = huefield.load(paths[0]).predict(toy.toy_graph(small.data.truth.x))
    np.testing.assert_array_equal(again.energy, small.on_grid.mean.energy)


def test_the_same_seed_gives_the_same_numbers(small: ToyResult) -> None:
    assert toy_scores(run_toy(ToyConfig(**SMALL))) == toy_scores(small)


@pytest.mark.slow
def test_another_seed_gives_another_draw(small: ToyResult) -> None:
    other = run_toy(ToyConfig(**(SMALL | {"seed": 1, "steps": (1, 1, 1)})))
    assert not np.array_equal(other.data.train.x, small.data.train.x)


def test_scores_are_of_the_realisation(small: ToyResult) -> None:
    inside = np.abs(small.data.truth.x) <= 1
    error = (small.on_grid.mean.energy - small.data.realisation.energy)[inside]
    assert toy_scores(small)["inside_training_interval"]["energy_rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))


@pytest.mark.parametrize("kind", [pytest.param("white", marks=pytest.mark.slow), "vanilla", "local", "local_white"])
def test_other_noise_models_draw_too(kind: str, tmp_path: Path) -> None:
    result = run_toy(ToyConfig(**(SMALL | {"noise": {"kind": kind}, "steps": (5, 5, 5)})))
    paths = write_toy(result, tmp_path)
    numbers = json.loads(paths[1].read_text())
    assert numbers["gamma"] is None
    assert (numbers["inside_training_interval"]["energy_aleatoric"] == 0) == (kind == "vanilla")


def test_an_unknown_key_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match=r"sed\s+is not a known key; known are .*seed"):
        ToyConfig(**{"sed": 3})


@pytest.mark.slow
def test_the_figure_shows_what_the_paper_describes() -> None:
    """Epistemic large away from data, a noise to be seen, and the mean on the realisation, not on the truth."""
    for seed in range(3):
        result = run_toy(ToyConfig(seed=seed))
        numbers = toy_scores(result)
        inside, outside = numbers["inside_training_interval"], numbers["outside_training_interval"]
        assert outside["energy_epistemic"] > 3 * inside["energy_epistemic"]
        assert inside["energy_rmse"] < 0.03
        assert inside["energy_aleatoric"] > 0.002
        truth = result.on_grid.mean.energy - result.data.truth.energy
        assert np.sqrt(np.mean(truth[result.inside] ** 2)) > 2 * inside["energy_rmse"]
        assert inside["energy_nll"] < -2.5
