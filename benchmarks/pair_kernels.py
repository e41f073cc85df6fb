"""Does the error bar of an energy difference depend on other structures, and which kernel would avoid it?

    python benchmarks/pair_kernels.py RUN

RUN is the folder of a training on the bundled data with colored or local noise. Pairs of structures of one group of the
test data, at most 12 of each, are compared alone, beside all others of their group, and with two kernels of pairs, for
structures that are superposed together. Prints ratios of standard deviations of the noise, eigenvalues, and the NLL
of the true differences.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from huefield import load
from huefield.core.superposition import superpose
from huefield.data.opening import open_data
from huefield.model.differences import EnergyTerms

MOST_STRUCTURES, FEWEST_STRUCTURES = 12, 6


def pair_mean(positions: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    """exp(−½ Σ_i ½(γ_i + γ'_i) |r_i − r'_i|²)."""
    moved = ((positions[:, None] - positions[None]) ** 2).sum(-1)
    return np.exp(-0.25 * (moved * (gamma[:, None] + gamma[None])).sum(-1))


def paciorek(positions: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    """Product over atoms of the kernel of Paciorek and Schervish 2004 in three dimensions, with lengths 1/√γ_i."""
    moved = ((positions[:, None] - positions[None]) ** 2).sum(-1)
    squares = 1 / gamma[:, None] + 1 / gamma[None]
    prefactor = (2 / np.sqrt(gamma[:, None] * gamma[None]) / squares) ** 1.5
    return prefactor.prod(-1) * np.exp(-(moved / squares).sum(-1))


def noise_covariance(terms: EnergyTerms, kernel: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Mean over members of ρρ'R, for one process."""
    laid = superpose(list(terms.structures))
    found = []
    for member, (level,) in enumerate(terms.levels):
        gamma = np.stack([g[member, 0][o] for g, o in zip(terms.inverse_lengths, laid.order, strict=True)])
        found.append(level[:, None] * level * kernel(laid.positions, gamma))
    return np.mean(found, axis=0)


def compared(terms: EnergyTerms, true: np.ndarray) -> tuple[list[list[float]], float]:
    """Standard deviations of the noise, that of the members and the error of each pair; the smallest eigenvalue."""
    whole, mean, gibbs = terms.covariance(), noise_covariance(terms, pair_mean), noise_covariance(terms, paciorek)
    rows = []
    for a in range(len(true)):
        for b in range(a + 1, len(true)):
            two = terms.covariance([a, b])
            alone = two.difference(0, 1)
            pair = [each[np.ix_([a, b], [a, b])] for each in (whole.aleatoric, mean, gibbs)]
            covariances = (two.aleatoric, *pair, np.diag(np.diag(two.aleatoric)))
            noise = [np.sqrt(max(c[0, 0] + c[1, 1] - 2 * c[0, 1], 0.0)) for c in covariances]
            rows.append([*noise, alone.uncertainty_epistemic, true[b] - true[a] - alone.value])
    return rows, np.linalg.eigvalsh(mean).min() / np.diag(mean).mean()


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    ensemble = load(run / "model.safetensors").with_calibration(None)
    block = next(iter(open_data(run, part="test_id", usual_part="test_id", reader=None).blocks()))
    groups: dict[tuple[str, bytes], list[int]] = {}
    for index in range(len(block)):
        groups.setdefault((block.groups[index], np.sort(block[index].atomic_numbers).tobytes()), []).append(index)
    rows, eigenvalues = [], []
    for members in (each[:MOST_STRUCTURES] for each in groups.values() if len(each) >= FEWEST_STRUCTURES):
        found, smallest = compared(ensemble.energy_terms([block[i] for i in members]), block.energy[members])
        rows += found
        eigenvalues.append(smallest)
    table = np.array(rows)
    print(f"{len(table)} pairs of {len(eigenvalues)} groups")
    negative = np.array(eigenvalues) < -1e-9
    print(f"mean γ of a pair: {negative.sum()} matrices are not PSD, smallest eigenvalue {min(eigenvalues):.4f} of ρ²")
    for number, name in enumerate(("alone", "beside others", "mean γ of the pair", "Paciorek", "independent")):
        low, middle, high = np.quantile(table[:, number] / table[:, 0], [0.05, 0.5, 0.95])
        variance = table[:, number] ** 2 + table[:, 5] ** 2
        nll = np.mean(0.5 * table[:, 6] ** 2 / variance + 0.5 * np.log(2 * np.pi * variance))
        print(f"{name:>20}: noise over that of the pair alone {middle:.2f} ({low:.2f} to {high:.2f}), NLL {nll:.3f}")


if __name__ == "__main__":
    main()
