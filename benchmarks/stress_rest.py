"""What the diagonal noise of strain derivatives leaves out, for structures of the mlearn data.

python benchmarks/stress_rest.py

Needs $HUEFIELD_DATA/mlearn. In the model of huefield/core/strain.py, the rest of the force noise comes from independent
forces f_p between pairs p of neighbours. Forces F and strain derivatives W are both linear in them, so that their
covariances are known. Printed for each group of structures, mean and largest value:

- the share of the variance of W, averaged over its six components, that all forces together determine;
- the largest |M_ab|, a ≠ b, relative to the mean M_aa, where M is the matrix of second moments of the pairs.
"""

from collections import defaultdict

import numpy as np
from ase import Atoms
from ase.io import read
from ase.neighborlist import neighbor_list
from study import SHARED

CUTOFF_ANGSTROM = 5.0
EVERY = 6
"""Structures are taken with this step."""


def pairs(atoms: Atoms) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Both atoms of each pair, their vector, and the variance of its force for force variances of 1."""
    first, second, vectors = neighbor_list("ijD", atoms, CUTOFF_ANGSTROM)
    weights = (1 - (vectors**2).sum(1) / CUTOFF_ANGSTROM**2) ** 3
    shares = weights / np.bincount(first, weights, len(atoms))[first]
    rounded = np.round(vectors, 5) + 0.0
    place = {(a, b, *v): k for k, (a, b, v) in enumerate(zip(first, second, rounded, strict=True))}
    back = np.array([place[b, a, *(0.0 - v)] for a, b, v in zip(first, second, rounded, strict=True)])
    once = np.arange(len(first)) < back
    return first[once], second[once], vectors[once], 0.5 * (shares + shares[back])[once]


def left_out(atoms: Atoms) -> tuple[float, float]:
    """The share of the variance of W that forces determine, and the largest off-diagonal moment."""
    first, second, vectors, var = pairs(atoms)
    count = len(atoms)
    incidence = np.zeros((count, len(first)))
    incidence[first, np.arange(len(first))] += 1.0
    incidence[second, np.arange(len(first))] -= 1.0
    of_forces = (incidence * var) @ incidence.T  # of one Cartesian component
    with_strain = (incidence * var) @ vectors
    known = with_strain.T @ np.linalg.pinv(of_forces, rcond=1e-10, hermitian=True) @ with_strain
    moments = (vectors.T * var) @ vectors
    a, b = np.triu_indices(3)

    def variances(m: np.ndarray) -> np.ndarray:
        return 0.25 * (m[a, a] + m[b, b]) * (1 + (a == b))

    crossed = np.abs(moments - np.diag(np.diag(moments))).max() / np.diag(moments).mean()
    return float(np.mean(variances(known) / variances(moments))), float(crossed)


def main() -> None:
    """Print both numbers for each group."""
    for element in ("Si", "Li"):
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for atoms in read(SHARED / "mlearn" / f"{element}_training.xyz", f"::{EVERY}"):
            found[atoms.info["group"]].append(left_out(atoms))
        for group, rows in found.items():
            mean, most = np.mean(rows, 0), np.max(rows, 0)
            shares = f"share of W in forces {mean[0]:.3f} (up to {most[0]:.3f})"
            print(f"{element} {group}, {len(rows)} structures: {shares}, M_ab {mean[1]:.3f} (up to {most[1]:.3f})")


if __name__ == "__main__":
    main()
