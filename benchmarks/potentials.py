"""Error against training time of PaiNN and MACE: one member on AcAc, ANI-1x and 3BPA, with the recipe of ``small``.

python benchmarks/potentials.py [--only NAME ...] [--core N] [--runs FOLDER]     trains what is not trained yet
python benchmarks/potentials.py --draw                                           prints the table of docs/potentials.md

Needs $HUEFIELD_DATA (acac, ani1x, 3bpa). Rows of a data set have the same split, steps, batches and seed; each
potential has a learning rate of its own. 12 000 steps of squared error, 2 000 of β-NLL, 4 000 of NLL,
batches of 4. Minutes are those of the steps, on one core. Results go to benchmarks/results/potentials.json.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from study import HERE, SHARED, run_study, scored

RESULTS = HERE / "results" / "potentials.json"
RANDOM = {"kind": "random", "fractions": {"train": 0.9, "validation": 0.1}}
BY_FORMULA = {"kind": "formula", "fractions": {"train": 0.8, "validation": 0.1, "test": 0.1}}
SETS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "acac": ("acac/train_300K.xyz", RANDOM, {"300 K": "acac/test_MD_300K.xyz", "600 K": "acac/train_600K.xyz"}),
    "ani1x": ("ani1x/ani1x_800.xyz", BY_FORMULA, {}),
    "3bpa": ("3bpa/train_300K.xyz", RANDOM, {}),
}
"""File, split, and files of tests."""
COMMON: dict[str, Any] = {"members": 5}
KINDS: dict[str, dict[str, Any]] = {
    "painn": {},
    "mace": {
        "model.potential": {"kind": "mace", "channels": 64, "radial_widths": [], "neighbours": 16},
        "stages.0.learning_rate": 2e-3,
        "stages.0.decay": 0.005,
    },
}
TITLES = {"acac": "AcAc", "ani1x": "ANI-1x", "3bpa": "3BPA", "painn": "PaiNN", "mace": "MACE"}


def trained(name: str, kind: str, runs: Path) -> dict[str, Any]:
    """Train the first member, and score it on validation data and tests."""
    import huefield
    from huefield.data.dataset import open_part

    file, split, files = SETS[name]
    folder = runs / f"{name}-{kind}"
    overrides = {"data.split": split, **COMMON, **KINDS[kind]}
    done = huefield.train("small", folder, data=str(SHARED / file), overrides=overrides, member=0)
    found = {title: scored(done.ensemble, open_part(title, [SHARED / path])) for title, path in files.items()}
    return {
        "minutes": minutes(folder),
        "tests": {title: kept_of(each) for title, each in (done.scores | found).items()},
    }


def minutes(folder: Path) -> dict[str, float]:
    """Time of the steps of each stage: their number times the median time of one."""
    events = [json.loads(line) for line in (folder / "member-0" / "history.jsonl").read_text().splitlines()]
    spent: dict[str, float] = {}
    for stage in sorted({each["stage"] for each in events}):
        steps = [each for each in events if each["event"] == "steps" and each["stage"] == stage]
        paces = [(b["time"] - a["time"]) / (b["step"] - a["step"]) for a, b in pairwise(steps) if b["step"] > a["step"]]
        spent[steps[0]["kind"]] = float(np.median(paces)) * max(each["step"] for each in steps) / 60
    return spent


def kept_of(scores: Any) -> dict[str, Any]:
    """Errors, NLL and z-scores of one member."""
    return {
        name: {key: getattr(each, key) for key in ("rmse", "nll", "rzv")}
        for name, each in (("energy", scores.energy), ("forces", scores.forces))
        if each is not None
    }


def table(results: dict[str, Any]) -> str:
    """Markdown: errors of both potentials."""
    lines = [
        "| data | test | potential | minutes of one core | energy (meV) | NLL | RZV | forces (meV/Å) | NLL | RZV |"
    ]
    lines.append("|---|---|---|" + "---:|" * 7)
    for name in SETS:
        titles = dict.fromkeys(title for found in results.get(name, {}).values() for title in found["tests"])
        for title in titles:
            for kind, found in results[name].items():
                cells = [f"{sum(found['minutes'].values()):.1f}"]
                for quantity, digits in (("energy", 1), ("forces", 1)):
                    each = found["tests"][title][quantity]
                    cells += [f"{1e3 * each['rmse']:.{digits}f}", f"{each['nll']:.2f}", f"{each['rzv']:.2f}"]
                lines.append(f"| {TITLES[name]} | {title} | {TITLES[kind]} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    rows = {f"{name}, {kind}": [(name, kind)] for name in SETS for kind in KINDS}
    run_study(__doc__, rows, RESULTS, table, trained)
