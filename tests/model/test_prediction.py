"""Predictions of batches."""

import jax
import numpy as np
import pytest

from huefield import Ensemble, ForceField
from huefield.core.structure import Precision
from huefield.data.batches.batching import make_batch
from huefield.model.calibration import IsotonicCalibration
from huefield.model.joint_calibration import EnergyForcesCalibration
from tests.potentials.cases import CUTOFF, NOISE, SHAPE, crystal, molecule, randomised
from tests.training.helpers import POTENTIAL

KNOTS = IsotonicCalibration(variances=(1e-3, 1.0, 1e3), calibrated=(1e-2, 0.5, 8e3))
"""Its factors differ between atoms."""


@pytest.mark.parametrize("calibration", [None, EnergyForcesCalibration(forces=KNOTS)], ids=["raw", "calibrated"])
@pytest.mark.parametrize("single", ["float32", "float64"])
def test_sampled_forces_are_balanced_in_each_structure(
    single: Precision, calibration: EnergyForcesCalibration | None
) -> None:
    structures = [molecule(), crystal(), molecule(4, 1)]
    config = ForceField.Config.model_validate(
        {"potential": {**POTENTIAL, "elements": ["H", "C", "N", "O"]}, "noise": NOISE.model_dump()}
    )
    with jax.enable_x64(True):
        ensemble = randomised(Ensemble.build(config, 2, key=jax.random.key(0))).with_calibration(calibration)
    with jax.enable_x64(single == "float64"):
        prediction = ensemble.in_precision(single).predict(make_batch(structures, CUTOFF, (SHAPE,)).graph)
    key = jax.random.key(1)
    drawn, free = (np.asarray(prediction.samples(20, key=key, balanced=b).forces, float) for b in (True, False))
    tolerance = (1e-3 if single == "float32" else 1e-10) * free.std()
    for number, structure in enumerate(structures):
        rows = prediction.distribution.partition.atoms_of(number)
        forces, arms = drawn[:, rows], structure.positions - structure.positions.mean(0)
        np.testing.assert_allclose(forces.sum(1), 0, atol=tolerance)
        torque = np.abs(np.cross(arms, forces).sum(1)).max()
        assert (torque > 0.1 * free.std()) if structure.pbc.any() else (torque < tolerance)
    assert np.abs(free[:, :6].sum(1)).mean() > 0.5 * free[:, :6].std()
