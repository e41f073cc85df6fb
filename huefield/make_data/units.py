"""Units of work: a molecule, a reaction or some frames to label, each computed once and saved in a file.

A unit depends on its arguments and a seed only, so that neither the number of workers nor an interruption changes its
result. Results are written atomically; a failure is saved as a result with its reason.
"""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from huefield.core.structure import Structure
from huefield.make_data.geometry import bonds, num_fragments
from huefield.make_data.molecules import Molecule
from huefield.make_data.neb import reaction_path
from huefield.make_data.oracles import AbstractOracle, OracleError
from huefield.make_data.plan import SamplingPlan
from huefield.make_data.reactions import HELD_OUT, Reaction
from huefield.make_data.relax import SamplingError, relaxed
from huefield.make_data.sampling import (
    MODES,
    ONE_PIECE,
    hessian,
    normal_modes,
    sample_dynamics,
    sample_modes,
)
from huefield.make_data.thinning import spread_out
from huefield.support.files import write_bytes

SHAKE_ANGSTROM = 0.05
"""Displacement of atoms before a relaxation, so that it does not end on a symmetric saddle point."""

PATH = "path: "
"""Start of the names of the groups with the images of a converged band."""


@dataclass(frozen=True, eq=False)
class UnitResult:
    """Structures of a unit, and a record of how they were made."""

    structures: list[Structure]
    record: dict[str, Any] = field(default_factory=dict)


def unit_rng(seed: int, name: str) -> np.random.Generator:
    """Random numbers of a unit, independent of the process that runs it and of the order."""
    return np.random.default_rng([seed, crc32(name.encode())])


def sample_molecule(
    molecule: Molecule, plan: SamplingPlan, oracle: AbstractOracle, rng: np.random.Generator
) -> UnitResult:
    """Sample a molecule near its minimum: normal modes, dynamics, and hot dynamics."""
    numbers = molecule.numbers
    shaken = molecule.positions + SHAKE_ANGSTROM * rng.standard_normal(molecule.positions.shape)
    minimum = relaxed(numbers, shaken, oracle)
    if not np.array_equal(bonds(numbers, minimum), bonds(numbers, molecule.positions)):
        raise SamplingError(f"{molecule.name} relaxed to another molecule: its bonds changed")
    modes = normal_modes(numbers, minimum, hessian(numbers, minimum, oracle, MODES.step_angstrom))
    sampled = sample_modes(minimum, modes, plan.modes_per_molecule, rng=rng)
    whole = [frame for frame in sampled if num_fragments(numbers, frame, ONE_PIECE) == 1]
    structures = [_structure(numbers, frame, f"{molecule.name}: normal modes") for frame in whole]
    record: dict[str, Any] = {"geometry": molecule.source, "dropped": {"in pieces": len(sampled) - len(whole)}}
    for kelvin, count in plan.dynamics_runs():
        frames, restarts = sample_dynamics(numbers, minimum, oracle, count, temperature_k=kelvin, rng=rng)
        structures += [_structure(numbers, frame, f"{molecule.name}: dynamics at {kelvin:.0f} K") for frame in frames]
        record[f"restarts at {kelvin:.0f} K"] = restarts
    return UnitResult(structures, record)


def sample_reaction(reaction: Reaction, plan: SamplingPlan, oracle: AbstractOracle) -> UnitResult:
    """Select distinct images from all bands of a reaction, always with the end points and the top.

    All images of the converged band come first, if the plan asks for them.
    """
    path = reaction_path(reaction, oracle)
    images = path.bands.shape[1]
    flat = path.bands.reshape(-1, *path.bands.shape[2:])
    last = len(flat) - images
    first = [last, last + int(path.energies.argmax()), last + images - 1]
    count = plan.frames_per_held_out_reaction if reaction.name in HELD_OUT else plan.frames_per_reaction
    chosen = spread_out(flat, count, first, plan.closest_on_path_angstrom)
    record = {
        "geometry": "Z-matrices of huefield",
        "barrier_ev": round(path.barrier, 4),
        "reaction_energy_ev": round(float(path.energies[-1] - path.energies[0]), 4),
        "bands": len(path.bands),
        "images": images,
        "largest_band_force": round(path.fmax, 4),
    }
    structures = [_structure(reaction.numbers, flat[i], f"reaction: {reaction.name}") for i in chosen]
    if plan.whole_paths:
        record["whole_path"] = images
        structures = [
            *(_structure(reaction.numbers, image, f"{PATH}{reaction.name}") for image in path.bands[-1]),
            *structures,
        ]
    return UnitResult(structures, record)


def label_structures(structures: list[Structure], largest_force: float, oracle: AbstractOracle) -> UnitResult:
    """Label structures, and drop those that the oracle cannot label or that have too large a force."""
    labelled: list[Structure] = []
    dropped = {"unlabelled": 0, "force too large": 0}
    for structure in structures:
        try:
            candidate = oracle.label(structure)
        except OracleError:
            dropped["unlabelled"] += 1
            continue
        if np.linalg.norm(np.asarray(candidate.forces), axis=1).max() > largest_force:
            dropped["force too large"] += 1
            continue
        labelled.append(candidate)
    return UnitResult(labelled, {"dropped": dropped})


def finish_unit(path: Path, work: Callable[[], UnitResult]) -> None:
    """Compute a unit unless its result exists, and save the result or the reason of a failure."""
    if path.exists():
        return
    try:
        result = work()
    except (SamplingError, OracleError) as error:
        result = UnitResult([], {"failed": str(error)})
    write_bytes(path, _encoded(result))


def read_unit(path: Path) -> UnitResult:
    """Read the result of a finished unit."""
    with np.load(path, allow_pickle=False) as content:
        count = len(content["groups"])
        structures = [
            Structure(content[f"numbers_{i}"], content[f"positions_{i}"], group=str(content["groups"][i]))
            for i in range(count)
        ]
        if "energies" in content:
            energies = content["energies"].tolist()
            structures = [
                replace(s, energy=energies[i], forces=content[f"forces_{i}"]) for i, s in enumerate(structures)
            ]
        return UnitResult(structures, json.loads(str(content["record"])))


def _encoded(result: UnitResult) -> bytes:
    arrays: dict[str, np.ndarray] = {
        "groups": np.array([s.group for s in result.structures], np.str_),
        "record": np.array(json.dumps(result.record)),
    }
    for i, structure in enumerate(result.structures):
        arrays[f"numbers_{i}"], arrays[f"positions_{i}"] = structure.atomic_numbers, structure.positions
        if structure.forces is not None:
            arrays[f"forces_{i}"] = structure.forces
    if result.structures and result.structures[0].energy is not None:
        arrays["energies"] = np.array([s.energy for s in result.structures], float)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _structure(numbers: np.ndarray, positions: np.ndarray, group: str) -> Structure:
    """Centred structure with positions rounded to single precision, as they are stored."""
    centred = (positions - positions.mean(0)).astype(np.float32).astype(np.float64)
    return Structure(numbers, centred, group=group)
