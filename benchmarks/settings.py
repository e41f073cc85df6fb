"""Effect of single settings of training: one member on AcAc at 300 K, one setting changed at a time.

python benchmarks/settings.py [--only NAME ...] [--core N]     trains what is not trained yet
python benchmarks/settings.py --draw                           draws what is there

Needs the data of BOTNet-datasets in $HUEFIELD_DATA/acac (train_300K.xyz, test_MD_300K.xyz). Every setting has as many
structures to see (steps times batch size) as the others, unless its name says otherwise; the processor's seconds are
recorded. Results go to benchmarks/results/settings.json, one entry a setting, as they are found.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from study import ACAC_SPLIT, HERE, IMAGES, acac_test, keep, kept, parser, scored, use_core

RESULTS = HERE / "results" / "settings.json"
BASE: dict[str, Any] = {
    "model.potential.features": 64,
    "stages.0.steps": 2500,
    "stages.0.learning_rate": 1e-2,
    "stages.0.decay": 3e-3,
    "batch_size": 8,
    "optimiser.average_decay": 0.99,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "base": {},
    "rate 1e-3": {"stages.0.learning_rate": 1e-3, "stages.0.decay": 0.03},
    "rate 3e-3": {"stages.0.learning_rate": 3e-3, "stages.0.decay": 0.01},
    "rate 2e-2": {"stages.0.learning_rate": 2e-2, "stages.0.decay": 1.5e-3},
    "batch 4": {"batch_size": 4, "stages.0.steps": 5000},
    "batch 16": {"batch_size": 16, "stages.0.steps": 1250},
    "energy weight 10": {"stages.0.energy_weight": 10},
    "energy weight 100": {"stages.0.energy_weight": 100},
    "averages": {"stages.0.reduction": "averages"},
    "no moving average": {"optimiser.average_decay": 0.0},
    "moving average 0.999": {"optimiser.average_decay": 0.999},
    "no decay": {"stages.0.decay": 1.0},
    "32 features, 1.8 times the steps": {"model.potential.features": 32, "stages.0.steps": 4500},
    "128 features": {"model.potential.features": 128},
    "cutoff 4": {"model.potential.cutoff_angstrom": 4.0},
    "10 radial functions": {"model.potential.radial_functions": 10},
    "2 layers": {"model.potential.layers": 2},
    "4 times the steps": {"stages.0.steps": 10_000},
    "16 times the steps": {"stages.0.steps": 40_000},
}


def config_of(setting: dict[str, Any]) -> Any:
    """The configuration of a setting."""
    import yaml

    from huefield.training import parse_config

    values = {**BASE, **setting}
    tenth = max(values["stages.0.steps"] // 10, 1)
    plain = {
        "data": ACAC_SPLIT,
        "model": {"potential": {"kind": "painn"}, "noise": {"kind": "vanilla"}},
        "stages": [{"kind": "squared_error"}],
        "members": 1,
        "validate_every": tenth,
        "checkpoint_every": tenth,
        "report_every": tenth,
    }
    return parse_config(yaml.safe_dump(plain), "settings", [f"{key}={value}" for key, value in values.items()])


def trained(setting: dict[str, Any]) -> dict[str, Any]:
    """Train, and score on the test trajectory."""
    from huefield.training import ValidationReport, train

    config, curve = config_of(setting), []
    begin, folder = time.process_time(), Path(tempfile.mkdtemp())

    def report(event: object) -> None:
        if isinstance(event, ValidationReport):
            errors = (event.metrics.energy_rmse[0], event.metrics.force_rmse[0])
            curve.append([event.step, time.process_time() - begin, *(float(1e3 * e) for e in errors)])

    done = train(config, folder, report=report)
    seconds = time.process_time() - begin
    found = scored(done.ensemble, acac_test())
    shutil.rmtree(folder)
    return {
        "setting": setting,
        "processor_seconds": seconds,
        "energy_rmse_mev": 1e3 * found.energy.rmse,
        "force_rmse_mev_per_angstrom": 1e3 * found.forces.rmse,
        "validation": curve,
    }


def draw(results: dict[str, Any], path: Path) -> None:
    """Test errors of all settings, and how the error falls with time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    bars, curves = figure.subplots(1, 2)
    names = sorted(results, key=lambda name: -results[name]["force_rmse_mev_per_angstrom"])
    forces = [results[name]["force_rmse_mev_per_angstrom"] for name in names]
    bars.barh(names, forces, color=["#D55E00" if name == "base" else "#0072B2" for name in names])
    for row, name in enumerate(names):
        bars.text(
            forces[row], row, f" {forces[row]:.0f} / {results[name]['energy_rmse_mev']:.1f}", va="center", fontsize=7
        )
    bars.set(xlabel="force RMSE (meV/Å); beside it / energy RMSE (meV)", title="test at 300 K")
    bars.tick_params(labelsize=7)
    bars.set_xlim(0, 1.25 * max(forces))
    for name, color in (("base", "#D55E00"), ("4 times the steps", "#009E73"), ("16 times the steps", "#000000")):
        if name in results:
            points = results[name]["validation"]
            curves.loglog([p[1] for p in points], [p[3] for p in points], "o-", ms=3, color=color, label=name)
    curves.set(xlabel="seconds of one core", ylabel="force RMSE (meV/Å)", title="validation")
    curves.legend(frameon=False)
    figure.savefig(path, dpi=160)


def main() -> None:
    """Train what is not trained yet, or draw."""
    given = parser(__doc__, SETTINGS).parse_args()
    if given.draw:
        draw(kept(RESULTS), IMAGES / "settings.png")
        return
    use_core(given.core)
    for name in given.only or SETTINGS:
        if name in kept(RESULTS):
            continue
        found = trained(SETTINGS[name])
        keep(RESULTS, found, name)
        errors = f"{found['force_rmse_mev_per_angstrom']:.1f} meV/Å, {found['energy_rmse_mev']:.1f} meV"
        print(f"{name}: {errors}, {found['processor_seconds']:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
