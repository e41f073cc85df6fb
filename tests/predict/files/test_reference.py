from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule

from huefield.data.convert import convert
from huefield.predict import PredictionKeys, read_predictions
from tests.predict.files.test_reading import frames, renamed, written


def separated(images: list[Atoms], folder: Path) -> tuple[Path, Path]:
    """Predictions and reference values, both as energy and forces, in two files."""
    predicted, reference = [atoms.copy() for atoms in images], [atoms.copy() for atoms in images]
    for atoms in predicted:
        del atoms.info["REF_energy"], atoms.arrays["REF_forces"]
    for atoms in reference:
        del atoms.info["energy"], atoms.info["energy_uncertainty"]
        del atoms.arrays["forces"], atoms.arrays["forces_uncertainty"]
        renamed(atoms, REF_energy="energy", REF_forces="forces")
    return written(folder, predicted), written(folder, reference, "reference.xyz")


def changed(path: Path, index: int, atoms: Atoms) -> Path:
    images = ase.io.read(path, index=":")
    images[index] = atoms
    return written(path.parent, images, path.name)


def test_reference_values_come_from_another_file(tmp_path: Path) -> None:
    together = read_predictions(written(tmp_path, frames(), "together.xyz"))
    predicted, reference = separated(frames(), tmp_path)
    found = read_predictions(predicted, reference=reference)
    for name in ("observed_energies", "observed_forces"):
        ours, theirs = getattr(together, name)(), getattr(found, name)()
        np.testing.assert_array_equal(theirs.mean, ours.mean)
        np.testing.assert_array_equal(theirs.target, ours.target)
        np.testing.assert_array_equal(theirs.variance, ours.variance)


def test_reference_values_come_from_a_store(tmp_path: Path) -> None:
    predicted, reference = separated(frames(), tmp_path)
    convert([reference], tmp_path / "reference.hues")
    stored = read_predictions(predicted, reference=tmp_path / "reference.hues")
    np.testing.assert_array_equal(
        stored.structures.forces, read_predictions(predicted, reference=reference).structures.forces
    )
    assert stored.structures.has_energy.all()


def test_names_of_the_reference_are_looked_for_in_its_file(tmp_path: Path) -> None:
    predicted, reference = separated(frames(), tmp_path)
    images = ase.io.read(reference, index=":")
    for atoms in images:
        atoms.info["dft"] = 7.0
    written(tmp_path, images, "reference.xyz")
    found = read_predictions(predicted, reference=reference, keys=PredictionKeys(reference_energy=("dft",)))
    assert set(found.observed_energies().target) == {7.0}


def test_a_bad_frame_in_either_file_costs_only_itself(tmp_path: Path) -> None:
    images = frames(4)
    images[1].info["energy"] = np.nan
    images[2].info["REF_energy"] = np.nan
    predicted, reference = separated(images, tmp_path)
    found = read_predictions(predicted, reference=reference)
    assert found.structures.frames.tolist() == [0, 3]
    assert found.left_out == {"energy is NaN or infinite": 1, "its reference cannot be used": 1}
    assert found.observed_energies().target.tolist() == [images[i].info["REF_energy"] for i in (0, 3)]


def test_another_number_of_structures_is_an_error(tmp_path: Path) -> None:
    predicted, reference = separated(frames(3), tmp_path)
    ase.io.write(reference, ase.io.read(reference, index=":2"))
    with pytest.raises(ValueError, match=r"reference.xyz has 2 structures, but .*predicted.xyz has 3"):
        read_predictions(predicted, reference=reference)


def test_some_structures_of_a_reference_are_found_by_their_numbers(tmp_path: Path) -> None:
    """As where others could not be predicted."""
    images = frames(5)
    for number, atoms in enumerate(images):
        atoms.info["frame"] = number
    predicted, reference = separated(images, tmp_path)
    ase.io.write(predicted, [ase.io.read(predicted, index=index) for index in (1, 4)])
    found = read_predictions(predicted, reference=reference)
    assert found.structures.energy.tolist() == [images[i].info["REF_energy"] for i in (1, 4)]
    ase.io.write(reference, ase.io.read(reference, index=":4"))
    with pytest.raises(ValueError, match=r"has 4 structures, but .*predicted.xyz has 2: .* `frame` gives the numbers"):
        read_predictions(predicted, reference=reference)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (molecule("CH3OH"), r"frame 0: it has another number of atoms .*\(5 and 6 atoms; 1 of 3 structures"),
        (molecule("SiH4"), "frame 0: it has other elements"),
        (molecule("CH4"), "frame 0: it has atoms that are more than 0.01 Å from there"),
    ],
)
def test_other_atoms_are_an_error(tmp_path: Path, other: Atoms, what: str) -> None:
    predicted, reference = separated(frames(), tmp_path)
    other.info["energy"] = 1.0
    with pytest.raises(ValueError, match=what):
        read_predictions(predicted, reference=changed(reference, 0, other))


def test_molecules_may_be_moved_and_periodic_atoms_wrapped(tmp_path: Path) -> None:
    predicted, reference = separated(frames(), tmp_path)
    images = ase.io.read(reference, index=":")
    images[0].translate([1.0, 2.0, 3.0])
    images[1].positions[0] += images[1].cell[1] - 2 * images[1].cell[2]
    written(tmp_path, images, "reference.xyz")
    assert len(read_predictions(predicted, reference=reference)) == 3
    images[1].positions[0] += 0.5 * images[1].cell[1]
    written(tmp_path, images, "reference.xyz")
    with pytest.raises(ValueError, match="frame 1: it has atoms that are more than"):
        read_predictions(predicted, reference=reference)


def test_a_file_without_reference_values_is_an_error(tmp_path: Path) -> None:
    predicted, reference = separated(frames(1), tmp_path)
    ase.io.write(reference, bulk("Si"))
    with pytest.raises(ValueError, match=r"no reference values: none of its structures has REF_energy, energy"):
        read_predictions(predicted, reference=reference)


def test_a_file_of_bad_frames_is_an_error(tmp_path: Path) -> None:
    predicted, reference = separated(frames(1), tmp_path)
    ase.io.write(reference, Atoms("H2"))
    with pytest.raises(ValueError, match=r"no structures that can be used as a reference: .*closer"):
        read_predictions(predicted, reference=reference)


def test_a_reference_under_another_name_is_listed(tmp_path: Path) -> None:
    predicted, reference = separated(frames(1), tmp_path)
    atoms = bulk("Si")
    atoms.info["dft_energy"] = -1.0
    ase.io.write(reference, atoms)
    with pytest.raises(
        ValueError, match=r"no reference values: no energy under .*, but there is dft_energy; name them"
    ):
        read_predictions(predicted, reference=reference)
