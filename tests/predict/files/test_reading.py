from collections.abc import Callable
from pathlib import Path

import ase.db
import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from huefield.predict import PredictionKeys, read_predictions

Change = Callable[[Atoms], object]


def frame(seed: int = 0, atoms: Atoms | None = None) -> Atoms:
    """A structure with reference values, predictions and standard deviations under huefield's own names."""
    rng = np.random.default_rng(seed)
    atoms = molecule("H2O") if atoms is None else atoms
    atoms.rattle(0.02, rng=rng)
    shape = (len(atoms), 3)
    energy, forces = rng.normal(), rng.normal(size=shape)
    atoms.info.update(REF_energy=energy, energy=energy + 0.1 * rng.normal(), energy_uncertainty=rng.uniform(0.1, 0.2))
    atoms.arrays.update(REF_forces=forces, forces=forces + 0.1 * rng.normal(size=shape))
    atoms.arrays["forces_uncertainty"] = rng.uniform(0.1, 0.2, size=shape)
    return atoms


def frames(count: int = 3) -> list[Atoms]:
    """Structures of different sizes, in a crystal every second time."""
    return [frame(seed, bulk("Si", cubic=True) if seed % 2 else molecule("CH4")) for seed in range(count)]


def written(folder: Path, images: list[Atoms], name: str = "predicted.xyz") -> Path:
    ase.io.write(folder / name, images)
    return folder / name


def renamed(atoms: Atoms, **names: str) -> Atoms:
    """The same under other names; a name of None takes it out."""
    for old, new in names.items():
        for place in (atoms.info, atoms.arrays):
            if old in place:
                place[new] = place.pop(old)
    return atoms


def test_names_of_huefield_apax_and_ipsuite_are_read(tmp_path: Path) -> None:
    images = frames()
    found = read_predictions(written(tmp_path, images))
    assert found.name == "predicted"
    assert found.left_out == {}
    assert len(found) == 3
    assert found.energy is not None
    assert found.forces is not None
    for index, (atoms, structure) in enumerate(zip(images, found.structures, strict=True)):
        rows = slice(found.structures.starts[index], found.structures.starts[index + 1])
        np.testing.assert_array_equal(structure.atomic_numbers, atoms.numbers)
        np.testing.assert_allclose(structure.positions, atoms.positions, atol=1e-8)
        np.testing.assert_allclose(structure.cell, atoms.cell[:])
        np.testing.assert_array_equal(structure.pbc, atoms.pbc)
        assert structure.energy == atoms.info["REF_energy"]
        np.testing.assert_allclose(structure.forces, atoms.arrays["REF_forces"], atol=1e-8)
        assert found.energy.mean[index] == atoms.info["energy"]
        assert found.energy.variance[index] == atoms.info["energy_uncertainty"] ** 2
        np.testing.assert_allclose(found.forces.mean[rows], atoms.arrays["forces"], atol=1e-8)
        np.testing.assert_allclose(found.forces.variance[rows], atoms.arrays["forces_uncertainty"] ** 2, atol=1e-8)
    assert found.energy.aleatoric_var is None


def mace_evaluated(atoms: Atoms) -> Atoms:
    """As the program mace_eval_configs names predictions, with the variances of a committee beside them."""
    atoms.info["energy_var"] = atoms.info.pop("energy_uncertainty") ** 2
    atoms.arrays["forces_var"] = atoms.arrays.pop("forces_uncertainty") ** 2
    return renamed(atoms, energy="MACE_energy", forces="MACE_forces")


def mace_beside_plain_labels(atoms: Atoms) -> Atoms:
    return renamed(mace_evaluated(atoms), REF_energy="energy", REF_forces="forces")


def mace_committee(atoms: Atoms) -> Atoms:
    return renamed(mace_evaluated(atoms), MACE_energy="energy", MACE_forces="forces")


def early_metatrain(atoms: Atoms) -> Atoms:
    """Whose uncertainty was a variance."""
    atoms.info["mtt::aux::energy_uncertainty"] = atoms.info.pop("energy_uncertainty") ** 2
    return atoms


def flare(atoms: Atoms) -> Atoms:
    return renamed(atoms, forces_uncertainty="stds")


def calculator(atoms: Atoms) -> Atoms:
    """Predictions as results of a calculator, as ASE writes them."""
    atoms.calc = SinglePointCalculator(atoms, energy=atoms.info.pop("energy"), forces=atoms.arrays.pop("forces"))
    return atoms


@pytest.mark.parametrize(
    "convention", [mace_evaluated, mace_beside_plain_labels, mace_committee, early_metatrain, flare, calculator]
)
def test_names_of_other_codes_mean_the_same(tmp_path: Path, convention: Callable[[Atoms], Atoms]) -> None:
    expected = read_predictions(written(tmp_path, frames(), "own.xyz"))
    found = read_predictions(written(tmp_path, [convention(atoms) for atoms in frames()]))
    assert found.left_out == {}
    for name in ("observed_energies", "observed_forces"):
        ours, theirs = getattr(expected, name)(), getattr(found, name)()
        np.testing.assert_allclose(theirs.mean, ours.mean, rtol=0, atol=1e-12)
        np.testing.assert_allclose(theirs.target, ours.target, rtol=0, atol=1e-12)
        np.testing.assert_allclose(theirs.variance, ours.variance, rtol=0, atol=2e-8)


def test_a_database_of_ase_is_read(tmp_path: Path) -> None:
    images = frames()
    with ase.db.connect(tmp_path / "predicted.db") as database:
        for atoms in images:
            database.write(Atoms(atoms), data={**atoms.info, **{k: atoms.arrays[k] for k in list(atoms.arrays)[2:]}})
    found, expected = read_predictions(tmp_path / "predicted.db"), read_predictions(written(tmp_path, images))
    np.testing.assert_allclose(found.observed_forces().variance, expected.observed_forces().variance, atol=1e-7)
    np.testing.assert_allclose(found.observed_energies().target, expected.observed_energies().target)


def test_stated_names_go_before_known_ones(tmp_path: Path) -> None:
    images = frames()
    for atoms in images:
        atoms.info.update(mine=5.0, my_std=0.5, dft=4.0)
        atoms.arrays["my_var"] = np.full((len(atoms), 3), 0.25)
    path = written(tmp_path, images)
    stated = {"energy": "mine", "energy_uncertainty": ["my_std"], "reference_energy": "dft", "forces_var": "my_var"}
    found = read_predictions(path, keys=PredictionKeys.model_validate(stated), name="mine")
    energies = found.observed_energies()
    assert found.name == "mine"
    assert set(energies.mean) == {5.0}
    assert set(energies.variance) == set(found.observed_forces().variance) == {0.25}
    assert set(energies.target) == {4.0}


def test_a_stated_reference_is_not_taken_for_the_prediction(tmp_path: Path) -> None:
    images = [renamed(atoms, REF_energy="tmp", energy="MACE_energy") for atoms in frames()]
    path = written(tmp_path, [renamed(atoms, tmp="energy") for atoms in images])
    swapped = read_predictions(path, keys=PredictionKeys(reference_energy=("MACE_energy",)))
    straight = read_predictions(path)
    np.testing.assert_array_equal(swapped.observed_energies().mean, straight.observed_energies().target)
    np.testing.assert_array_equal(swapped.observed_energies().target, straight.observed_energies().mean)


def test_a_quantity_can_be_turned_off(tmp_path: Path) -> None:
    found = read_predictions(written(tmp_path, frames()), keys=PredictionKeys(forces=()))
    assert found.forces is None
    assert found.observed_forces() is None
    assert found.observed_energies() is not None


def test_a_stated_name_must_be_there(tmp_path: Path) -> None:
    path = written(tmp_path, frames())
    with pytest.raises(ValueError, match=r"has no dft, which --keys has as reference_energy; it has REF_energy, REF_f"):
        read_predictions(path, keys=PredictionKeys(reference_energy=("dft",)))


def test_parts_of_the_uncertainty_are_read(tmp_path: Path) -> None:
    images = frames()
    for atoms in images:
        atoms.info.update(energy_uncertainty=5.0, energy_uncertainty_aleatoric=3.0, energy_uncertainty_epistemic=4.0)
    found = read_predictions(written(tmp_path, images)).energy
    assert (set(found.variance), set(found.aleatoric_var), set(found.epistemic_var)) == ({25.0}, {9.0}, {16.0})
    del images[1].info["energy_uncertainty_epistemic"]
    partly = read_predictions(written(tmp_path, images)).energy
    assert partly.epistemic_var is None
    assert set(partly.aleatoric_var) == {9.0}


def test_groups_and_the_model_are_read(tmp_path: Path) -> None:
    images = frames()
    for atoms, group in zip(images, ("slab", "gas", "slab"), strict=True):
        atoms.info.update(config_type=group, model="committee")
    found = read_predictions(written(tmp_path, images))
    assert found.structures.groups == ("slab", "gas", "slab")
    assert found.name == "committee"
    images[1].info["model"] = "another"
    assert read_predictions(written(tmp_path, images)).name == "predicted"


def test_references_that_are_missing_in_part_of_the_frames_are_masked(tmp_path: Path) -> None:
    images = frames()
    del images[0].arrays["REF_forces"]
    del images[1].info["REF_energy"]
    images[2].info["REF_energy"] = np.nan
    found = read_predictions(written(tmp_path, images))
    assert found.left_out == {}
    assert found.structures.has_energy.tolist() == [True, False, False]
    assert found.structures.has_forces.tolist() == [False, True, True]
    assert found.observed_energies().target.tolist() == [images[0].info["REF_energy"]]
    assert len(found.observed_forces().target) == 3 * (len(images[1]) + len(images[2]))


def test_predictions_that_are_missing_in_part_of_the_frames_are_nan(tmp_path: Path) -> None:
    """Their reference is kept, but nothing is judged there."""
    images = frames()
    del images[0].arrays["forces"], images[1].info["energy"]
    found = read_predictions(written(tmp_path, images))
    atoms = len(images[0])
    assert found.left_out == {}
    assert found.structures.has_forces.all()
    assert found.structures.has_energy.all()
    np.testing.assert_allclose(found.structures.forces[:atoms], images[0].arrays["REF_forces"], atol=1e-8)
    assert found.structures.energy[1] == images[1].info["REF_energy"]
    np.testing.assert_array_equal(np.isnan(found.energy.mean), [False, True, False])
    np.testing.assert_array_equal(np.isnan(found.forces.mean).all(1), np.arange(len(found.forces.mean)) < atoms)
    assert not found.forces.variance[:atoms].any()
    assert found.observed_energies().structure.tolist() == [0, 2]
    assert set(found.observed_forces().structure) == {1, 2}
    assert found.atoms_observed.sum() == len(images[1]) + len(images[2])


def test_predictions_that_are_turned_off_are_no_reference(tmp_path: Path) -> None:
    """Without REF_forces, what is called forces was predicted; unless it is stated to be the reference."""
    images = frames()
    for atoms in images:
        del atoms.arrays["REF_forces"]
    path = written(tmp_path, images)
    assert not read_predictions(path, keys=PredictionKeys(forces=())).structures.has_forces.any()
    stated = read_predictions(path, keys=PredictionKeys(forces=(), reference_forces=("forces",)))
    assert stated.structures.has_forces.all()


def test_numbers_that_all_frames_state_are_taken(tmp_path: Path) -> None:
    images = frames(4)
    for atoms, number in zip(images, (9, 7, 5, 3), strict=True):
        atoms.info["frame"] = number
    images[1].info["energy"] = np.nan
    assert read_predictions(written(tmp_path, images)).structures.frames.tolist() == [9, 5, 3]


def test_a_reference_is_matched_by_the_place_in_the_file(tmp_path: Path) -> None:
    """Whatever numbers the frames state."""
    images, references = frames(), frames()
    for atoms, number in zip(images, (2, 0, 7), strict=True):
        atoms.info["frame"] = number
    reference = written(tmp_path, references, "reference.xyz")
    found = read_predictions(written(tmp_path, images), reference=reference)
    assert found.structures.frames.tolist() == [2, 0, 7]
    assert found.structures.energy.tolist() == [atoms.info["REF_energy"] for atoms in references]


@pytest.mark.parametrize("number", [None, -1, 0.5, "x", [1, 2]])
def test_numbers_that_a_frame_does_not_state_are_those_in_the_file(tmp_path: Path, number: object) -> None:
    images = frames()
    for atoms in images[:2]:
        atoms.info["frame"] = 9
    if number is not None:
        images[2].info["frame"] = number
    assert read_predictions(written(tmp_path, images)).structures.frames.tolist() == [0, 1, 2]


def test_a_quantity_without_uncertainty_has_variances_of_zero(tmp_path: Path) -> None:
    images = [renamed(atoms, energy_uncertainty="something") for atoms in frames()]
    found = read_predictions(written(tmp_path, images))
    assert not found.energy.variance.any()
    assert (found.forces.variance > 0).all()


def test_one_structure_is_enough(tmp_path: Path) -> None:
    found = read_predictions(written(tmp_path, [frame(0, Atoms("He"))]))
    assert len(found) == 1
    assert found.observed_forces().mean.shape == (3,)


def set_info(key: str, value: object) -> Change:
    return lambda atoms: atoms.info.update({key: value})


def set_force(key: str, value: float) -> Change:
    return lambda atoms: atoms.arrays[key].__setitem__((0, 1), value)


def set_array(key: str, columns: int) -> Change:
    return lambda atoms: atoms.arrays.update({key: np.ones((len(atoms), columns))})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_info("energy", np.nan), "energy is NaN or infinite"),
        (set_info("energy", "high"), "energy is not a number"),
        (set_info("energy", [1.0, 2.0]), "energy is not one number for a structure, but several"),
        (set_info("energy_uncertainty", np.inf), "energy_uncertainty is NaN or infinite"),
        (set_info("energy_uncertainty", -0.1), "energy_uncertainty is negative"),
        (lambda atoms: atoms.info.pop("energy_uncertainty"), "energy has no uncertainty (energy_uncertainty)"),
        (set_info("energy_dof", 2.0), "energy_dof is not a number of at least 2.05"),
        (set_info("forces_dof", np.nan), "forces_dof is not a number of at least 2.05"),
        (set_info("forces_dof", [3.0, 4.0]), "forces_dof is not one number"),
        (set_info("energy_dof", "many"), "energy_dof is not one number"),
        (set_force("forces", np.nan), "forces is NaN or infinite"),
        (set_force("forces_uncertainty", -0.1), "forces_uncertainty is negative"),
        (set_array("forces_uncertainty", 1), "forces_uncertainty has another shape than three numbers for each atom"),
        (set_info("REF_stress", [1.0, 2.0]), "the stress must have 6 or 3 × 3 components, but has shape (2,)"),
        (lambda atoms: [atoms.info.pop("energy"), atoms.arrays.pop("forces")], "nothing was predicted"),
        (lambda atoms: atoms.positions.__setitem__(1, atoms.positions[0]), "two atoms are closer than 0.1 Å"),
    ],
)
def test_frames_that_cannot_be_used_are_left_out_and_counted(tmp_path: Path, change: Change, reason: str) -> None:
    images = frames(4)
    for atoms in images[1:3]:
        change(atoms)
    found = read_predictions(written(tmp_path, images))
    assert found.left_out == {reason: 2}
    assert found.structures.frames.tolist() == [0, 3]
    assert found.observed_energies().mean.tolist() == [images[i].info["energy"] for i in (0, 3)]
    np.testing.assert_allclose(found.forces.mean[: len(images[0])], images[0].arrays["forces"], atol=1e-8)


def test_tails_of_any_code_are_read(tmp_path: Path) -> None:
    """Under huefield's names or others; all structures must have the same, as metrics are those of one law."""
    images = frames()
    for atoms in images:
        atoms.info.update(energy_dof=4, nu=5.5)
    found = read_predictions(written(tmp_path, images), keys=PredictionKeys(forces_dof=("nu",)))
    assert (found.energy.dof, found.forces.dof) == (4.0, 5.5)
    images[1].info["energy_dof"] = 3.5
    with pytest.raises(
        ValueError, match=r"energy_dof differs between structures \(3.5, 4\): evaluate the predictions of"
    ):
        read_predictions(written(tmp_path, images))
    del images[1].info["energy_dof"]
    with pytest.raises(ValueError, match=r"energy_dof differs between structures \(4, none\)"):
        read_predictions(written(tmp_path, images))


def test_negative_variances_are_left_out_and_counted(tmp_path: Path) -> None:
    images = [mace_committee(atoms) for atoms in frames()]
    images[0].arrays["forces_var"][0, 0] = -1e-3
    assert read_predictions(written(tmp_path, images)).left_out == {"forces_var is negative": 1}


def test_damaged_frames_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, frames())
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], lines[2].replace("C ", "Xy ", 1), *lines[3:-2]]))
    found = read_predictions(path)
    assert found.structures.frames.tolist() == [1]
    assert sum(found.left_out.values()) == 2
    assert any("truncated" in reason for reason in found.left_out)


def test_nothing_usable_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    images = frames()
    for atoms in images:
        set_array("forces_uncertainty", 1)(atoms)
    with pytest.raises(
        ValueError, match=r"none of its 3 structures can be used: forces_uncertainty has another .*\(3\)"
    ):
        read_predictions(written(tmp_path, images))


def test_no_predictions_is_an_error_that_lists_what_there_is(tmp_path: Path) -> None:
    images = [renamed(atoms, energy="e", forces="f") for atoms in frames()]
    with pytest.raises(
        ValueError, match=r"no predictions under a known name; it has REF_energy, .*for instance --keys"
    ):
        read_predictions(written(tmp_path, images))


def test_no_uncertainties_is_an_error_that_lists_what_there_is(tmp_path: Path) -> None:
    images = [renamed(atoms, energy_uncertainty="std", forces_uncertainty="fstd") for atoms in frames()]
    with pytest.raises(ValueError, match=r"predictions but no uncertainties; it has REF_energy, .*fstd"):
        read_predictions(written(tmp_path, images))


def test_no_reference_is_an_error_that_says_how_to_give_one(tmp_path: Path) -> None:
    images = [renamed(atoms, REF_energy="e", REF_forces="f") for atoms in frames()]
    with pytest.raises(ValueError, match=r"no reference values beside energy and forces: write them as REF_energy"):
        read_predictions(written(tmp_path, images))


def test_references_of_another_quantity_are_an_error(tmp_path: Path) -> None:
    images = frames(2)
    for atoms in images:
        atoms.info["REF_energy"] = np.nan
        del atoms.arrays["REF_forces"]
    with pytest.raises(ValueError, match="no structure has both a prediction and a reference value"):
        read_predictions(written(tmp_path, images))


def test_local_uncertainties_of_flare_are_refused(tmp_path: Path) -> None:
    images = [flare(atoms) for atoms in frames()]
    for atoms in images:
        atoms.arrays["stds"][:, 1:] = 0.0
    with pytest.raises(ValueError, match=r"stds has numbers in its first column only.*variance_type='DTC'"):
        read_predictions(written(tmp_path, images))


def test_a_file_without_structures_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.xyz").write_text("")
    with pytest.raises(ValueError, match="no structures that can be read"):
        read_predictions(tmp_path / "empty.xyz")


def test_an_unknown_field_of_the_names_is_an_error() -> None:
    with pytest.raises(ValueError, match="is not a known key; known are energy, energy_uncertainty"):
        PredictionKeys.model_validate({"energies": "e"})
