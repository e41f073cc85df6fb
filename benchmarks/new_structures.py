"""Error bars for structures unlike those of training: unseen molecules and reactions, heat, larger molecules.

huefield reproduce table --data acac --only local --seeds 3 --out FOLDER       (and ani1x) trains models for their rows
python benchmarks/new_structures.py --runs FOLDER [--only NAME ...] [--core N] trains the rest, and scores
python benchmarks/new_structures.py --draw                                     prints the tables of the documentation

Bundled data: the 59 molecules and reactions are dealt into four parts, twice. Each part in turn is left out of training
and is the test ``new groups``; a tenth of the structures of the others is the test ``known groups``. Five members of 32
features, 4 500 steps. AcAc and 3BPA (labels of GFN2-xTB, hot_dynamics.py) are trained at 300 K, ANI-1x without
molecules of more than 20 atoms. Every calibration is fitted to validation data alone, which have the groups, the
temperature and the sizes of training, and scored on all tests.
Results go to benchmarks/results/new-structures.json.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from held_out import (
    FOLDS,
    bundled_model,
    bundled_parts,
    flexible_molecule,
    one_molecule,
    reproduced,
    root,
    unseen_formula,
)
from held_out_tables import SHOWN, tables
from rivals import LastLayer, members_alone
from study import HERE, run_study

RESULTS = HERE / "results" / "new-structures.json"
DEALS = 2
SEEDS = range(3)
ROWS = [
    *(f"bundled, part {deal}{fold}" for deal in range(DEALS) for fold in range(FOLDS)),
    *(f"{name}, seed {seed}" for name in ("acac", "3bpa", "ani1x", "transition1x", "ethanol") for seed in SEEDS),
]

OPENED = {"3bpa": flexible_molecule, "transition1x": unseen_formula, "ethanol": one_molecule}
"""Models that are trained here, by the names of their data."""


def opened(row: str, runs: Path) -> tuple[Any, dict[str, Any]]:
    """The model of a row, without growth of its noise, and its parts: training, validation, then tests."""
    name, number = row.split(", ")
    digits = [int(digit) for digit in number.split()[1]]
    if name == "bundled":
        blocks = bundled_parts(digits[0], digits[1])
        model = bundled_model(digits[0], digits[1], blocks, runs)
    elif name in OPENED:
        model, blocks = OPENED[name](digits[0], runs)
    else:
        model, blocks = reproduced(name, digits[0], runs)
    return replace(model, members=replace(model.members, novelty=None)), blocks


def trained(row: str, runs: Path) -> dict[str, Any]:
    """Scores of each method on each test."""
    import jax

    from huefield.predict import predict_part

    jax.clear_caches()  # thousands of compiled programs exceed the memory maps of a process
    plain, blocks = opened(row, runs)
    parts = parts_of(blocks)
    methods = rivals(plain, parts)
    models = {"without": calibrated(plain, parts), "with": calibrated(grown(plain, parts), parts)}
    scores: dict[str, Any] = {title: {} for title in parts if title not in ("train", "validation")}
    for title, found in scores.items():
        before = predict_part(plain, parts[title], title)
        found |= {key: scored(method(before)) for key, method in methods.items()}
        for key, model in models.items():
            predictions = predict_part(model, parts[title], key)
            groups = by_group(predictions) if key == "with" else {}
            found[key] = scored(predictions) | differences(model, blocks[title]) | groups
    return {"tests": scores}


def parts_of(blocks: dict[str, Any]) -> dict[str, Any]:
    """Blocks as parts of data."""
    from huefield.data.dataset import Part

    return {title: Part(title, block, np.arange(len(block))) for title, block in blocks.items()}


def grown(plain: Any, parts: dict[str, Any]) -> Any:
    """The model with noise that grows with the distance to its training data."""
    from huefield.training.novelty import with_novelty

    return with_novelty(plain, parts)


def calibrated(model: Any, parts: dict[str, Any]) -> Any:
    """The model with the coherent calibration of validation data."""
    from huefield.evaluation.coherent import fit_predictions, with_joint_tails
    from huefield.predict import predict_part

    before = predict_part(model, parts["validation"], "before")
    factors, _ = fit_predictions(before, grows=model.members.novelty is not None)
    after = predict_part(model.with_calibration(factors), parts["validation"], "after")
    return model.with_calibration(with_joint_tails(factors, after))


def rivals(plain: Any, parts: dict[str, Any]) -> dict[str, Callable[[Any], Any]]:
    """Functions from uncalibrated predictions to those of each rival."""
    from huefield.evaluation.fits import fit_calibration
    from huefield.predict import predict_part

    validation = predict_part(plain, parts["validation"], "validation")
    isotonic, scale = (fit_calibration(validation, method).calibration for method in ("isotonic", "scale"))
    members = fit_calibration(members_alone(validation), "scale").calibration
    return {
        "members": lambda found: members_alone(found).calibrated(members),
        "llpr": LastLayer(plain, parts["train"].block(np.arange(len(parts["train"]))), validation),
        "scale": lambda found: found.calibrated(scale),
        "isotonic": lambda found: found.calibrated(isotonic),
    }


def scored(predictions: Any) -> dict[str, Any]:
    """Errors, likelihoods, coverage, widths and ranking."""
    from huefield.evaluation.metrics import interval_score
    from huefield.evaluation.slices import summarise

    found = summarise(predictions)
    scores: dict[str, Any] = {"structures": len(predictions), "joint_nll": found.joint_nll}
    for name, each in (("energy", found.energy), ("forces", found.forces)):
        observed = predictions.observed(name)
        if each is None or observed is None:
            continue
        kept = {key: getattr(each, key) for key in ("rmse", "nll", "crps", "rzv", "ence", "rank_correlation", "auroc")}
        scores[name] = {
            **kept,
            "interval_score": interval_score(observed.error, observed.variance, SHOWN[1], observed.dof),
            "coverage": {str(c.nominal): c.observed for c in each.coverage if c.nominal in SHOWN},
            "width": float(np.median(np.sqrt(observed.variance))),
        }
    return scores


def differences(model: Any, block: Any) -> dict[str, Any]:
    """Coverage of energy differences within groups; nothing without pairs."""
    from huefield.evaluation.pairs import energy_pairs

    pairs = energy_pairs(model, block)
    if not pairs:
        return {}
    held = {str(c): pairs.held(model.calibration.difference_width(c)) for c in SHOWN}
    return {"differences": {"coverage": held, "pairs": len(pairs)}}


def by_group(predictions: Any) -> dict[str, Any]:
    """Numbers of errors within intervals of 68 and 95 %, and of all, for each molecule, reaction or trajectory."""
    from huefield.core.tails import interval_width

    roots = np.array([root(group or "") for group in predictions.structures.groups])
    found: dict[str, Any] = {}
    for name in ("energy", "forces"):
        observed = predictions.observed(name)
        if observed is None:
            continue
        ratio, owners = np.abs(observed.error) / np.sqrt(observed.variance), roots[observed.structure]
        within = [ratio <= interval_width(c, observed.dof) for c in SHOWN] + [np.ones(len(ratio), bool)]
        for group in np.unique(owners):
            found.setdefault(str(group), {})[name] = [int(each[owners == group].sum()) for each in within]
    return {"groups": found}


if __name__ == "__main__":
    run_study(__doc__, {row: [(row,)] for row in ROWS}, RESULTS, tables, trained)
