"""Ensembles whose noise grows away from the training data, with the growth left out."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import huefield
from huefield import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import CoherentCalibration
from huefield.model.modelfile import open_model
from huefield.model.typical import PartOfUncertainty, TypicalUncertainty
from huefield.model.typical import deviations as uncertainties
from huefield.noise.novelty import Novelty
from huefield.predict.names import named_models
from huefield.testing.probes import graph_of
from tests.golden.make_models import WATER
from tests.training.helpers import POTENTIAL

COHERENT = CoherentCalibration(noise=0.3, energy_diagonal=2.0, force_diagonal=5.0, spread=1.0)


@pytest.fixture(scope="module", autouse=True)
def _double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def plain() -> Ensemble:
    """Random weights and noise that does not grow, calibrated."""
    config = ForceField.Config.model_validate(
        {"potential": {**POTENTIAL, "elements": ["H", "O"]}, "noise": {"kind": "local"}}
    )
    return Ensemble.build(config, 2, key=jax.random.key(0)).with_calibration(COHERENT)


def growing(plain: Ensemble, *, distance: float) -> Ensemble:
    """The ensemble with training atoms of this distance to those of water, in all features."""
    graph = graph_of([WATER], 3.0)
    numbers, rng, fitted = np.repeat([8, 1, 1], 20), np.random.default_rng(0), []
    for index in range(plain.num_members):
        of_water = np.asarray(plain.member(index).potential(graph).features)[:3]
        centres = np.repeat(of_water, 20, axis=0) + distance
        train, valid = (centres + 0.1 * rng.normal(size=centres.shape) for _ in range(2))
        fitted.append(Novelty.fitted(numbers, train, numbers, valid))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *fitted)
    return replace(plain, members=replace(plain.members, novelty=stacked))


@pytest.fixture(scope="module")
def far(plain: Ensemble) -> Ensemble:
    return growing(plain, distance=1.0)


def deviations(ensemble: Ensemble) -> list[np.ndarray]:
    """Of the energy and the forces of water."""
    found = ensemble.predict(graph_of([WATER], 3.0))
    return [np.asarray(each) for each in (found.energy_uncertainty[:1], found.forces_uncertainty[:3])]


def test_error_bars_are_those_of_noise_that_never_grew(plain: Ensemble, far: Ensemble) -> None:
    """With the same calibration."""
    assert far.without_growth().calibration == COHERENT
    for found, expected in zip(deviations(far.without_growth()), deviations(plain), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_they_are_narrower_far_from_the_data_and_much_the_same_near_them(plain: Ensemble, far: Ensemble) -> None:
    without, grown, near = map(deviations, (far.without_growth(), far, growing(plain, distance=0.0)))
    for index in range(2):
        assert np.all(grown[index] > 3 * without[index])
        np.testing.assert_allclose(near[index], without[index], rtol=0.2)


def test_a_model_without_growth_stays_as_it_is(plain: Ensemble) -> None:
    assert plain.without_growth() is plain
    assert not plain.noise_grows


def test_quantiles_of_validation_data_are_dropped(plain: Ensemble, far: Ensemble) -> None:
    """The largest are those of structures where noise has grown; those of a model without growth stay."""
    variances = {part: np.ones(2) for part in get_args(PartOfUncertainty)}
    of_forces = {part: np.ones((6, 3)) for part in variances}
    block = uncertainties(variances, of_forces, np.repeat([0, 1], 3))
    typical = TypicalUncertainty.of([block], "validation data")
    assert far.with_typical(typical).without_growth().typical is None
    assert plain.with_typical(typical).without_growth().typical == typical


def test_models_are_opened_without_growth(far: Ensemble, tmp_path: Path) -> None:
    huefield.save(far, tmp_path / "mine.safetensors")
    assert open_model(tmp_path / "mine.safetensors").noise_grows
    assert not open_model(tmp_path / "mine.safetensors", growth=False).noise_grows
    calculator = huefield.Calculator(far.without_growth(), precision="float64")
    assert not calculator.ensemble.noise_grows


def test_names_of_models_say_that_growth_is_left_out(plain: Ensemble, far: Ensemble, tmp_path: Path) -> None:
    """Only if there was any."""
    huefield.save(far, tmp_path / "mine.safetensors")
    assert [each.name for each in named_models([tmp_path / "mine.safetensors", plain])] == ["mine", "model"]
    found = named_models([tmp_path / "mine.safetensors", plain], growth=False)
    assert [each.name for each in found] == ["mine, no growth", "model"]
    assert [each.growth_left_out for each in found] == [True, False]
