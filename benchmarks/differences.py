"""Coverage of error bars of energy differences on the bundled data, compared with those for independent errors.

    huefield config --preset small > small.yaml
    huefield train small.yaml --out run --set batch_size=8 --set stages.0.steps=8000 \
        --set stages.1.steps=1500 --set stages.2.steps=2500
    python benchmarks/differences.py run/model.safetensors

Pairs of structures of one group (one reaction, or one molecule's dynamics or normal modes) are compared with the true
difference of their energies. The model's energies are calibrated on validation structures, and intervals of
differences on pairs of them; the coverage is measured on test data. Writes results/differences.json and
docs/images/differences.png.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from huefield import load
from huefield.core.structure import Block
from huefield.core.tails import interval_width
from huefield.data.bundled.sets import bundled
from huefield.data.dataset import Part
from huefield.evaluation.fits import fit_calibration
from huefield.evaluation.pairs import EnergyPairs, energy_pairs, fit_differences
from huefield.model.calibration import ONE_SIGMA, ConformalCalibration
from huefield.model.ensemble import Ensemble
from huefield.predict import predict_part
from huefield.support import plots

COVERAGES = (0.5, 0.68, 0.9, 0.95)
TESTS = {
    "test_id": "as in training",
    "test_reactions": "other reactions",
    "test_hot": "1500 K and hotter",
}
ROOT = Path(__file__).resolve().parent


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "differences.json")
    parser.add_argument("--figure", type=Path, default=ROOT.parent / "docs" / "images" / "differences.png")
    args = parser.parse_args()
    data = bundled()
    ensemble = calibrated(load(args.model), data.block("validation"))
    widths = fit_differences(energy_pairs(ensemble, data.block("validation")))
    if widths is None:
        raise SystemExit("too few validation pairs")
    found = {name: energy_pairs(ensemble, data.block(name)) for name in TESTS}
    table = [row for name, pairs in found.items() for row in rows(name, pairs, widths)]
    print(markdown(table))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"rows": table}, indent=1) + "\n")
    draw(found["test_id"], widths, args.figure)


def calibrated(ensemble: Ensemble, block: Block) -> Ensemble:
    """With energies and forces calibrated on these structures."""
    part = Part("validation", block, np.arange(len(block)))
    predictions = predict_part(ensemble.with_calibration(None), part, "validation")
    return ensemble.with_calibration(fit_calibration(predictions, "isotonic").calibration)


def rows(name: str, pairs: EnergyPairs, widths: ConformalCalibration) -> Iterator[dict[str, Any]]:
    """Shares of true differences within intervals."""
    reactions = np.array([group.startswith("reaction") for group in pairs.groups])
    for kind, keep in (("all pairs", np.ones(len(pairs), bool)), ("along reactions", reactions)):
        if not keep.any() or (kind != "all pairs" and keep.all()):
            continue
        for bars, (deviation, width) in error_bars(pairs, widths).items():
            sigma = deviation[keep] * width(ONE_SIGMA)
            z = np.abs(pairs.error[keep]) / deviation[keep]
            yield {
                "data": name,
                "pairs": kind,
                "count": int(keep.sum()),
                "error_bars": bars,
                "rmse_ev": float(np.sqrt(np.mean(pairs.error[keep] ** 2))),
                "median_sigma_ev": float(np.median(sigma)),
                "coverage": {str(coverage): float(np.mean(z <= width(coverage))) for coverage in COVERAGES},
            }


def error_bars(
    pairs: EnergyPairs, widths: ConformalCalibration
) -> dict[str, tuple[np.ndarray, Callable[[float], float]]]:
    """By name: standard deviations, and how many of them an interval takes."""
    return {
        "covariance, calibrated": (pairs.deviation, widths.width),
        "covariance": (pairs.deviation, interval_width),
        "independent": (pairs.independent, interval_width),
    }


def markdown(table: list[dict[str, Any]]) -> str:
    """The table of the docs."""
    lines = [
        "| data | pairs | error bars | RMSE (meV) | median σ (meV) | 68 % hold | 95 % hold |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in table:
        held = row["coverage"]
        lines.append(
            f"| {TESTS[row['data']]} | {row['pairs']} ({row['count']}) | {row['error_bars']} | "
            f"{1e3 * row['rmse_ev']:.0f} | {1e3 * row['median_sigma_ev']:.0f} | {100 * held['0.68']:.0f} % | "
            f"{100 * held['0.95']:.0f} % |"
        )
    return "\n".join(lines)


def draw(pairs: EnergyPairs, widths: ConformalCalibration, path: Path) -> None:
    """Promised against observed coverage, and how much smaller the error bars of differences are."""
    with plots.publication_style():
        figure = Figure(figsize=(6.6, 2.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        promised = np.linspace(0.01, 0.99, 99)
        styles = (("-", plots.EPISTEMIC), (":", plots.EPISTEMIC), ("--", plots.OBSERVED))
        for (name, (deviation, width)), (style, color) in zip(error_bars(pairs, widths).items(), styles, strict=True):
            held = [np.mean(np.abs(pairs.error) <= width(coverage) * deviation) for coverage in promised]
            left.plot(promised, held, style, color=color, label=name)
        left.plot([0, 1], [0, 1], color=plots.TRUTH, lw=0.6, zorder=0)
        left.set(xlabel="nominal coverage", ylabel="observed coverage", aspect="equal")
        left.legend(loc="lower right")
        right.hist(pairs.deviation / pairs.independent, bins=np.linspace(0, 1.1, 45), color=plots.EPISTEMIC, alpha=0.7)
        right.set(xlabel="σ of the difference / σ if errors were independent", ylabel="pairs")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)


if __name__ == "__main__":
    main()
