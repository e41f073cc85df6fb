"""Error bars for structures unlike those of training: unseen molecules and reactions, heat, larger molecules.

huefield reproduce table --data acac --only local --seeds 3 --out FOLDER       (and ani1x) trains models for their rows
python benchmarks/new_structures.py --runs FOLDER [--only NAME ...] [--core N] trains the rest, and scores
python benchmarks/new_structures.py --draw                                     prints the table of the documentation

Bundled data: the 59 molecules and reactions are dealt into four parts. Each part in turn is left out of training and
is the test ``new groups``; a tenth of the structures of the others is the test ``known groups``. Five members of 32
features, 4 500 steps. AcAc is trained at 300 K, ANI-1x without molecules of more than 20 atoms. Every calibration is
fitted to validation data alone, which have the groups, the temperature and the sizes of training, and scored on all
tests.
Results go to benchmarks/results/new-structures.json.
"""

from pathlib import Path
from typing import Any

import numpy as np
from study import HERE, run_study

RESULTS = HERE / "results" / "new-structures.json"
FOLDS, MEMBERS = 4, 5
SEEDS = range(3)
ROWS = [
    *(f"bundled, part {fold}" for fold in range(FOLDS)),
    *(f"{name}, seed {seed}" for name in ("acac", "ani1x") for seed in SEEDS),
]
METHODS = {
    "isotonic": "isotonic",
    "scale": "one factor",
    "without": "coherent, without distances",
    "with": "coherent, with distances",
}
SHOWN = (0.68, 0.95)


def root(group: str) -> str:
    """The molecule or reaction of a group."""
    return group if group.startswith(("reaction", "path")) else group.split(":")[0]


def bundled_parts(fold: int) -> dict[str, Any]:
    """Blocks of training, validation and tests, with a quarter of the molecules and reactions left out."""
    from huefield.core.structure import joined
    from huefield.data.bundled.sets import bundled

    data = bundled()
    names = ("train", "validation", "test_id", "test_reactions")
    whole, hot = joined([data.blocks[name] for name in names], "bundled"), data.blocks["test_hot"]
    roots = np.array([root(group) for group in whole.groups])
    distinct = np.unique(roots)
    left_out = distinct[np.random.default_rng(0).permutation(len(distinct))[fold::FOLDS]]
    new = np.isin(roots, left_out)
    known = np.random.default_rng(100 + fold).permutation(np.flatnonzero(~new))
    ends = int(0.8 * len(known)), int(0.9 * len(known))
    known_hot = ~np.isin([root(group) for group in hot.groups], left_out)

    def chosen(rows: np.ndarray) -> Any:
        return whole.select(np.isin(np.arange(len(whole)), rows))

    return {
        "train": chosen(known[: ends[0]]),
        "validation": chosen(known[ends[0] : ends[1]]),
        "known groups": chosen(known[ends[1] :]),
        "new groups": whole.select(new),
        "known molecules at 1500 and 2000 K": hot.select(known_hot),
        "new molecules at 1500 and 2000 K": hot.select(~known_hot),
    }


def bundled_model(fold: int, parts: dict[str, Any], runs: Path) -> Any:
    """Five members, trained one by one without growth of their noise."""
    import huefield
    from huefield.data.dataset import FileData
    from huefield.data.store.format import Provenance
    from huefield.data.store.writer import StoreWriter
    from huefield.model import Ensemble
    from huefield.potentials import PaiNN
    from huefield.training.presets import three_stages, with_care

    folder = runs / f"bundled{fold}"
    files = {name: folder / f"{name}.hues" for name in ("train", "validation")}
    models = [folder / f"full{member}" / "model.safetensors" for member in range(MEMBERS)]
    for member, model in enumerate(models):
        if model.exists():
            continue
        for name, file in files.items():
            made = Provenance(huefield=huefield.__version__, precision="float64", sources=())
            with StoreWriter(file, made, resume=False, overwrite=True) as writer:
                writer.append(parts[name])
                writer.finish()
        config = with_care(
            FileData(train=(files["train"],), validation=(files["validation"],), allow_shared=True),
            PaiNN.Config(features=32, radial_functions=10),
            three_stages((3000, 500, 1000), 1e-2, 5e-4),
            members=1, batch_size=8, validate_every=250, checkpoint_every=500,
        )  # fmt: skip
        huefield.train(config.model_copy(update={"seed": member, "novelty": False}), model.parent)
    members = [huefield.load(model) for model in models]
    return Ensemble.from_members([each.member(0) for each in members]).with_atom_energies(
        dict(members[0].atom_energies)
    )


def reproduced(name: str, seed: int, runs: Path) -> tuple[Any, dict[str, Any]]:
    """A model of ``huefield reproduce``, and the parts of its data."""
    import huefield
    from huefield.core.structure import joined
    from huefield.reproduce.sources import source_named

    source, folder = source_named(name), runs / name / f"seed-{seed}"
    given = source.data(seed, folder).load()
    tests = source.test_parts(given)
    chosen = {part: given[part] for part in ("train", "validation")}
    chosen |= {test.title: tests[test.part] for test in source.tests}
    parts = {title: joined(list(part.blocks()), title) for title, part in chosen.items()}
    return huefield.load(folder / "local" / "run" / "model.safetensors").with_calibration(None), parts


def trained(row: str, runs: Path) -> dict[str, Any]:
    """Scores of each method on each test."""
    from dataclasses import replace

    import jax

    from huefield.data.dataset import Part
    from huefield.evaluation.coherent import fit_predictions, with_joint_tails
    from huefield.evaluation.fits import fit_calibration
    from huefield.predict import predict_part
    from huefield.training.novelty import with_novelty

    jax.clear_caches()  # thousands of compiled programs exceed the memory maps of a process
    name, number = row.split(", ")
    seed = int(number.split()[1])
    if name == "bundled":
        blocks = bundled_parts(seed)
        plain = bundled_model(seed, blocks, runs)
    else:
        plain, blocks = reproduced(name, seed, runs)
    plain = replace(plain, members=replace(plain.members, novelty=None))
    parts = {title: Part(title, block, np.arange(len(block))) for title, block in blocks.items()}
    scores: dict[str, Any] = {title: {} for title in parts if title not in ("train", "validation")}
    for key, model in (("without", plain), ("with", with_novelty(plain, parts))):
        validation = predict_part(model, parts["validation"], key)
        calibration, _ = fit_predictions(validation)
        tails = with_joint_tails(
            calibration, predict_part(model.with_calibration(calibration), parts["validation"], key)
        )
        done = model.with_calibration(tails)
        for title, found in scores.items():
            found[key] = scored(predict_part(done, parts[title], key), done, blocks[title])
            if key == "without":
                before = predict_part(model, parts[title], key)
                for method in ("scale", "isotonic"):
                    found[method] = scored(before.calibrated(fit_calibration(validation, method).calibration))
    return {"tests": scores}


def scored(predictions: Any, model: Any = None, block: Any = None) -> dict[str, Any]:
    """Errors, likelihoods, coverage, widths and ranking; of energy differences only with a model."""
    from huefield.evaluation.pairs import energy_pairs
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
            "coverage": {str(c.nominal): c.observed for c in each.coverage if c.nominal in SHOWN},
            "width": float(np.median(np.sqrt(observed.variance))),
        }
    if model is not None and (pairs := energy_pairs(model, block)):
        held = {str(c): pairs.held(model.calibration.difference_width(c)) for c in SHOWN}
        scores["differences"] = {"coverage": held, "pairs": len(pairs)}
    return scores


def tables(results: dict[str, Any]) -> str:
    """Markdown: means over parts of the groups, or over seeds."""
    heads = [
        "test",
        "error bars",
        "E: 68/95 % hold",
        "RZV",
        "NLL",
        "ΔE: hold",
        "F: hold",
        "RZV",
        "NLL",
        "width",
        "joint NLL",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for name in ("bundled", "acac", "ani1x"):
        rows = [found["tests"] for row, found in results.items() if row.startswith(name)]
        if not rows:
            continue
        home = next(iter(rows[0]))
        for title in rows[0]:
            for method, label in METHODS.items():
                cells = _cells(
                    [row[title][method] for row in rows], [row[home]["without"] for row in rows], title == home
                )
                lines.append(f"| {name}: {title} | {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(found: list[dict[str, Any]], home: list[dict[str, Any]], at_home: bool) -> list[str]:
    def mean(values: list[float]) -> str:
        return f"{np.mean(values):.2f}".replace("-", "−")

    def held(name: str) -> str:
        if name not in found[0]:
            return "–"
        return "/".join(f"{100 * np.mean([each[name]['coverage'][str(c)] for each in found]):.0f}" for c in SHOWN)

    def metric(name: str, key: str) -> str:
        return mean([each[name][key] for each in found]) if name in found[0] else "–"

    widths = [each["forces"]["width"] / other["forces"]["width"] for each, other in zip(found, home, strict=True)
              if "forces" in each]  # fmt: skip
    joint = [each["joint_nll"] for each in found if each.get("joint_nll") is not None]
    return [
        held("energy"), metric("energy", "rzv"), metric("energy", "nll"), held("differences"),
        held("forces"), metric("forces", "rzv"), metric("forces", "nll"),
        mean(widths) if widths and at_home else "–",
        f"{np.mean(joint):.1f}".replace("-", "−") if joint else "–",
    ]  # fmt: skip


if __name__ == "__main__":
    run_study(__doc__, {row: [(row,)] for row in ROWS}, RESULTS, tables, trained)
