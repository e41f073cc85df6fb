from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.stress import full_3x3_to_voigt_6_stress

from huefield.core.structure import Structure, pack
from huefield.predict import read_predictions, write_predictions, writing_predictions
from huefield.predict.marginals import EnergyForcesMarginals, Marginals
from huefield.predict.predictions import Predictions
from tests.predict.helpers import changed


def marginals(shape: tuple[int, ...], rng: np.random.Generator) -> Marginals:
    aleatoric, epistemic = rng.uniform(0, 1e-3, shape), rng.uniform(0, 1e-3, shape)
    return Marginals(rng.normal(size=shape), aleatoric + epistemic, aleatoric, epistemic)


def made(
    groups: tuple[str, ...] = ("slab", "", "a b", "T", "12", 'say "x" = \\ y'), name: str = "white, 5 members"
) -> Predictions:
    """Predictions of molecules, a crystal, an atom; with energies, forces and stresses of some of them."""
    rng = np.random.default_rng(0)
    structures = [
        Structure(
            rng.integers(1, 119, size).astype(np.uint8),
            rng.normal(size=(size, 3)) * 10,
            rng.normal(size=(3, 3)) if number % 3 == 1 else np.zeros((3, 3)),
            np.array([True, True, False]) if number % 3 == 1 else np.zeros(3, bool),
            float(rng.normal()) * 1e5 if number != 2 else None,
            rng.normal(size=(size, 3)) if number != 3 else None,
            rng.normal(size=(3, 3)) if number == 1 else None,
            group,
        )
        for number, (group, size) in enumerate(zip(groups, (3, 8, 1, 5, 2, 4), strict=True))
    ]  # fmt: skip
    block = pack(structures, np.arange(len(groups)), "made")
    joint = np.where(block.has_energy & block.has_forces, rng.normal(size=len(block)), np.nan)
    atoms = len(block.positions)
    energy, forces = marginals((len(block),), rng), marginals((atoms, 3), rng)
    return Predictions(name, block, EnergyForcesMarginals(energy, forces, joint_nll=joint))


def assert_same(found: Predictions, expected: Predictions) -> None:
    for name in ("sizes", "atomic_numbers", "positions", "cells", "pbc", "energy", "has_energy", "forces", "has_forces",
                 "stress", "has_stress", "groups", "frames"):  # fmt: skip
        np.testing.assert_array_equal(getattr(found.structures, name), getattr(expected.structures, name), name)
    for theirs, ours in ((found.energy, expected.energy), (found.forces, expected.forces)):
        assert (theirs is None) == (ours is None)
        for part in ("mean", "variance", "aleatoric_var", "epistemic_var"):
            assert_same_part(getattr(theirs, part, None), getattr(ours, part, None))
    assert found.name == expected.name
    assert_same_part(found.joint_nll, expected.joint_nll)


def assert_same_part(found: np.ndarray | None, expected: np.ndarray | None) -> None:
    """Equal but for the rounding of a square root."""
    assert (found is None) == (expected is None)
    if found is not None:
        np.testing.assert_allclose(found, expected, rtol=1e-15, atol=0)


def test_what_was_written_reads_back_the_same(tmp_path: Path) -> None:
    expected = made()
    write_predictions(tmp_path / "out" / "predictions.xyz", expected)
    assert_same(read_predictions(tmp_path / "out" / "predictions.xyz"), expected)


def test_tails_are_read_back(tmp_path: Path) -> None:
    """Also if the first structure has no predicted energy; ASE finds one number for each structure."""
    plain = made()
    energy, forces = replace(plain.energy, dof=3.25), replace(plain.forces, dof=1.0 + np.sqrt(2.0))
    energy.mean[0], energy.variance[0] = np.nan, 0.0
    expected = changed(plain, energy=energy, forces=forces)
    write_predictions(tmp_path / "tails.xyz", expected)
    found = read_predictions(tmp_path / "tails.xyz")
    assert (found.energy.dof, found.forces.dof) == (energy.dof, forces.dof)
    frames = ase.io.read(tmp_path / "tails.xyz", ":")
    assert ["energy_dof" in atoms.info for atoms in frames] == [False] + [True] * 5
    assert all(atoms.info["forces_dof"] == forces.dof for atoms in frames)
    write_predictions(tmp_path / "normal.xyz", plain)
    assert "_dof" not in (tmp_path / "normal.xyz").read_text()
    assert read_predictions(tmp_path / "normal.xyz").forces.dof is None


@pytest.mark.parametrize("without", ["energy", "forces", "joint_nll"])
def test_what_is_not_known_is_not_written(tmp_path: Path, without: str) -> None:
    expected = changed(made(), **{without: None})
    write_predictions(tmp_path / "predictions.xyz", expected)
    found = read_predictions(tmp_path / "predictions.xyz")
    assert getattr(found, without) is None
    others = {"energy", "forces", "joint_nll"} - {without}
    assert all(getattr(found, other) is not None for other in others)


def unpredicted(predictions: Predictions, energies: list[int], forces: list[int]) -> Predictions:
    """The same without the predictions of some structures, as reading a file without them gives."""

    def without(marginals: Marginals, rows: np.ndarray) -> Marginals:
        mean, *variances = (
            v.copy() for v in (marginals.mean, marginals.variance, marginals.aleatoric_var, marginals.epistemic_var)
        )
        mean[rows] = np.nan
        for variance in variances:
            variance[rows] = 0.0
        return Marginals(mean, *variances)

    atoms = np.isin(predictions.structures.owners, forces)
    return changed(
        predictions,
        energy=without(predictions.energy, np.isin(np.arange(len(predictions)), energies)),
        forces=without(predictions.forces, atoms),
    )


def test_what_was_not_predicted_of_a_structure_is_not_written(tmp_path: Path) -> None:
    """Its reference is, and all of it reads back the same."""
    path, expected = tmp_path / "predictions.xyz", unpredicted(made(), [1], [0, 4])
    write_predictions(path, expected)
    first, second = ase.io.read(path, index=":2")
    assert not {"forces", "forces_uncertainty", "forces_uncertainty_aleatoric"} & first.arrays.keys()
    assert first.calc.results.keys() == {"energy"}
    np.testing.assert_array_equal(first.arrays["REF_forces"], expected.structures.forces[:3])
    assert second.calc.results.keys() == {"forces"}
    assert not {"energy_uncertainty", "energy_uncertainty_aleatoric"} & second.info.keys()
    assert second.info["REF_energy"] == expected.structures.energy[1]
    assert "nan" not in path.read_text().replace("joint_nll=nan", "")
    found = read_predictions(path)
    assert_same(found, expected)
    write_predictions(tmp_path / "again.xyz", found)
    assert (tmp_path / "again.xyz").read_text() == path.read_text()


def test_a_reference_of_what_nobody_predicted_reads_back(tmp_path: Path) -> None:
    expected = changed(made(), forces=None)
    write_predictions(tmp_path / "predictions.xyz", expected)
    assert_same(read_predictions(tmp_path / "predictions.xyz"), expected)


def test_numbers_of_the_source_are_kept(tmp_path: Path) -> None:
    """Of a part of the data, in whatever order."""
    full = made()
    expected = replace(full, structures=replace(full.structures, frames=np.array([70, 3, 800_000, 5, 0, 6])))
    write_predictions(tmp_path / "predictions.xyz", expected)
    assert [atoms.info["frame"] for atoms in ase.io.iread(tmp_path / "predictions.xyz")] == [70, 3, 800_000, 5, 0, 6]
    assert_same(read_predictions(tmp_path / "predictions.xyz"), expected)


def test_parts_that_are_not_known_are_not_written(tmp_path: Path) -> None:
    full = made()
    expected = changed(full, energy=Marginals(full.energy.mean, full.energy.variance))
    write_predictions(tmp_path / "predictions.xyz", expected)
    assert_same(read_predictions(tmp_path / "predictions.xyz"), expected)


def test_other_tools_find_the_names_of_the_design(tmp_path: Path) -> None:
    """Written for whoever uses ASE alone."""
    expected = made()
    write_predictions(tmp_path / "predictions.xyz", expected)
    atoms = ase.io.read(tmp_path / "predictions.xyz", index=1)
    assert atoms.get_potential_energy() == expected.energy.mean[1]
    np.testing.assert_array_equal(atoms.get_forces(), expected.forces.mean[3:11])
    np.testing.assert_array_equal(atoms.arrays["REF_forces"], expected.structures.forces[3:11])
    assert atoms.info["REF_energy"] == expected.structures.energy[1]
    assert atoms.info["energy_uncertainty_epistemic"] == np.sqrt(expected.energy.epistemic_var[1])
    np.testing.assert_array_equal(atoms.arrays["forces_uncertainty"], np.sqrt(expected.forces.variance[3:11]))
    assert {"energy_uncertainty", "energy_uncertainty_aleatoric"} <= atoms.info.keys()
    assert {"forces_uncertainty_aleatoric", "forces_uncertainty_epistemic"} <= atoms.arrays.keys()


@pytest.mark.parametrize("count", [1, 5, 9])
def test_members_are_read_back_by_ase(tmp_path: Path, count: int) -> None:
    rng, full = np.random.default_rng(0), made()
    energies, forces = rng.normal(size=(count, 6)), rng.normal(size=(count, len(full.structures.positions), 3))
    with_members = changed(
        full, energy=replace(full.energy, members=energies), forces=replace(full.forces, members=forces)
    )
    write_predictions(tmp_path / "predictions.xyz", with_members)
    for index, atoms in enumerate(ase.io.iread(tmp_path / "predictions.xyz")):
        rows = slice(full.structures.starts[index], full.structures.starts[index + 1])
        np.testing.assert_array_equal(np.atleast_1d(atoms.info["energy_ensemble"]), energies[:, index])
        found = atoms.arrays["forces_ensemble"].reshape(len(atoms), -1, 3).swapaxes(0, 1)
        np.testing.assert_array_equal(found, forces[:, rows])
    assert_same(read_predictions(tmp_path / "predictions.xyz"), full)


def test_stresses_are_read_back_by_ase(tmp_path: Path) -> None:
    """Of structures that have them, in ASE's order of six components."""
    rng, full = np.random.default_rng(0), made()
    tensors = rng.normal(size=(4, 6, 3, 3))
    mean, noise, spread = (tensors + tensors.swapaxes(2, 3))[:3]
    mean[2] = np.nan
    stress = Marginals(mean, noise**2 + spread**2, noise**2, spread**2)
    write_predictions(tmp_path / "predictions.xyz", changed(full, stress=stress))
    frames = ase.io.read(tmp_path / "predictions.xyz", ":")
    np.testing.assert_array_equal(frames[1].calc.results["stress"], full_3x3_to_voigt_6_stress(mean[1]))
    for name, part in (
        ("", stress.variance),
        ("_aleatoric", stress.aleatoric_var),
        ("_epistemic", stress.epistemic_var),
    ):
        expected = full_3x3_to_voigt_6_stress(np.sqrt(part[1]))
        np.testing.assert_allclose(frames[1].info[f"stress_uncertainty{name}"], expected, rtol=1e-15)
    assert "stress" not in frames[2].calc.results
    assert "stress_uncertainty" not in frames[2].info
    assert_same(read_predictions(tmp_path / "predictions.xyz"), full)


def test_one_lot_after_the_other_is_one_file(tmp_path: Path) -> None:
    full = made()
    write_predictions(tmp_path / "whole.xyz", full)
    with writing_predictions(tmp_path / "parts.xyz") as write:
        for keep in (np.arange(6) < 2, np.arange(6) >= 2):
            write(full.select(keep))
    assert (tmp_path / "parts.xyz").read_text() == (tmp_path / "whole.xyz").read_text()


def test_a_failure_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "predictions.xyz"
    path.write_text("before")
    monkeypatch.setattr("huefield.predict.files.writer.chemical_symbols", [])
    with pytest.raises(IndexError):
        write_predictions(path, made())
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
