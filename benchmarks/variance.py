"""Precautions that keep mean and variance from harming each other: one member, one precaution left out at a time.

python benchmarks/variance.py [--data acac|mixed] [--only NAME ...] [--core N]     trains what is not trained yet
python benchmarks/variance.py --draw                                               draws what is there

On two sets: AcAc at 300 K (450 structures of one size; needs BOTNet-datasets in $HUEFIELD_DATA/acac), and the bundled
molecules and reactions (1 000 structures of 3 to 12 atoms). The mean is trained once for each (squared errors), and all
rows start from it, but for those that say "from the start". Scored on structures that were seen in no way, with the
parameters of the last step, as an ensemble has them. Results go to benchmarks/results/variance.json as they are found.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from study import ACAC_SPLIT, HERE, IMAGES, acac_test, keep, kept, parser, scored, use_core

RESULTS = HERE / "results" / "variance.json"
WORK = HERE.parent / ".cache" / "variance"
SETS: dict[str, dict[str, Any]] = {
    "acac": {
        "data": ACAC_SPLIT,
        "model": {"potential": {"kind": "painn", "features": 64}},
        "batch_size": 4,
    },
    "mixed": {
        "data": {"kind": "bundled", "train_limit": 1000},
        "model": {"potential": {"kind": "painn", "features": 32}},
        "batch_size": 8,
    },
}
MEAN_STEPS, BETA_STEPS, NLL_STEPS = 4000, 700, 1800
RATE, NOISE_RATE, LOWEST_RATE = 1e-2, 5e-4, 3e-5
RECIPE: dict[str, Any] = {
    "optimiser.clip_norm": 10.0,
    "optimiser.average_decay": 0.99,
    "optimiser.noise_rate": 3.0,
    "optimiser.offset_rate": 10.0,
}
ROWS: dict[str, dict[str, Any]] = {
    "recipe": {},
    "noise not set to errors": {"stages.0.initialise_noise": False},
    "one rate for all parts": {"optimiser.noise_rate": 1.0, "optimiser.offset_rate": 1.0},
    "no clipping": {"optimiser.clip_norm": None},
    "no moving average": {"optimiser.average_decay": 0.0},
    "no β-NLL": {"stages.0.beta_start": 0.0},
    "β stays 1/2": {"stages.0.beta_start": 0.5, "stages.0.beta_end": 0.5, "stages.1.kind": "half"},
    "six times the rate of likelihoods": {
        "stages.0.learning_rate": 6 * NOISE_RATE,
        "stages.1.learning_rate": 6 * NOISE_RATE,
        "stages.1.decay": LOWEST_RATE / (6 * NOISE_RATE),
    },
    "averages of averages": {"stages.0.reduction": "averages", "stages.1.reduction": "averages"},
    "joint likelihood": {"stages.1.joint": True},
    "one γ for all": {"model.noise.gamma": "global"},
    "NLL from the start": {"whole": True},
    "NLL from the start, no precautions": {
        "whole": True,
        "optimiser.clip_norm": None,
        "optimiser.average_decay": 0.0,
        "optimiser.noise_rate": 1.0,
        "optimiser.offset_rate": 1.0,
    },
}
MEANS = {"scaled-down initialisation": None, "plain initialisation": 1.0}
"""Scales of what messages, updates and readouts write at first; None for PaiNN's own."""


def config_of(name: str, overrides: dict[str, Any], start_from: Path | None) -> Any:
    """The configuration of a row, or, without a model to start from, of the mean."""
    from copy import deepcopy

    import yaml

    from huefield.training import parse_config

    plain, changes = deepcopy(SETS[name]), {**RECIPE, **overrides}
    whole = changes.pop("whole", False)
    half = changes.pop("stages.1.kind", None) == "half"
    plain["model"]["noise"] = {"kind": "colored", "gamma": "atom"}
    beta = {"kind": "beta_nll", "steps": BETA_STEPS, "learning_rate": NOISE_RATE, "initialise_noise": True}
    nll = {"kind": "nll", "steps": NLL_STEPS, "learning_rate": NOISE_RATE, "decay": LOWEST_RATE / NOISE_RATE}
    mean = {"kind": "squared_error", "steps": MEAN_STEPS, "learning_rate": RATE, "decay": LOWEST_RATE / RATE}
    if whole:
        stages = [{**mean, "kind": "nll", "steps": MEAN_STEPS + BETA_STEPS + NLL_STEPS}]
    elif start_from is None:
        stages = [mean]
    elif half:
        stages = [beta, {**nll, "kind": "beta_nll", "beta_start": 0.5, "beta_end": 0.5}]
    else:
        stages = [beta, nll]
    plain |= {"stages": stages, "members": 1, "validate_every": 250, "checkpoint_every": 500, "report_every": 50}
    if start_from is not None and not whole:
        plain["start_from"] = str(start_from)
    return parse_config(yaml.safe_dump(plain), name, [f"{k}={json.dumps(v)}" for k, v in changes.items()])


def errors_of(name: str, config: Any, when: str, folder: Path) -> dict[str, float]:
    """Errors on structures that were never seen."""
    from huefield.model.modelfile import load

    part = acac_test() if name == "acac" else config.data.load()["test_id"]
    found = asdict(scored(load(folder / f"candidates/{when}.safetensors"), part))
    return {f"{kind}_{key}": value for kind, errors in found.items() for key, value in errors.items()}


def trained(name: str, row: str, overrides: dict[str, Any], start_from: Path | None) -> dict[str, Any]:
    """Train a row, or go on with it."""
    from huefield.training import TrainingDivergedError, train
    from huefield.training.history import read_history

    folder = WORK / name / row.replace("/", "-")
    config = config_of(name, overrides, start_from)
    try:
        train(config, folder)
    except TrainingDivergedError as error:
        return {"failed": str(error)}
    history = read_history(folder / "history.jsonl")
    columns = ("kind", "step", "energy_rmse", "force_rmse", "energy_nll", "force_nll", "energy_rzv", "force_rzv")
    steps = [event for event in history if event["event"] == "steps"]
    return {
        "skipped": sum({event["stage"]: event["skipped"][0] for event in steps}.values()),
        "largest_gradient": max(event["gradient_norm"][0] or 0.0 for event in steps),
        **{when: errors_of(name, config, when, folder) for when in ("best", "last")},
        "validation": [
            {key: event[key] if key in ("kind", "step") else event[key][0] for key in columns}
            for event in history
            if event["event"] == "validation"
        ],
    }


def trained_mean(name: str, row: str, write_scale: float | None) -> dict[str, Any]:
    """Train a mean: its errors."""
    import jax

    from huefield.potentials import atomic, layers, painn

    usual = layers.WRITE_SCALE
    jax.clear_caches()  # or the scale of an earlier mean would stay
    try:
        for module in (atomic, painn):
            vars(module)["WRITE_SCALE"] = usual if write_scale is None else write_scale
        found = trained(name, row, {}, None)
    finally:
        for module in (atomic, painn):
            vars(module)["WRITE_SCALE"] = usual
        jax.clear_caches()
    if "failed" in found and write_scale is None:
        sys.exit(found["failed"])
    return found


def keep_and_tell(name: str, row: str, found: dict[str, Any]) -> None:
    """Write a result beside those that are there."""
    keep(RESULTS, found, name, row)
    if "failed" in found:
        print(f"{name}, {row}: {found['failed']}", file=sys.stderr)
        return
    last = {key: value if value is not None else float("nan") for key, value in found["last"].items()}
    print(
        f"{name}, {row}: forces {1e3 * last['forces_rmse']:.1f} meV/Å, NLL {last['forces_nll']:.2f}, RZV "
        f"{last['forces_rzv']:.2f}; energies {1e3 * last['energy_rmse']:.1f} meV, NLL {last['energy_nll']:.2f}, RZV "
        f"{last['energy_rzv']:.2f}",
        file=sys.stderr,
    )


def draw(results: dict[str, Any], path: Path) -> None:
    """Likelihoods, errors and z-scores of all rows, on both sets."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6 * len(results)), layout="constrained")
    for axes, (name, rows) in zip(
        figure.subplots(len(results), 4, sharey="row", squeeze=False), results.items(), strict=True
    ):
        names = [row for row in ROWS if row in rows and "failed" not in rows[row]][::-1]
        columns = (
            ("forces_rmse", "force RMSE (meV/Å)", 1e3),
            ("forces_nll", "force NLL", 1.0),
            ("energy_nll", "energy NLL", 1.0),
            ("forces_rzv", "force RZV", 1.0),
        )
        for axis, (key, label, factor) in zip(axes, columns, strict=True):
            values = [factor * rows[row]["last"][key] for row in names]
            axis.plot(values, names, "o", color="#0072B2")
            axis.axvline(factor * rows["recipe"]["last"][key], color="#D55E00", lw=1)
            axis.set(xlabel=label, title=name if axis is axes[0] else "")
            if max(values) > 20 * abs(values[-1]):
                axis.set_xscale("symlog", linthresh=1.0)
            axis.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=160)


def main() -> None:
    """Train what is not trained yet, or draw."""
    options = parser(__doc__, ROWS)
    options.add_argument("--data", choices=SETS, nargs="+", default=list(SETS))
    given = options.parse_args()
    if given.draw:
        draw(kept(RESULTS), IMAGES / "variance.png")
        return
    use_core(given.core)
    for name in given.data:
        done = kept(RESULTS).get(name, {})
        usual, plain = MEANS
        mean = WORK / name / usual / "model.safetensors"
        if usual not in done or not mean.exists():
            keep_and_tell(name, usual, trained_mean(name, usual, MEANS[usual]))
        for row in given.only or ROWS:
            if row not in done:
                keep_and_tell(name, row, trained(name, row, ROWS[row], mean))
        if plain not in done and not given.only:
            keep_and_tell(name, plain, trained_mean(name, plain, MEANS[plain]))


if __name__ == "__main__":
    main()
