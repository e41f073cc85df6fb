"""Correcting GFN2-xTB against training directly: AcAc and ANI-1x, in and out of distribution, and 3BPA.

python benchmarks/delta.py [--only NAME ...] [--core N] [--runs FOLDER]     trains what is not trained yet
python benchmarks/delta.py --draw                                           prints the tables of docs/training.md

Needs $HUEFIELD_DATA (acac, ani1x, 3bpa). Both rows of a data set have the same split, network, steps and seed. AcAc and
ANI-1x take a smaller recipe than the preset ``small`` (32 features, half of its steps, two members), 3BPA the preset as
it is, with five members: hours, and not in the results yet. ANI-1x is split by formula, and its molecules of more than
20 atoms are a test. Error bars are calibrated on the validation data. Results go to benchmarks/results/delta.json.
"""

import time
from pathlib import Path
from typing import Any

from study import HERE, SHARED, run_study

RESULTS = HERE / "results" / "delta.json"
WAYS = ("direct", "delta")
SETS = ("acac", "ani1x", "3bpa")
ROWS = [f"{name}, {way}" for name in SETS for way in WAYS]
SMALLER: dict[str, Any] = {
    "members": 2,
    "model.potential.features": 32,
    "stages.0.steps": 6000,
    "stages.1.steps": 1000,
    "stages.2.steps": 2000,
}
TITLES = {"acac": "AcAc", "ani1x": "ANI-1x", "3bpa": "3BPA"}


def setting(name: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Data of a set, and its test parts by title."""
    from huefield.data.dataset import FileData
    from huefield.data.splits.config import RandomSplit
    from huefield.reproduce.sources import source_named

    if name == "3bpa":
        fractions = {"train": 0.8, "validation": 0.1, "test": 0.1}
        data = FileData(train=(SHARED / "3bpa" / "train_300K.xyz",), split=RandomSplit(fractions=fractions))
        return data, {"300 K": data.load()["test"]}
    source = source_named(name)
    folder.mkdir(parents=True, exist_ok=True)
    given = source.data(0, folder)
    tests = source.test_parts(given.load())
    return given, {test.title: tests[test.part] for test in source.tests}


def trained(row: str, runs: Path) -> dict[str, Any]:
    """Train, calibrate, and score on the test parts."""
    import huefield
    from huefield.predict import predict_part, with_results

    name, way = row.split(", ")
    data, tests = setting(name, runs / name)
    begin, wall = time.process_time(), time.time()
    done = huefield.train(
        "small",
        runs / f"{name}-{way}",
        data=data,
        baseline={"kind": "tblite"} if way == "delta" else None,
        overrides={} if name == "3bpa" else SMALLER,
    )
    spent = {"processor_minutes": (time.process_time() - begin) / 60, "minutes": (time.time() - wall) / 60}
    model = huefield.calibrate(done).ensemble
    scores: dict[str, Any] = {}
    for title, part in tests.items():
        known = with_results(model, part)
        scores[title] = {
            "structures": len(known),
            "as trained": metrics(predict_part(done.ensemble, known, row)),
            "calibrated": metrics(predict_part(model, known, row)),
        }
        if way == "delta":
            scores[title]["baseline alone"] = alone(predict_part(model, known, row))
    return {**spent, "tests": scores}


def metrics(predictions: Any) -> dict[str, Any]:
    """Errors, NLL and z-scores of energies and forces; None for quantities without labels."""
    from huefield.evaluation.slices import summarise

    found = summarise(predictions)
    return {
        "joint_nll": found.joint_nll,
        **{
            name: None if each is None else {key: getattr(each, key) for key in ("mae", "rmse", "nll", "rzv")}
            for name, each in (("energy", found.energy), ("forces", found.forces))
        },
    }


def alone(predictions: Any) -> dict[str, Any]:
    """Errors of the baseline without its correction."""
    from huefield.evaluation.baseline_alone import baselines_alone

    (found,) = baselines_alone([predictions])
    return {name: None if each is None else {"mae": each.mae, "rmse": each.rmse}
            for name, each in (("energy", found.energy), ("forces", found.forces))}  # fmt: skip


def tables(results: dict[str, Any]) -> str:
    """Markdown: errors of the baseline alone, of direct training and of the correction."""
    lines = ["| data | test | model | RMSE of E (meV) | of F (meV/Å) | NLL of E | of F | RZV of E | of F |"]
    lines.append("|---|---|---|" + "---:|" * 6)
    for name in SETS:
        both = {way: results[f"{name}, {way}"]["tests"] for way in WAYS if f"{name}, {way}" in results}
        for title in next(iter(both.values()), {}):
            rows = [("GFN2-xTB alone", both["delta"][title]["baseline alone"])] if "delta" in both else []
            rows += [({"direct": "direct", "delta": "corrected"}[way], found[title]["calibrated"])
                     for way, found in both.items()]  # fmt: skip
            lines += [f"| {TITLES[name]} | {title} | {label} | {' | '.join(_texts(found))} |" for label, found in rows]
    return "\n".join(lines)


def _texts(found: dict[str, Any]) -> list[str]:
    pairs = [(key, found[name]) for key in ("rmse", "nll", "rzv") for name in ("energy", "forces")]
    return ["–" if each is None or each.get(key) is None else f"{1e3 * each[key]:.1f}" if key == "rmse"
            else f"{each[key]:.2f}" for key, each in pairs]  # fmt: skip


if __name__ == "__main__":
    run_study(__doc__, {row: [(row,)] for row in ROWS}, RESULTS, tables, trained)
