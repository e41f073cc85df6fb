"""MACE: an implementation without spherical harmonics, sizes, the constants of its configuration."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial.legendre import Legendre, leggauss
from pydantic import ValidationError

from huefield.core.structure import Structure
from huefield.data.batches.batching import make_batch
from huefield.model.forcefield import ForceField
from huefield.noise import VanillaNoise
from huefield.potentials import MACE, differentiate
from huefield.potentials.spherical import Degrees
from tests.potentials.cases import (
    CONFIGS,
    alone,
    atom,
    atom_energies,
    crystal,
    graph_of,
    molecule,
    pairs_of,
    randomised,
    silu,
)


@pytest.fixture
def kind() -> str:
    return "mace"


def sphere() -> tuple[np.ndarray, np.ndarray]:
    """Directions, and weights of a mean over the sphere that is exact for polynomials of degree 13."""
    nodes, weights = leggauss(7)
    angles = np.arange(14) * 2 * np.pi / 14
    radius = np.sqrt(1 - nodes**2)[:, None]
    parts = (radius * np.cos(angles), radius * np.sin(angles), nodes[:, None] + 0 * angles)
    return np.stack(parts, -1).reshape(-1, 3), np.repeat(weights / 28, 14)


def invariants(densities: list[np.ndarray], products: tuple[Degrees, ...]) -> list[np.ndarray]:
    """Means over the sphere of products of densities ρ_l(n) = Σ_m A_lm Y_lm(n), divided by the norm of ∫YYY."""
    _, weights = sphere()
    nodes, line = leggauss(7)
    found = []
    for degrees in products:
        values = np.prod([densities[degree] for degree in degrees], axis=0)
        overlap = np.prod([(2 * degree + 1) * Legendre.basis(degree)(nodes) for degree in degrees], axis=0)
        found.append(weights @ values / np.sqrt(line @ overlap / 2))
    return found


def naive(potential: MACE, structure: Structure) -> tuple[np.ndarray, np.ndarray]:
    """Energies and raw outputs of the atoms, pair by pair, with the addition theorem in place of harmonics."""
    config, weights = potential.config, jax.tree.map(np.asarray, potential)
    kinds, pairs = pairs_of(structure, config)
    h, energy = weights.embedding[kinds], np.zeros(len(structure))
    points, _ = sphere()
    for number, layer in enumerate(weights.interactions):
        carried = h @ layer.neighbour.weight / np.sqrt(config.neighbours)
        density = np.zeros((len(structure), config.max_degree + 1, len(points), config.channels))
        for i, j, direction, basis in pairs:
            for matrix in layer.hidden:
                basis = silu(basis @ matrix)
            for degree, matrix in enumerate(layer.filters):
                angular = (2 * degree + 1) * Legendre.basis(degree)(points @ direction)
                density[i, degree] += angular[:, None] * (basis @ matrix * carried[j])
        after = np.zeros_like(h)
        for i, z in enumerate(kinds):
            mixed = [rho @ mix.weight for rho, mix in zip(density[i], layer.mixing, strict=True)]
            message = sum(w[z] * b for w, b in zip(layer.products, invariants(mixed, config.products), strict=True))
            after[i] = message @ layer.update.weight + h[i] @ layer.residual[z]
        h = after
        if number < len(weights.energies):
            energy += (h @ weights.energies[number].weight)[:, 0]
    read = weights.readout
    hidden = silu(h @ read.hidden.weight + read.hidden.bias)
    energy += (hidden @ read.energy.weight + read.energy.bias)[:, 0]
    return energy * weights.scale_ev[kinds] + weights.shift_ev[kinds], hidden @ read.raw.weight + read.raw.bias


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("structure", [molecule(), crystal(), atom()], ids=["molecule", "crystal", "atom"])
def test_outputs_are_those_of_a_naive_implementation(member64: ForceField, structure: Structure) -> None:
    energy, raw = naive(member64.potential, structure)
    per_atom = atom_energies(member64, graph_of(structure))[: len(structure)]
    for one, other in ((per_atom, energy), (alone(member64, structure).raw, raw)):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10 * max(1.0, np.abs(other).max()))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "sizes",
    [
        {"max_degree": 0, "radial_widths": (6,)},
        {"max_degree": 3},
        {"correlation": 2, "radial_widths": (6, 7)},
        {"correlation": 1, "layers": 1},
        {"layers": 3},
        {"elements": ("H", "Li", "Be", "B", "C", "N", "O", "F")},
    ],
    ids=str,
)
def test_other_sizes(sizes: dict[str, Any]) -> None:
    config = CONFIGS["mace"].model_copy(update=sizes)
    potential = randomised(config.build(2, key=jax.random.key(0)))
    outputs = eqx.filter_jit(potential)(graph_of(molecule()))
    energy, raw = naive(potential, molecule())
    np.testing.assert_allclose(outputs.energy[:6], energy, rtol=1e-10)
    np.testing.assert_allclose(outputs.raw[:6], raw, rtol=1e-9, atol=1e-10)
    assert outputs.features.shape == (len(outputs.energy), config.channels)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"channels": 0}, "greater than or equal to 1"),
        ({"channels": 10**6}, "less than or equal to 8192"),
        ({"max_degree": 4}, "less than or equal to 3"),
        ({"correlation": 4}, "less than or equal to 3"),
        ({"neighbours": 0}, "greater than 0"),
        ({"neighbours": float("nan")}, "finite"),
        ({"radial_widths": (64, 0)}, "greater than or equal to 1"),
        ({"radial_widths": (64,) * 17}, "at most 16 items"),
        ({"cutoff_angstrom": 0.1}, "greater than or equal to 0.5"),
    ],
    ids=str,
)
def test_absurd_sizes_are_refused(sizes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MACE.Config(elements=("H",), **sizes)


@pytest.mark.usefixtures("x64")
def test_energies_and_forces_are_those_of_mace_torch() -> None:
    """Numbers of benchmarks/mace/conformance.py: random weights, and what mace-torch 0.3.16 makes of them."""
    stored = dict(np.load(Path(__file__).parent / "mace_torch.npz"))
    config = MACE.Config.model_validate_json(str(stored["config"]))
    potential = jax.tree_util.tree_map_with_path(
        lambda place, _: jnp.asarray(stored[jax.tree_util.keystr(place)]), config.build(0, key=jax.random.key(0))
    )
    stops = np.cumsum(stored["sizes"])
    atoms = zip(*(np.split(stored[name], stops[:-1]) for name in ("numbers", "positions")), strict=True)
    structures = [
        Structure(numbers.astype(np.uint8), positions, cell, periodic)
        for (numbers, positions), cell, periodic in zip(atoms, stored["cells"], stored["periodic"], strict=True)
    ]
    graph = make_batch(structures, config.cutoff_angstrom, ()).graph
    outputs = eqx.filter_jit(differentiate)(potential, VanillaNoise.Config().build().levels, graph)
    assert np.ptp(stored["energy"]) > 0.5
    np.testing.assert_allclose(outputs.energy[: len(structures)], stored["energy"], rtol=0, atol=1e-7)
    np.testing.assert_allclose(-outputs.energy_gradient[: stops[-1]], stored["forces"], rtol=0, atol=1e-6)
