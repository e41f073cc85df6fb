"""How ``model-v*.safetensors`` and their predictions were made. Run once for each format version, never again.

python tests/golden/make_models.py VERSION
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from huefield import Ensemble, ForceField, save
from huefield.baselines import BaselineRecord
from huefield.core import Structure
from huefield.data import toy_graph
from huefield.model import CoherentCalibration, EnergyForcesCalibration, IsotonicCalibration, ScaleCalibration, Tails
from huefield.model.prediction import Prediction
from huefield.noise.novelty import GROWTH, Growth, Novelty
from huefield.testing.probes import graph_of

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
GROWTHS = {"6": Growth(), "7": GROWTH}

WATER = Structure(np.array([8, 1, 1], np.uint8), np.array([[0.0, 0.1, 0.0], [0.96, 0.0, 0.0], [-0.3, 0.9, 0.2]]))


def numbers_of(prediction: Prediction) -> dict[str, list[Any]]:
    """What a file must predict in all versions to come."""
    names = ("energy", "forces", "energy_uncertainty", "forces_uncertainty")
    return {name: np.asarray(getattr(prediction, name)).tolist() for name in names}


def growing(growth: Growth) -> Ensemble:
    """An ensemble whose noise grows with the distance to training data, with features that are made up."""
    potential = {"kind": "painn", "elements": ["H", "O"], "features": 4, "layers": 1, "cutoff_angstrom": 3.0}
    config = ForceField.Config.model_validate({"potential": potential, "noise": {"kind": "local"}})
    built, rng = Ensemble.build(config, 2, key=jax.random.key(1)), np.random.default_rng(0)
    atoms = np.repeat([1, 8], 5)
    features = rng.normal(size=(2, 2, 10, 4))
    fitted = [Novelty.fitted(atoms, trained, atoms, others, growth) for trained, others in features]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *fitted)
    return replace(built, members=replace(built.members, novelty=stacked))


if __name__ == "__main__":
    version = sys.argv[1]
    if version in GROWTHS:
        with jax.enable_x64(True):
            made = growing(GROWTHS[version])
            save(made, FOLDER / f"model-v{version}.safetensors")
            numbers = numbers_of(made.predict(graph_of([WATER], 3.0)))
        (FOLDER / f"model-v{version}.json").write_text(json.dumps(numbers, indent=2) + "\n")
        sys.exit()
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
        numbers = numbers_of(prediction)
    (FOLDER / f"model-v{version}.json").write_text(json.dumps(numbers, indent=2) + "\n")
