"""How ``model-v*.safetensors`` and their predictions were made. Run once for each format version, never again.

python tests/golden/make_models.py VERSION
"""

import json
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp

from huefield import Ensemble, ForceField, save
from huefield.baselines import BaselineRecord
from huefield.data import toy_graph
from huefield.model import CoherentCalibration, EnergyForcesCalibration, IsotonicCalibration, ScaleCalibration, Tails

FOLDER = Path(__file__).parent
POTENTIAL = {"kind": "mlp", "width": 4, "depth": 1}
COLORED = {"kind": "colored", "gamma": "atom", "channels": 2}
NOISES = {"1": COLORED, "2": COLORED, "3": {"kind": "local"}, "4": {"kind": "local"}, "5": {"kind": "local"}}
DATASETS = {"5": {"pbe": {1: -13.6}, "wb97x": {1: -13.5}}}
CALIBRATIONS = {
    "1": None,
    "2": EnergyForcesCalibration(
        energy=ScaleCalibration(factor=2.5),
        forces=IsotonicCalibration(variances=(0.5, 1.0, 4.0), calibrated=(0.2, 0.3, 6.0), outside="ratio"),
    ),
    "3": CoherentCalibration(
        noise=2.5, energy_diagonal=3.0, force_diagonal=0.4, spread=1.7, tails=Tails(energy=4.0, forces=3.0, joint=5.0)
    ),
    "4": CoherentCalibration(noise=1.5, force_diagonal=0.7, spread=1.2),
    "5": None,
}
BASELINE = {
    "config": {"kind": "tblite", "method": "GFN1-xTB"},
    "version": "tblite 0.4.0",
    "probes": [
        {
            "atomic_numbers": [1, 1],
            "positions": [[0, 0, 0], [0, 0, 0.75]],
            "cell": [[0, 0, 0]] * 3,
            "pbc": [False] * 3,
            "energy": -28.0,
            "forces": [[0, 0, -0.5], [0, 0, 0.5]],
        }
    ],
}
"""Numbers are made up."""

if __name__ == "__main__":
    version = sys.argv[1]
    with jax.enable_x64(True):
        config = {"potential": POTENTIAL, "noise": NOISES[version]}
        built = Ensemble.build(ForceField.Config.model_validate(config), 2, key=jax.random.key(1))
        ensemble = built.with_calibration(CALIBRATIONS[version])
        if version in DATASETS:
            ensemble = ensemble.with_datasets(DATASETS[version]).with_dataset("wb97x")
        record = BaselineRecord.model_validate(BASELINE) if version == "4" else None
        save(ensemble.with_baseline(record), FOLDER / f"model-v{version}.safetensors")
        graph = toy_graph([-0.7, 0.1, 0.9])
        hydrogen = eqx.tree_at(lambda g: g.atomic_numbers, graph, jnp.ones_like(graph.atomic_numbers))
        prediction = ensemble.predict(hydrogen)
        numbers = {
            "energy": prediction.energy.tolist(),
            "forces": prediction.forces.tolist(),
            "energy_uncertainty": prediction.energy_uncertainty.tolist(),
            "forces_uncertainty": prediction.forces_uncertainty.tolist(),
        }
    (FOLDER / f"model-v{version}.json").write_text(json.dumps(numbers, indent=2) + "\n")
