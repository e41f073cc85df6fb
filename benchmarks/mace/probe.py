"""Numbers of a small mace-torch model with our random weights, for conformance.py. Runs in mace-torch's environment.

python benchmarks/mace/probe.py STRUCTURES.xyz OUT.npz

Weights are drawn here and put into the model. Layers that are linear are asked for their matrix, whatever the layout of
their weights; symmetric products are evaluated for random features. Energies and forces are those of the whole model.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.io import read
from e3nn import o3
from models import batch_of, build, settings

SAMPLES = 400
SPREAD = 1.1
"""Standard deviation of the weights: products of three features are as large as those of one."""


def main() -> None:
    """Write all numbers into one file."""
    source, target = (Path(argument) for argument in sys.argv[1:])
    torch.set_default_dtype(torch.float64)
    structures = read(source, ":")
    config = settings(channels=4, hidden=2, radial=[8, 8], neighbours=6.5)
    model = build(config)
    draw(model, np.random.default_rng(0))
    found = {**embeddings(model), **predictions(model, structures), "neighbours": config["neighbours"]}
    for number, (interaction, product) in enumerate(zip(model.interactions, model.products, strict=True)):
        parts = {**layer(interaction, config), **contraction(product, config)}
        found |= {f"layer{number}_{name}": value for name, value in parts.items()}
    np.savez(target, **{name: np.asarray(value) for name, value in found.items()})


def draw(model: torch.nn.Module, rng: np.random.Generator) -> None:
    """Replace all weights by our own random numbers."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.tensor(SPREAD * rng.normal(size=tuple(parameter.shape))))


def embeddings(model: Any) -> dict[str, Any]:
    """Matrices of the first and the last layers, harmonics of random directions."""
    channels, elements = model.products[0].linear.irreps_out.dim, len(model.atomic_numbers)
    directions = torch.tensor(np.random.default_rng(1).normal(size=(50, 3)))
    last, harmonics = model.readouts[1], model.spherical_harmonics.irreps_out
    return {
        "embedding": numbers(model.node_embedding(torch.eye(elements))),
        "energies": numbers(model.readouts[0](torch.eye(channels))),
        "hidden": numbers(last.linear_1(torch.eye(channels))),
        "energy": numbers(last.linear_2(torch.eye(last.linear_2.irreps_in.dim))),
        "activation": activation(last.non_linearity),
        "directions": numbers(directions),
        "harmonics": numbers(o3.spherical_harmonics(harmonics, directions, True, "component")),
    }


def activation(gate: Any) -> float:
    """Factor of SiLU that e3nn normalises it with."""
    one = torch.ones(1, gate.irreps_in.dim)
    return float(numbers(gate(one))[0, 0] / torch.nn.functional.silu(torch.ones(())))


def layer(interaction: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Matrices of one interaction."""
    channels, elements, degrees = config["channels"], len(config["elements"]), 4
    units = torch.eye(channels)
    mixing, start = [], 0
    for degree in range(degrees):
        width = 2 * degree + 1
        block = torch.zeros(channels, channels * degrees**2)
        block[:, start : start + channels * width : width] = units
        mixing.append(numbers(interaction.linear(block))[:, start : start + channels * width : width])
        start += channels * width
    network = [numbers(each.weight) / each.weight.shape[0] ** 0.5 for each in radial_layers(interaction)]
    kinds = torch.eye(elements)
    residual = [numbers(interaction.skip_tp(units, kinds[z].expand(channels, -1))) for z in range(elements)]
    return {
        "neighbour": numbers(interaction.linear_up(units)),
        "mixing": np.stack(mixing),
        "residual": np.stack(residual),
        **{f"network{number}": matrix for number, matrix in enumerate(network)},
    }


def radial_layers(interaction: Any) -> list[Any]:
    """Layers of the radial network, in order."""
    return list(interaction.conv_tp_weights.children())


def contraction(product: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Symmetric products of random features for each element, and the matrix of the update."""
    channels, elements = config["channels"], len(config["elements"])
    features = torch.tensor(np.random.default_rng(2).normal(size=(SAMPLES, channels, 16)))
    kinds = torch.eye(elements)
    values = [numbers(product.symmetric_contractions(features, kinds[z].expand(SAMPLES, -1))) for z in range(elements)]
    return {
        "features": numbers(features),
        "values": np.stack(values),
        "update": numbers(product.linear(torch.eye(channels))),
    }


def predictions(model: Any, structures: list[Any]) -> dict[str, Any]:
    """Energies and forces of the structures."""
    results = [model(batch_of([atoms], torch.float64)) for atoms in structures]
    return {
        "total": np.concatenate([numbers(result["energy"]) for result in results]),
        "forces": np.concatenate([numbers(result["forces"]) for result in results]),
    }


def numbers(values: torch.Tensor) -> np.ndarray:
    """As numpy has it."""
    return values.detach().numpy()


if __name__ == "__main__":
    main()
