"""Energies and forces of mace-torch with the same weights: maps them into ours, compares, and writes a test's numbers.

python benchmarks/mace/conformance.py

Writes tests/potentials/mace_torch.npz (weights in our layout, structures, and mace-torch's energies and forces) and
benchmarks/results/mace/conformance.json. mace-torch is installed by itself at the first run.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import beside
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.io import write
from cases import molecule, water
from environments import variables

from huefield.core.structure import Structure
from huefield.data.batches.batching import make_batch
from huefield.noise import VanillaNoise
from huefield.potentials import MACE, differentiate
from huefield.potentials.atomic import Readout
from huefield.potentials.layers import Linear
from huefield.potentials.mace import Interaction
from huefield.potentials.spherical import harmonics, invariant_products, polynomial

FIXTURE = beside.HERE.parents[1] / "tests" / "potentials" / "mace_torch.npz"
REPORT = beside.HERE.parent / "results" / "mace" / "conformance.json"
EXACT = 1e-9
"""Largest residual of the fits, which must be exact, relative to the values."""
Probe = dict[str, np.ndarray]


def main() -> None:
    """Ask mace-torch, map, compare, write."""
    jax.config.update("jax_enable_x64", True)
    structures = systems(np.random.default_rng(5))
    probe = probed(structures)
    potential = mapped(probe)
    found = compared(potential, structures, probe)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(found, indent=1) + "\n")
    save(potential, structures, probe)
    print(json.dumps(found, indent=1))


def systems(rng: np.random.Generator) -> list[Atoms]:
    """Molecules, water, skewed crystals that are smaller than the cutoff, and an atom alone."""
    molecules = [molecule(size, rng=rng) for size in (2, 3, 4, 6, 8, 10, 12)]
    crystals = []
    for _ in range(3):
        cell = 4 * np.eye(3) + 0.4 * rng.normal(size=(3, 3))
        crystals.append(Atoms("HCOH", rng.uniform(size=(4, 3)) @ cell, cell=cell, pbc=True))
    return [*molecules, water(2, rng=rng), *crystals, Atoms("O", [[0.0, 0, 0]])]


def probed(structures: list[Atoms]) -> Probe:
    """The numbers that ``probe.py`` finds."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "structures.xyz", Path(folder) / "probe.npz"
        write(source, structures, format="extxyz")
        command = [str(beside.MACE_TORCH.python()), str(beside.HERE / "probe.py"), str(source), str(target)]
        subprocess.run(command, check=True, env=variables("default", Path(folder)))
        return dict(np.load(target))


def mapped(probe: Probe) -> MACE:
    """Our potential with the weights of mace-torch."""
    elements, channels = probe["embedding"].shape
    widths = tuple(probe[f"layer0_network{number}"].shape[1] for number in range(2))
    hidden, energy = probe["hidden"], probe["activation"] * probe["energy"]
    potential = MACE(
        embedding=probe["embedding"],
        interactions=tuple(interaction(probe, number) for number in range(2)),
        energies=(Linear(probe["energies"], None),),
        readout=Readout(
            Linear(hidden, np.zeros(hidden.shape[1])),
            Linear(energy, np.zeros(1)),
            Linear(np.zeros((hidden.shape[1], 0)), np.zeros(0)),
        ),
        scale_ev=np.ones(elements),
        shift_ev=np.zeros(elements),
        config=MACE.Config(
            elements=("H", "C", "O"),
            channels=channels,
            radial_widths=widths,
            neighbours=float(probe["neighbours"]) ** 2,
        ),
    )
    return jax.tree.map(jnp.asarray, potential)


def interaction(probe: Probe, number: int) -> Interaction:
    """One layer. The SiLU of e3nn is the usual one times a constant, which the matrix after it takes."""
    own = {name.partition("_")[2]: value for name, value in probe.items() if name.startswith(f"layer{number}_")}
    first = own["network0"]
    without_constant = np.concatenate([first, np.zeros((1, first.shape[1]))])
    return Interaction(
        neighbour=Linear(own["neighbour"], None),
        hidden=(without_constant, probe["activation"] * own["network1"]),
        filters=tuple(np.split(probe["activation"] * own["network2"], 4, axis=1)),
        mixing=tuple(Linear(matrix, None) for matrix in own["mixing"]),
        products=products(own["features"], own["values"], probe),
        update=Linear(own["update"], None),
        residual=own["residual"],
    )


def products(features: np.ndarray, values: np.ndarray, probe: Probe) -> tuple[np.ndarray, ...]:
    """Weights of our products that give the values of symmetric products, channel by channel.

    Args:
        features: of random atoms, [atoms, channels, 16], with e3nn's harmonics.
        values: of mace-torch's products, [elements, atoms, channels].
        probe: has e3nn's harmonics of some directions, from which follows what ours are of them.
    """
    directions = probe["directions"] / np.linalg.norm(probe["directions"], axis=1, keepdims=True)
    ours = np.stack([y for each in harmonics(*directions.T) for y in each], axis=1)
    to_ours = solved(probe["harmonics"], ours)
    turned = features @ to_ours
    basis = np.stack([evaluated(turned, degrees) for degrees in invariant_products(3, 3)], axis=-1)
    weights = [
        [solved(basis[:, channel], values[z][:, channel]) for channel in range(features.shape[1])]
        for z in range(len(values))
    ]
    return tuple(np.moveaxis(np.array(weights), -1, 0))


def evaluated(features: np.ndarray, degrees: tuple[int, ...]) -> np.ndarray:
    """An invariant product of features [..., 16]."""
    return sum(
        coefficient * np.prod([features[..., degree**2 + m] for degree, m in factors], axis=0)
        for coefficient, factors in polynomial(degrees)
    )


def solved(matrix: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The exact solution of a linear system with more rows than columns."""
    solution = np.linalg.lstsq(matrix, values, rcond=None)[0]
    worst = np.abs(matrix @ solution - values).max() / np.abs(values).max()
    if worst > EXACT:
        raise ValueError(f"the bases do not span the same space: a relative residual of {worst:.1e} is left")
    return solution


def compared(potential: MACE, structures: list[Atoms], probe: Probe) -> dict[str, Any]:
    """Largest differences from mace-torch, and the sizes of what is compared."""
    graph = make_batch([structure_of(atoms) for atoms in structures], potential.config.cutoff_angstrom, ()).graph
    outputs = eqx.filter_jit(differentiate)(potential, VanillaNoise.Config().build().levels, graph)
    count = sum(map(len, structures))
    energy, forces = np.asarray(outputs.energy), -np.asarray(outputs.energy_gradient)[:count]
    return {
        "structures": len(structures),
        "atoms": count,
        "energy_range_ev": float(np.ptp(probe["total"])),
        "largest_force_ev_per_angstrom": float(np.abs(probe["forces"]).max()),
        "energy_difference_ev": float(np.abs(energy[: len(structures)] - probe["total"]).max()),
        "force_difference_ev_per_angstrom": float(np.abs(forces - probe["forces"]).max()),
    }


def structure_of(atoms: Atoms) -> Structure:
    """A structure as huefield has it."""
    return Structure(atoms.numbers.astype(np.uint8), atoms.positions, np.array(atoms.cell), atoms.pbc)


def save(potential: MACE, structures: list[Atoms], probe: Probe) -> None:
    """Write what the test needs: weights by their place in the potential, structures and mace-torch's results."""
    places, _ = jax.tree_util.tree_flatten_with_path(potential)
    weights = {jax.tree_util.keystr(place): np.asarray(leaf) for place, leaf in places}
    np.savez_compressed(
        FIXTURE,
        config=potential.config.model_dump_json(),
        sizes=[len(atoms) for atoms in structures],
        numbers=np.concatenate([atoms.numbers for atoms in structures]),
        positions=np.concatenate([atoms.positions for atoms in structures]),
        cells=np.stack([np.array(atoms.cell) for atoms in structures]),
        periodic=np.stack([atoms.pbc for atoms in structures]),
        energy=probe["total"],
        forces=probe["forces"],
        **weights,
    )


if __name__ == "__main__":
    main()
