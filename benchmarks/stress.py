"""Effect of stress labels: Si and Li of the mlearn data, trained with and without them.

python benchmarks/stress.py [--only NAME ...] [--core N]     trains what is not trained yet
python benchmarks/stress.py --draw                           prints the tables of docs/training.md

Needs $HUEFIELD_DATA/mlearn (Si_training.xyz, Si_test.xyz, Li_training.xyz, Li_test.xyz). Its ``virial_stress`` is the
line "in kB" of VASP's OUTCAR: kbar, in VASP's order, positive under compression. Strained crystals of the data show it:
energy differences between neighbouring strains agree with these units, and not with those of a virial in eV (see
tests/data/test_mlearn.py).

Rows "weight W" train one member with squared errors alone and the weight W of the stress terms; they are for the choice
of the default. Other rows train two members in three stages; those without stress have the weight 0 in all of them.
Results go to benchmarks/results/stress.json.
"""

import time
from pathlib import Path
from typing import Any

from study import HERE, SHARED, run_study

RESULTS = HERE / "results" / "stress.json"
MLEARN = SHARED / "mlearn"
ELEMENTS = ("Si", "Li")
READER = {
    "kind": "ase",
    "stress_keys": ["virial_stress"],
    "stress_order": "vasp",
    "stress_scale": -1 / 1602.1766208,
    "group_key": "group",
}
WEIGHTS = (0.0, 0.0001, 0.001, 0.01)
WITHOUT = {f"stages.{stage}.stress_weight": 0.0 for stage in range(3)}
ROWS: dict[str, dict[str, Any]] = {
    **{f"weight {weight:g}": {"stages.0.stress_weight": weight} for weight in WEIGHTS},
    **{f"weight {weight:g}, seed 1": {"stages.0.stress_weight": weight, "seed": 1} for weight in (0.0, 0.001)},
    "without stress": WITHOUT,
    "with stress": {},
    "without stress, seed 1": {"seed": 1, **WITHOUT},
    "with stress, seed 1": {"seed": 1},
}
ERRORS = (
    "energy_rmse_mev_per_atom",
    "force_rmse_mev_per_angstrom",
    "stress_rmse_mev_per_cubic_angstrom",
    "stress_rmse_gpa",
)
MEV = 1e3
GPA = 160.21766208
"""1 eV/Å³ in GPa."""


def config_of(element: str, name: str) -> Any:
    """The configuration of a row."""
    import yaml

    from huefield.training import parse_config

    alone = name.startswith("weight")
    rate = {"learning_rate": 1e-2, "decay": 3e-3}
    first = {"kind": "squared_error", "steps": 1500 if alone else 3000, **rate}
    noise = [
        {"kind": "beta_nll", "steps": 500, "learning_rate": 5e-4, "initialise_noise": True},
        {"kind": "nll", "steps": 1000, "learning_rate": 5e-4, "decay": 0.06},
    ]
    plain = {
        "data": {
            "kind": "files",
            "train": [str(MLEARN / f"{element}_training.xyz")],
            "reader": READER,
            "split": {"kind": "random", "fractions": {"train": 0.85, "validation": 0.15}},
        },
        "model": {
            "potential": {"kind": "painn", "features": 32},
            "noise": {"kind": "vanilla" if alone else "local"},
        },
        "stages": [first] if alone else [first, *noise],
        "members": 1 if alone else 2,
        "batch_size": 2,
        "optimiser": {"average_decay": 0.99, "noise_rate": 3.0, "offset_rate": 10.0},
        "validate_every": 250,
        "checkpoint_every": 1000,
        "report_every": 250,
    }
    return parse_config(yaml.safe_dump(plain), "stress", [f"{key}={value}" for key, value in ROWS[name].items()])


def test_part(element: str) -> Any:
    """The test structures of an element."""
    from huefield.data.dataset import open_part
    from huefield.data.readers.ase_files import AseReader

    return open_part("test", [MLEARN / f"{element}_test.xyz"], reader=AseReader.model_validate(READER))


def metrics(predictions: Any) -> dict[str, Any]:
    """Errors and z-scores of energies per atom, forces and stresses."""
    from huefield.evaluation.paper_metrics import paper_metrics

    energy, forces, stress = (
        predictions.observed_energies(), predictions.observed_forces(), predictions.observed_stress(),
    )  # fmt: skip
    sizes = predictions.structures.sizes[energy.structure]
    of_atoms = paper_metrics(energy.error / sizes, energy.variance / sizes**2, 10)
    of_forces, of_stress = (paper_metrics(each.error, each.variance, 10) for each in (forces, stress))
    return {
        "structures": len(predictions),
        "energy_rmse_mev_per_atom": MEV * of_atoms.rmse,
        "force_rmse_mev_per_angstrom": MEV * of_forces.rmse,
        "stress_rmse_mev_per_cubic_angstrom": MEV * of_stress.rmse,
        "stress_rmse_gpa": GPA * of_stress.rmse,
        "rzv": [of_atoms.rzv, of_forces.rzv, of_stress.rzv],
        "nll": [of_atoms.nll, of_forces.nll, of_stress.nll],
        "ence": [of_atoms.ence, of_forces.ence, of_stress.ence],
    }


def trained(element: str, name: str, runs: Path) -> dict[str, Any]:
    """Train, and score on the validation and test structures, before and after calibration."""
    from huefield import calibrate
    from huefield.predict import predict_part
    from huefield.training import train

    begin = time.process_time()
    done = train(config_of(element, name), runs / f"{element}-{name.replace(' ', '-').replace(',', '')}")
    seconds = time.process_time() - begin
    assert done.validation is not None  # noqa: S101 - a split has one
    parts = {"test": test_part(element), "validation": done.validation}
    found = {part: metrics(predict_part(done.ensemble, each, "model")) for part, each in parts.items()}
    if not name.startswith("weight"):
        calibrated = calibrate(done, fit_fraction=0.9).ensemble
        found["test, calibrated"] = metrics(predict_part(calibrated, parts["test"], "model"))
        assert calibrated.calibration is not None  # noqa: S101 - it was just fitted
        found["calibration"] = calibrated.calibration.model_dump(mode="json")
    return {"processor_seconds": seconds, **found}


def tables(results: dict[str, Any]) -> str:
    """Markdown of errors and z-scores on the test structures."""
    lines = [
        "| data | training | E (meV/atom) | F (meV/Å) | stress (meV/Å³) | stress (GPa) | RZV of E | of F | of stress |"
    ]
    lines.append("|---|---|" + "---:|" * 7)
    for element, rows in results.items():
        for name in (name for name in ROWS if name in rows):
            found, calibrated = rows[name]["test"], rows[name].get("test, calibrated")
            errors = [found[each] for each in ERRORS]
            ratios = ["–"] * 3
            if calibrated is not None:
                pairs = zip(found["rzv"], calibrated["rzv"], strict=True)
                ratios = [f"{before:.2f} → {after:.2f}" for before, after in pairs]
            texts = [f"{value:.{digits}f}" for value, digits in zip(errors, (2, 1, 2, 2), strict=True)]
            lines.append(f"| {' | '.join([element, name, *texts, *ratios])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_study(__doc__, {row: [(element, row) for element in ELEMENTS] for row in ROWS}, RESULTS, tables, trained)
