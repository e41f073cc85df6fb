"""Labels that are wrong, and labels that look wrong."""

import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from huefield import Ensemble, ForceField
from huefield.core.units import HARTREE_EV, KCAL_PER_MOL_EV
from huefield.data.dataset import FileData, Part, Parts, open_part
from huefield.data.readers.ase_files import AseReader
from huefield.support.errors import HuefieldError
from huefield.training import TrainingStoppedError, train
from huefield.training.datachecks import label_warnings, overview, require_trainable
from huefield.training.outcome import evaluated
from tests.training.helpers import POTENTIAL, config_for, waters
from tests.training.test_overview import ONE_BY_ONE


def scaled(atoms: Atoms, energy: float = 1.0, forces: float = 1.0) -> Atoms:
    results = dict(atoms.calc.results)
    atoms.calc = SinglePointCalculator(atoms, energy=energy * results["energy"], forces=forces * results["forces"])
    return atoms


def parts_of(frames: list[Atoms], folder: Path) -> Parts:
    write(folder / "train.xyz", frames, format="extxyz")
    part = open_part("train", [folder / "train.xyz"])
    return {"train": part, "validation": Part("validation", part.source, part.indices, part.files)}


def test_good_labels_pass_without_a_word(tmp_path: Path) -> None:
    assert list(label_warnings(parts_of(waters(20), tmp_path))) == []


@pytest.mark.parametrize(
    ("energy", "forces", "message"),
    [
        (1 / KCAL_PER_MOL_EV, 1 / KCAL_PER_MOL_EV, "energies look like kcal/mol"),
        (1e4, 1.0, "energies are below the all-electron \\(Thomas-Fermi\\) energy in eV"),
    ],
)
def test_other_units_stop_training(energy: float, forces: float, message: str, tmp_path: Path) -> None:
    parts = parts_of([scaled(atoms, energy, forces) for atoms in waters(20)], tmp_path)
    with pytest.raises(HuefieldError, match=rf"labels for train are in other units than eV and Å: .*{message}"):
        list(label_warnings(parts))


def test_units_that_may_be_right_are_a_warning(tmp_path: Path) -> None:
    (first, *_) = label_warnings(parts_of([scaled(atoms, 1 / HARTREE_EV) for atoms in waters(20)], tmp_path))
    assert first.startswith("warning: for train, energies look like hartree, not eV, unless")


def coppers() -> list[Atoms]:
    """Nearly relaxed copper with the energies of a pseudopotential of many electrons: correct, in eV."""
    rng, frames = np.random.default_rng(0), [bulk("Cu", cubic=True) for _ in range(6)]
    for atoms in frames:
        atoms.calc = SinglePointCalculator(atoms, energy=-1306.0 * 4, forces=0.03 * rng.normal(size=(4, 3)))
    return frames


def test_correct_energies_of_valence_electrons_and_small_forces_are_not_refused(tmp_path: Path) -> None:
    told = list(label_warnings(parts_of(coppers(), tmp_path)))
    assert [line for line in told if "for train, energies look like hartree" in line]
    assert [line for line in told if "for train, forces look like hartree/bohr" in line]


def test_units_that_the_reader_states_are_not_doubted(tmp_path: Path) -> None:
    data = FileData(train=(tmp_path,), validation=(tmp_path,), reader=AseReader(energy_unit="eV"))
    assert list(label_warnings(parts_of(coppers(), tmp_path), data)) == []


@pytest.mark.parametrize("way", ["allow_labels", "resumed"])
def test_labels_that_cannot_be_right_are_allowed_by_a_setting_and_in_a_resumed_run(way: str, tmp_path: Path) -> None:
    frames = [scaled(atoms, 1 / KCAL_PER_MOL_EV) for atoms in waters(20)]
    frames[7].calc.results["forces"][0, 1] = 1e6
    parts = parts_of(frames, tmp_path)
    with pytest.raises(HuefieldError, match=r"if they are right, set data\.allow_labels=true"):
        list(label_warnings(parts))
    data = FileData(train=(tmp_path,), validation=(tmp_path,), allow_labels=way == "allow_labels")
    told = list(label_warnings(parts, data, resumed=way == "resumed"))
    assert told[0].startswith("warning: the labels for train are in other units than eV and Å: energies look like kcal")
    assert "frame 7 of" in told[1]


def test_a_run_that_began_before_the_checks_is_resumed(tmp_path: Path) -> None:
    write(tmp_path / "wrong.xyz", [scaled(atoms, 1 / KCAL_PER_MOL_EV) for atoms in waters(20)], format="extxyz")
    config = config_for(tmp_path / "wrong.xyz", members=1)
    with pytest.raises(HuefieldError, match="in other units than eV"):
        train(config, tmp_path / "run")
    allowed = {"data.allow_labels": True}
    with pytest.raises(TrainingStoppedError):
        train(config, tmp_path / "run", overrides=allowed, should_stop=lambda: True)
    told: list[str] = []
    train(config, tmp_path / "run", report=lambda event: told.append(str(event)))
    assert any(line.startswith("warning: the labels for train are in other units") for line in told)


def test_a_median_force_of_zero_is_no_divisor(tmp_path: Path) -> None:
    frames = waters(20)
    for atoms in frames:
        atoms.calc.results["forces"][:] = 0.0
    frames[4].calc.results["forces"][1, 2] = 900.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (told, *_) = label_warnings(parts_of(frames, tmp_path))
    assert "a force of 900 eV/Å; the median is 0 eV/Å" in told


def test_one_impossible_force_stops_training_and_names_the_frame(tmp_path: Path) -> None:
    frames = waters(20)
    frames[7].calc.results["forces"][0, 1] = 1e6
    with pytest.raises(HuefieldError, match=r"frame 7 of .*train\.xyz has a force of 1e\+06 eV/Å\. Correct or remove"):
        list(label_warnings(parts_of(frames, tmp_path)))


def test_one_impossible_energy_stops_training_and_names_the_frame(tmp_path: Path) -> None:
    frames = waters(20)
    scaled(frames[3], 1e5)
    with pytest.raises(HuefieldError, match=r"frame 3 of .*train\.xyz has an energy 7.*e\+04 times the all-electron"):
        list(label_warnings(parts_of(frames, tmp_path)))


def test_unusual_labels_are_warnings_with_the_frames_named(tmp_path: Path) -> None:
    frames = waters(20)
    frames[4].calc.results["forces"][1, 2] = 900.0
    frames[5].calc.results["energy"] += 300.0
    told = list(label_warnings(parts_of(frames, tmp_path)))
    assert len(told) == 4
    assert "frame 4 of" in told[0]
    assert "a force of 900 eV/Å" in told[0]
    assert "frame 5 of" in told[1]
    assert "an energy +100 eV per atom from the median of its formula" in told[1]


def test_many_frames_are_counted(tmp_path: Path) -> None:
    frames = waters(20)
    for atoms in frames[:5]:
        atoms.calc.results["forces"][0] = 1e5
    with pytest.raises(HuefieldError, match=r"frame 2 of .*; and 2 more"):
        list(label_warnings(parts_of(frames, tmp_path)))


def test_energies_alone_and_forces_alone_are_checked(tmp_path: Path) -> None:
    frames = waters(12)
    for atoms in frames[::2]:
        atoms.calc = SinglePointCalculator(atoms, energy=atoms.calc.results["energy"])
    for atoms in frames[1::2]:
        atoms.calc = SinglePointCalculator(atoms, forces=atoms.calc.results["forces"])
    assert list(label_warnings(parts_of(frames, tmp_path))) == []


def test_stresses_are_counted_and_those_of_molecules_in_boxes_are_ignored(tmp_path: Path) -> None:
    frames = waters(6)
    for number, atoms in enumerate(frames[:4]):
        atoms.set_cell(10 * np.eye(3))
        atoms.pbc = number > 0
        atoms.calc = SinglePointCalculator(atoms, **atoms.calc.results, stress=np.zeros(6))
    told = list(overview(parts_of(frames, tmp_path), ONE_BY_ONE, range(1), 1))
    assert told[1:] == [
        "the stress of 3 structures for training is known, which stages learn with their stress_weight",
        "warning: 1 structures for training have a stress, but no periodic cell that it could refer to; it is ignored",
    ]


def test_training_runs_the_checks_and_names_charges_and_other_labels(tmp_path: Path) -> None:
    frames = waters(20)
    frames[2].info["charge"] = 1
    frames[7].calc.results["forces"][0, 1] = 1e6
    write(tmp_path / "charged.xyz", frames, format="extxyz")
    told: list[object] = []
    with pytest.raises(HuefieldError, match="has a force of"):
        train(config_for(tmp_path / "charged.xyz"), tmp_path / "run", report=told.append)
    assert not (tmp_path / "run").exists()
    text = (tmp_path / "charged.xyz").read_text().replace("energy=", "dft_energy=").replace(":forces:", ":dft_forces:")
    (tmp_path / "other.xyz").write_text(text)
    with pytest.raises(HuefieldError, match=r"no energy under .* there is dft_energy.*energy_keys"):
        train(config_for(tmp_path / "other.xyz"), tmp_path / "run")


def test_charges_are_named_once(tmp_path: Path) -> None:
    frames = waters(20)
    for atoms in frames[2:]:
        atoms.info["charge"] = 1
    write(tmp_path / "charged.xyz", frames, format="extxyz")
    told: list[str] = []
    stages = [{"kind": "squared_error", "steps": 1}]
    config = config_for(tmp_path / "charged.xyz", stages=stages, members=1)
    train(config, tmp_path / "run", report=lambda event: told.append(str(event)))
    assert [line for line in told if "charge" in line] == [
        f"warning: {tmp_path}/charged.xyz, frame 2: the atoms have a charge, which models do not take as input: "
        "structures that differ only in that have the same prediction"
    ]


def test_test_structures_with_unknown_elements_are_skipped(tmp_path: Path) -> None:
    strange = waters(4)
    strange[1].symbols[0] = "S"
    write(tmp_path / "test.xyz", strange, format="extxyz")
    parts = {**parts_of(waters(6), tmp_path), "test": open_part("test", [tmp_path / "test.xyz"])}
    require_trainable(parts)
    told = list(overview(parts, ONE_BY_ONE, range(2), 2))
    assert "warning: structures of test with S, which the training data lack, are skipped" in told
    config = ForceField.Config.model_validate(
        {"potential": {**POTENTIAL, "elements": ("H", "O")}, "noise": {"kind": "white"}}
    )
    scores, _ = evaluated(Ensemble.build(config, 2, key=jax.random.key(0)), parts)
    assert {name: found.energy.count for name, found in scores.items()} == {"train": 6, "validation": 6, "test": 3}
