"""How ``model-v1.safetensors`` and its predictions were made. Run once for each format version, never again."""

import json
from pathlib import Path

import jax

from huefield import Ensemble, ForceField, save
from huefield.data import toy_graph

FOLDER = Path(__file__).parent
CONFIG = {
    "potential": {"kind": "mlp", "width": 4, "depth": 1},
    "noise": {"kind": "colored", "gamma": "atom", "channels": 2},
}

if __name__ == "__main__":
    with jax.enable_x64(True):
        ensemble = Ensemble.build(ForceField.Config.model_validate(CONFIG), 2, key=jax.random.key(1))
        save(ensemble, FOLDER / "model-v1.safetensors")
        prediction = ensemble.predict(toy_graph([-0.7, 0.1, 0.9]))
        numbers = {
            "energy": prediction.energy.tolist(),
            "forces": prediction.forces.tolist(),
            "energy_uncertainty": prediction.energy_uncertainty.tolist(),
            "forces_uncertainty": prediction.forces_uncertainty.tolist(),
        }
    (FOLDER / "model-v1.json").write_text(json.dumps(numbers, indent=2) + "\n")
