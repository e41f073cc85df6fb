"""Error bars far beyond the training data: bonds and molecules compressed and stretched, fragments, random mixtures.

python benchmarks/physics_probes.py --runs FOLDER [--core N]   with the folder of new_structures.py: trains or scores
python benchmarks/physics_probes.py --draw                     prints the table of docs/reproduction/new-structures.md

Model: the first of the eight of the bundled data in new_structures.py, calibrated on validation data. Probes: two bonds
of each molecule of its training data, one side moved along the bond, or 6 Å away, or alone; the whole molecule scaled;
atoms of CNOH₃ at random places, no closer than a given distance. Labels are those of GFN2-xTB.
Results go to benchmarks/results/physics-probes.json.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from new_structures import calibrated, grown, opened, parts_of
from study import HERE, run_study

from huefield.core.structure import Structure

RESULTS = HERE / "results" / "physics-probes.json"
BONDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0)
SCALES = (0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
RADII = {1: 0.31, 6: 0.76, 7: 0.71, 8: 0.66}
"""Covalent radii [Å]."""
EVERY = 2
"""Bonds of a molecule."""
FAR = 6.0
"""Distance that a side of a bond is moved away [Å]."""
CLOSEST, MIXTURES = (0.8, 1.0, 1.2), 20
"""Closest distances of random mixtures [Å], and mixtures for each."""
MIXTURE = np.array([6, 7, 8, 1, 1, 1], np.uint8)
TITLES = {
    "bond": "one bond, times",
    "apart": "one side of a bond away (Å)",
    "fragment": "one side of a bond alone: an atom (0) or several (1)",
    "scale": "whole molecule, times",
    "mixture": "random CNOH₃, closest distance (Å)",
}


def molecules(block: Any) -> Iterator[tuple[str, Any]]:
    """Each molecule at its lowest energy."""
    lowest: dict[str, int] = {}
    for index, group in enumerate(block.groups):
        name = group.split(":")[0]
        if name != "reaction" and (name not in lowest or block.energy[index] < block.energy[lowest[name]]):
            lowest[name] = index
    structures = list(block)
    yield from ((name, structures[index]) for name, index in lowest.items())


def cut_bonds(structure: Any) -> list[tuple[int, int, list[int]]]:
    """Bonds outside of rings: both atoms, and the atoms on the side of the second."""
    from scipy.sparse.csgraph import connected_components

    distances = np.linalg.norm(structure.positions[:, None] - structure.positions[None], axis=-1)
    radii = np.array([RADII[int(number)] for number in structure.atomic_numbers])
    bonded = (distances < 1.25 * (radii[:, None] + radii)) & ~np.eye(len(radii), dtype=bool)
    found = []
    for first, second in zip(*np.nonzero(np.triu(bonded)), strict=True):
        without = bonded.copy()
        without[first, second] = without[second, first] = False
        side = connected_components(without, directed=False)[1]
        if side[first] != side[second]:
            found.append((int(first), int(second), np.flatnonzero(side == side[second]).tolist()))
    return found


def probes(block: Any) -> Iterator[tuple[str, float, Any]]:
    """Kind and name, factor, and structure, without labels."""
    rng = np.random.default_rng(0)
    for name, structure in molecules(block):
        bonds = cut_bonds(structure)
        for first, second, side in (bonds[index] for index in rng.permutation(len(bonds))[:EVERY]):
            yield from of_bond(f"{name} {first}-{second}", structure, first, second, side)
        centre = structure.positions.mean(0)
        for factor in SCALES:
            positions = centre + factor * (structure.positions - centre)
            yield f"scale {name}", factor, replace(structure, positions=positions)
    for closest in CLOSEST:
        for number in range(MIXTURES):
            yield f"mixture {number}", closest, Structure(MIXTURE, mixed(closest, rng))


def of_bond(name: str, structure: Any, first: int, second: int, side: list[int]) -> Iterator[tuple[str, float, Any]]:
    """One side moved along the bond, moved far away, and alone."""
    bond = structure.positions[second] - structure.positions[first]
    length = float(np.linalg.norm(bond))
    for kind, shown, factor in (*(("bond", factor, factor) for factor in BONDS), ("apart", FAR, FAR / length)):
        positions = structure.positions.copy()
        positions[side] += (factor - 1.0) * bond
        yield f"{kind} {name}", shown, replace(structure, positions=positions)
    alone = Structure(structure.atomic_numbers[side], structure.positions[side])
    yield f"fragment {name}", float(len(side) > 1), alone


def mixed(closest: float, rng: np.random.Generator) -> np.ndarray:
    """Places of the atoms of a mixture in a cube that is as small as random places allow."""
    edge = closest
    while True:
        edge *= 1.01
        positions = rng.uniform(0, edge, (len(MIXTURE), 3))
        apart = np.linalg.norm(positions[:, None] - positions[None], axis=-1)[np.triu_indices(len(MIXTURE), 1)]
        if apart.min() >= closest:
            return positions


def labelled(block: Any) -> Iterator[tuple[str, float, Any]]:
    """Probes for which GFN2-xTB converges."""
    from huefield.make_data.oracles import OracleError, TbliteOracle

    oracle = TbliteOracle()
    for name, factor, structure in probes(block):
        try:
            yield name, factor, oracle.label(structure)
        except OracleError:
            continue


def trained(row: str, runs: Path) -> dict[str, Any]:
    """Errors and error bars by kind and factor, without and with distances to the training data."""
    from huefield.core.structure import pack
    from huefield.predict import predict_part

    plain, blocks = opened("bundled, part 00", runs)
    parts = parts_of(blocks)
    given = list(labelled(blocks["train"]))
    block = pack([structure for *_, structure in given], np.arange(len(given)), "probes")
    probed = parts_of({"probes": block})["probes"]
    models = {"without": plain, "with": grown(plain, parts)}
    return {key: by_factor(given, predict_part(calibrated(model, parts), probed, key)) for key, model in models.items()}


def by_factor(given: list[tuple[str, float, Any]], predictions: Any) -> dict[str, Any]:
    """Medians of the largest error and σ of a structure, and the share of atoms within 3σ, for each kind and factor."""
    block = predictions.structures
    errors = np.linalg.norm(block.forces - predictions.forces.mean, axis=1)
    widths = np.sqrt(predictions.forces.variance.sum(1))
    largest: dict[str, dict[float, list[tuple[float, float]]]] = {}
    within: dict[str, dict[float, list[bool]]] = {}
    curves: dict[str, dict[float, float]] = {}
    for row, index in enumerate(block.frames):
        name, factor, _ = given[index]
        atoms, kind = slice(block.starts[row], block.starts[row + 1]), name.split()[0]
        largest.setdefault(kind, {}).setdefault(factor, []).append((errors[atoms].max(), widths[atoms].max()))
        within.setdefault(kind, {}).setdefault(factor, []).extend(errors[atoms] < 3 * widths[atoms])
        curves.setdefault(name, {})[factor] = float(widths[atoms].max())
    rows = {
        kind: {
            f"{factor:g}": {
                "error": float(np.median([error for error, _ in pairs])),
                "sigma": float(np.median([sigma for _, sigma in pairs])),
                "within": float(np.mean(within[kind][factor])),
            }
            for factor, pairs in sorted(factors.items())
        }
        for kind, factors in largest.items()
    }
    everything = [one for factors in within.values() for share in factors.values() for one in share]
    return {"rows": rows, "within": float(np.mean(everything)), "falls": falling(curves)}


def falling(curves: dict[str, dict[float, float]]) -> dict[str, float]:
    """Share of steps, away from 0.9 and 1.1, in which the largest σ of a structure falls by more than a twentieth."""
    steps: dict[str, list[bool]] = {"compressed": [], "stretched": []}
    for name, curve in curves.items():
        if not name.startswith(("bond", "scale")):
            continue
        factors = sorted(curve)
        both = {"compressed": [f for f in factors[::-1] if f <= 0.9], "stretched": [f for f in factors if f >= 1.1]}
        for direction, away in both.items():
            steps[direction] += [curve[after] < 0.95 * curve[before] for before, after in pairwise(away)]
    return {name: float(np.mean(each)) for name, each in steps.items()}


def tables(results: dict[str, Any]) -> str:
    """Markdown: errors and error bars by factor."""
    found = results["probes"]
    lines = ["| probe | factor | largest error (eV/Å) | largest σ, without | with | atoms within 3σ, without | with |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for kind, title in TITLES.items():
        for factor, row in found["without"]["rows"][kind].items():
            other = found["with"]["rows"][kind][factor]
            numbers = f"{row['error']:.2g} | {row['sigma']:.2g} | {other['sigma']:.2g}"
            lines.append(f"| {title} | {factor} | {numbers} | {row['within']:.0%} | {other['within']:.0%} |")
    for key in ("without", "with"):
        lines.append(f"\n{key}: {found[key]['within']:.1%} of all atoms within 3σ; σ falls in {found[key]['falls']}")
    return "\n".join(lines)


if __name__ == "__main__":
    run_study(__doc__, {"probes": [("probes",)]}, RESULTS, tables, trained)
