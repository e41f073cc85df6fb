"""Do error bars of energy differences hold what they promise? On the bundled data, and beside independent ones.

    huefield config --preset small > small.yaml
    huefield train small.yaml --out run --set batch_size=8 --set stages.0.steps=8000 \
        --set stages.1.steps=1500 --set stages.2.steps=2500
    python benchmarks/differences.py run/model.safetensors

Pairs of structures of one group (one reaction, or one molecule's dynamics or normal modes) are compared with the true
difference of their energies. The model's energies are calibrated on validation structures, and what is left to scale
of differences on pairs of them; then test data are looked at. Writes results/differences.json and
docs/images/differences.png.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import norm

from huefield import load
from huefield.apps.calibrate import fit_calibration
from huefield.apps.predictions import predict_part
from huefield.core.structure import Block
from huefield.data.bundled import bundled
from huefield.data.dataset import Part
from huefield.evaluation import plots
from huefield.forcefield import Ensemble

SHARES = (0.5, 0.68, 0.9, 0.95)
TESTS = {
    "test_id": "as in training",
    "test_reactions": "other reactions",
    "test_hot": "1500 K and hotter",
}
MOST_PAIRS = 300
"""Of one group, drawn at random, so that no group outweighs all others."""
ROOT = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Pairs:
    """Errors of differences, and their standard deviations."""

    error: np.ndarray
    coherent: np.ndarray
    """From the covariance between structures."""
    independent: np.ndarray
    is_reaction: np.ndarray


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "differences.json")
    parser.add_argument("--figure", type=Path, default=ROOT.parent / "docs" / "images" / "differences.png")
    args = parser.parse_args()
    data = bundled()
    ensemble = calibrated(load(args.model), data.block("validation"))
    fitted = pairs_of(ensemble, data.block("validation"))
    scales = {
        name: float(np.sqrt(np.mean((fitted.error / getattr(fitted, name)) ** 2)))
        for name in ("coherent", "independent")
    }
    print("scale of differences on validation pairs", scales)
    found = {name: pairs_of(ensemble, data.block(name)) for name in TESTS}
    table = [row for name, pairs in found.items() for row in rows(name, pairs, scales)]
    print(markdown(table))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"scales": scales, "rows": table}, indent=1) + "\n")
    draw(found["test_id"], scales, args.figure)


def calibrated(ensemble: Ensemble, block: Block) -> Ensemble:
    """With energies and forces calibrated on these structures."""
    part = Part("validation", block, np.arange(len(block)))
    predictions = predict_part(ensemble.with_calibration(None), part, "validation").predictions
    return ensemble.with_calibration(fit_calibration(predictions, "isotonic").calibration)


def pairs_of(ensemble: Ensemble, block: Block) -> Pairs:
    """All pairs within groups of one composition."""
    structures = [block[index] for index in range(len(block))]
    terms = ensemble.energy_terms(structures)
    rng = np.random.default_rng(0)
    columns: list[tuple[float, float, float, bool]] = []
    for name, members in groups(block):
        pairs = [(a, b) for place, a in enumerate(members) for b in members[place + 1 :]]
        kept = rng.permutation(len(pairs))[:MOST_PAIRS]
        for index in kept:
            a, b = pairs[index]
            difference = terms.covariance([a, b]).difference(0, 1)
            error = difference.value - (block.energy[b] - block.energy[a])
            columns.append(
                (error, difference.uncertainty, difference.uncertainty_if_independent, name.startswith("reaction"))
            )
    error, coherent, independent, is_reaction = (np.array(column) for column in zip(*columns, strict=True))
    return Pairs(error, coherent, independent, is_reaction)


def groups(block: Block) -> Iterator[tuple[str, list[int]]]:
    """Structures of each group, by composition."""
    found: dict[tuple[str, bytes], list[int]] = {}
    for index in range(len(block)):
        numbers = np.sort(block[index].atomic_numbers).tobytes()
        found.setdefault((block.groups[index], numbers), []).append(index)
    for (name, _), members in found.items():
        yield name, members


def rows(name: str, pairs: Pairs, scales: dict[str, float]) -> Iterator[dict[str, object]]:
    """Shares of true differences within intervals."""
    for kind, keep in (("all pairs", np.ones(len(pairs.error), bool)), ("along reactions", pairs.is_reaction)):
        if not keep.any() or (kind != "all pairs" and keep.all()):
            continue
        for error_bars in ("coherent", "independent"):
            for scaled in (False, True):
                sigma = getattr(pairs, error_bars)[keep] * (scales[error_bars] if scaled else 1.0)
                z = np.abs(pairs.error[keep]) / sigma
                yield {
                    "data": name,
                    "pairs": kind,
                    "count": int(keep.sum()),
                    "error_bars": error_bars,
                    "scaled": scaled,
                    "rmse_ev": float(np.sqrt(np.mean(pairs.error[keep] ** 2))),
                    "median_sigma_ev": float(np.median(sigma)),
                    "nll": float(np.mean(0.5 * np.log(2 * np.pi * sigma**2) + 0.5 * z**2)),
                    "coverage": {str(share): float(np.mean(z < norm.ppf(0.5 + share / 2))) for share in SHARES},
                }


def markdown(table: list[dict[str, object]]) -> str:
    """The table of the docs."""
    lines = [
        "| data | pairs | error bars | RMSE (meV) | median σ (meV) | NLL | within 68 % | within 95 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        coverage = row["coverage"]
        bars = f"{row['error_bars']}{', scaled' if row['scaled'] else ''}"
        lines.append(
            f"| {TESTS[row['data']]} | {row['pairs']} ({row['count']}) | {bars} | {1e3 * row['rmse_ev']:.1f} | "
            f"{1e3 * row['median_sigma_ev']:.1f} | {row['nll']:.2f} | {100 * coverage['0.68']:.0f} % | "
            f"{100 * coverage['0.95']:.0f} % |"
        )
    return "\n".join(lines)


def draw(pairs: Pairs, scales: dict[str, float], path: Path) -> None:
    """Promised against observed coverage, and the spread of scaled errors."""
    with plots.publication_style():
        figure = Figure(figsize=(6.6, 2.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        promised = np.linspace(0.01, 0.99, 99)
        for name, color, style in (("coherent", plots.EPISTEMIC, "-"), ("independent", plots.OBSERVED, "--")):
            for scaled, width in ((False, 1.4), (True, 0.8)):
                z = np.abs(pairs.error) / (getattr(pairs, name) * (scales[name] if scaled else 1.0))
                held = [np.mean(z < norm.ppf(0.5 + share / 2)) for share in promised]
                label = f"{name}{', scaled' if scaled else ''}"
                left.plot(promised, held, style, color=color, lw=width, alpha=0.6 if scaled else 1.0, label=label)
        left.plot([0, 1], [0, 1], color=plots.TRUTH, lw=0.6, zorder=0)
        left.set(xlabel="promised share of differences", ylabel="share within the interval", aspect="equal")
        left.legend(loc="lower right")
        ratio = pairs.coherent / pairs.independent
        right.hist(ratio, bins=np.linspace(0, 1.1, 45), color=plots.EPISTEMIC, alpha=0.7)
        right.set(xlabel="σ of the difference / σ if errors were independent", ylabel="pairs")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)


if __name__ == "__main__":
    main()
