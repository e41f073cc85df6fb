import gzip
import io
from itertools import chain, islice
from pathlib import Path

import ase.db
import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.stress import voigt_6_to_full_3x3_stress

from huefield.core.structure import Structure
from huefield.data.readers.ase_files import FRAMES_PER_BLOCK, AseReader
from huefield.data.readers.base import BadFrameError, Fault, UnknownUnitsError, UnreadableFileError
from huefield.data.readers.detect import read, read_blocks
from tests.core.test_structure import same
from tests.data.readers.test_detect import real_file

REAL = [
    "3bpa/train_300K.xyz", "3bpa/iso_atoms.xyz", "acac/test_H_transfer.xyz", "acac/test_dihedral.xyz",
    "ani1x/ani1x_800.xyz", "ethanol_pbe_svp/test_dimers.xyz", "mlearn/Si_test.xyz", "mlearn/Li_test.xyz",
]  # fmt: skip


def labelled(atoms: Atoms, seed: int = 0, **results: object) -> Atoms:
    """Atoms that are slightly displaced and have random labels."""
    rng = np.random.default_rng(seed)
    atoms.rattle(0.01, rng=rng)
    labels = {"energy": float(rng.normal()), "forces": rng.normal(size=(len(atoms), 3)), **results}
    atoms.calc = SinglePointCalculator(atoms, **labels)
    return atoms


@pytest.fixture
def frames() -> list[Atoms]:
    """Molecules and crystals of different sizes; the last one has an energy only."""
    slab = bulk("Si", cubic=True)
    slab.pbc = (True, True, False)
    energy_only = labelled(molecule("CH4"), 3, forces=None)
    stress = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    return [labelled(molecule("H2O"), 1), labelled(slab, 2, stress=stress), energy_only]


def assert_same(structure: Structure, atoms: Atoms) -> None:
    """Equal to what ASE itself says."""
    np.testing.assert_array_equal(structure.atomic_numbers, atoms.get_atomic_numbers())
    np.testing.assert_array_equal(structure.positions, atoms.get_positions())
    np.testing.assert_array_equal(structure.cell, atoms.get_cell()[:])
    np.testing.assert_array_equal(structure.pbc, atoms.get_pbc())
    assert structure.energy == atoms.get_potential_energy()
    results = atoms.calc.results
    assert (structure.forces is None) == ("forces" not in results)
    assert (structure.stress is None) == ("stress" not in results)
    if structure.forces is not None:
        np.testing.assert_array_equal(structure.forces, atoms.get_forces(apply_constraint=False))
    if structure.stress is not None:
        np.testing.assert_array_equal(structure.stress, voigt_6_to_full_3x3_stress(atoms.get_stress()))


@pytest.mark.parametrize("name", REAL)
def test_real_files_are_read_as_ase_reads_them(name: str) -> None:
    path = real_file(name)
    expected = ase.io.read(path, index=":80")
    structures = list(islice(read(path), 80))
    assert len(structures) == len(expected) > 0
    for structure, atoms in zip(structures, expected, strict=True):
        assert_same(structure, atoms)


def test_real_files_with_energies_only_have_no_forces() -> None:
    structures = list(read(real_file("acac/test_H_transfer.xyz")))
    assert len(structures) == 15
    assert all(s.forces is None and s.energy is not None for s in structures)


def test_real_virial_stress_is_ignored_unless_asked_for() -> None:
    path = real_file("mlearn/Si_test.xyz")
    told: list[object] = []
    assert all(not block.has_stress.any() for block in read_blocks(path, on_remark=told.append))
    assert ["no stress under REF_stress or stress, but there is virial_stress" in str(each) for each in told] == [True]
    asked = AseReader(
        stress_keys=("virial_stress",), stress_order="vasp", stress_scale=-1 / 1602.1766, group_key="group"
    )
    for structure, atoms in zip(read(path, asked), ase.io.read(path, index=":"), strict=True):
        xx, yy, zz, xy, yz, xz = atoms.info["virial_stress"] / -1602.1766
        np.testing.assert_allclose(structure.stress, [[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]], rtol=1e-14)
        assert structure.group == atoms.info["group"]


class TestVirials:
    """A virial becomes the stress that ASE would have: V⁻¹ ∂E/∂ε, with the sign that was stated."""

    STRESS = np.array([[1.0, 6.0, 5.0], [6.0, 2.0, 4.0], [5.0, 4.0, 3.0]])
    SIX = ("ase", [1.0, 2, 3, 4, 5, 6]), ("vasp", [1.0, 2, 3, 6, 4, 5])

    @staticmethod
    def crystal(**info: object) -> Atoms:
        atoms = bulk("Si", cubic=True)
        atoms.info.update(energy=-1.0, **info)
        return atoms

    @pytest.mark.parametrize("form", ["3 x 3", "nine", "ase", "vasp"])
    @pytest.mark.parametrize(("stated", "sign"), [("-stress*volume", -1.0), ("stress*volume", 1.0)])
    def test_it_is_converted_as_stated(self, form: str, stated: str, sign: float) -> None:
        volume = self.crystal().get_volume()
        tensors = {"3 x 3": self.STRESS, "nine": self.STRESS.reshape(9), **{k: np.array(v) for k, v in self.SIX}}
        atoms = self.crystal(virials=sign * volume * tensors[form])
        order = form if form in ("ase", "vasp") else "ase"
        settings = {"virial_keys": ["virials"], "virial_sign": stated, "stress_order": order}
        found = AseReader.model_validate(settings).convert(atoms).stress
        np.testing.assert_allclose(found, self.STRESS, rtol=1e-12)

    def test_units_are_those_of_energies_and_lengths(self) -> None:
        atoms = self.crystal(virial=-self.STRESS)
        reader = AseReader(
            virial_keys=("virial",), virial_sign="-stress*volume", energy_unit="hartree", length_unit="bohr"
        )
        volume = atoms.get_volume() * ase.units.Bohr**3
        np.testing.assert_allclose(reader.convert(atoms).stress, self.STRESS * ase.units.Hartree / volume, rtol=1e-6)

    def test_it_is_read_from_a_file(self, tmp_path: Path) -> None:
        atoms = self.crystal(virial=-self.STRESS)
        ase.io.write(tmp_path / "a.xyz", [atoms, atoms])
        reader = AseReader(virial_keys=("virial",), virial_sign="-stress*volume")
        for structure in read(tmp_path / "a.xyz", reader):
            np.testing.assert_allclose(structure.stress, self.STRESS / atoms.get_volume(), rtol=1e-7)

    def test_a_molecule_in_a_box_has_no_stress(self) -> None:
        atoms = self.crystal(virial=self.STRESS)
        atoms.pbc = False
        assert AseReader(virial_keys=("virial",), virial_sign="-stress*volume").convert(atoms).stress is None

    def test_nothing_is_guessed(self, tmp_path: Path) -> None:
        """Without a statement there is no stress, and the remark says what to state."""
        ase.io.write(tmp_path / "a.xyz", self.crystal(virial=self.STRESS, virial_std=np.ones(9)))
        told: list[object] = []
        (block,) = read_blocks(tmp_path / "a.xyz", on_remark=told.append)
        assert not block.has_stress.any()
        (remark,) = map(str, told)
        assert "but there is virial, whose sign, unit and order are not guessed" in remark
        assert "virial_sign: -stress*volume" in remark

    def test_no_remark_where_a_stress_is_read(self, tmp_path: Path) -> None:
        ase.io.write(tmp_path / "a.xyz", self.crystal(virial=self.STRESS, REF_stress=self.STRESS))
        told: list[object] = []
        (block,) = read_blocks(tmp_path / "a.xyz", on_remark=told.append)
        np.testing.assert_array_equal(block.stress[0], self.STRESS)
        assert told == []

    @pytest.mark.parametrize(
        ("settings", "text"),
        [
            ({"virial_keys": ["virial"]}, r"the sign of the virial 'virial' must be stated.*-stress\*volume"),
            ({"virial_sign": "-stress*volume"}, r"virial_sign is given, but no virial_keys: name the virial"),
        ],
    )
    def test_half_a_statement_is_refused(self, settings: dict[str, object], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            AseReader.model_validate(settings)

    def test_a_stress_and_a_virial_are_one_too_many(self) -> None:
        atoms = self.crystal(virial=self.STRESS, stress=self.STRESS)
        reader = AseReader(virial_keys=("virial",), virial_sign="-stress*volume")
        with pytest.raises(ValueError, match=r"there are a stress and a virial: set stress_keys: \[\]"):
            reader.convert(atoms)
        found = reader.model_copy(update={"stress_keys": ()}).convert(atoms).stress
        np.testing.assert_allclose(found, -self.STRESS / atoms.get_volume(), rtol=1e-12)

    def test_a_virial_of_another_shape_is_refused(self) -> None:
        reader = AseReader(virial_keys=("virial",), virial_sign="-stress*volume")
        with pytest.raises(ValueError, match=r"the virial must have 6 or 3 × 3 components, but has shape \(2,\)"):
            reader.convert(self.crystal(virial=np.ones(2)))


@pytest.mark.parametrize("suffix", [".xyz", ".extxyz", ".xyz.gz", ".traj", ".db", ".json"])
def test_formats_of_ase_give_what_was_written(suffix: str, frames: list[Atoms], tmp_path: Path) -> None:
    path = tmp_path / f"odd@name{suffix}"
    if suffix in (".db", ".json"):
        with ase.db.connect(path) as database:
            for atoms in frames:
                database.write(atoms)
    else:
        with ase.io.formats.open_with_compression(str(path), "wb" if suffix == ".traj" else "w") as file:
            ase.io.write(file, frames, format="traj" if suffix == ".traj" else "extxyz")
    structures = list(read(path))
    assert len(structures) == 3
    tolerance = 6e-9 if "xyz" in suffix else 0.0  # eight decimals
    for structure, atoms in zip(structures, frames, strict=True):
        np.testing.assert_allclose(structure.positions, atoms.positions, rtol=0, atol=tolerance)
        np.testing.assert_array_equal(structure.pbc, atoms.pbc)
        assert structure.energy == pytest.approx(atoms.get_potential_energy(), rel=1e-15)
    np.testing.assert_allclose(structures[0].forces, frames[0].get_forces(), rtol=0, atol=tolerance)
    np.testing.assert_array_equal(structures[1].stress, [[1, 6, 5], [6, 2, 4], [5, 4, 3]])
    assert structures[2].forces is None


def test_many_frames_come_in_blocks_and_in_order(tmp_path: Path) -> None:
    path, count = tmp_path / "many.xyz", FRAMES_PER_BLOCK + 5
    path.write_text("".join(f"1\nProperties=species:S:1:pos:R:3 energy={i}\nH 0 0 0\n" for i in range(count)))
    blocks = list(read_blocks(path))
    assert [len(block) for block in blocks] == [FRAMES_PER_BLOCK, 5]
    np.testing.assert_array_equal(np.concatenate([b.energy for b in blocks]), np.arange(count))
    np.testing.assert_array_equal(np.concatenate([b.frames for b in blocks]), np.arange(count))


def test_reference_labels_win_over_those_of_a_calculator(tmp_path: Path) -> None:
    atoms = labelled(molecule("H2O"), stress=np.ones(6))
    atoms.info["REF_energy"] = -7.0
    atoms.info["REF_stress"] = np.arange(9.0).reshape(3, 3)
    atoms.arrays["REF_forces"] = np.full((3, 3), 0.25)
    structure = AseReader().convert(atoms)
    assert structure.energy == -7.0
    np.testing.assert_array_equal(structure.forces, np.full((3, 3), 0.25))
    np.testing.assert_array_equal(structure.stress, np.arange(9.0).reshape(3, 3))
    assert AseReader(energy_keys=("energy",)).convert(atoms).energy == atoms.get_potential_energy()
    assert AseReader(forces_keys=()).convert(atoms).forces is None


def test_reference_labels_survive_files(tmp_path: Path) -> None:
    atoms = molecule("H2O")
    atoms.info["REF_energy"], atoms.arrays["REF_forces"] = -7.0, np.full((3, 3), 0.25)
    ase.io.write(tmp_path / "a.xyz", atoms)
    with ase.db.connect(tmp_path / "a.db") as database:
        database.write(molecule("H2O"), REF_energy=-7.0, family="water", data={"REF_forces": np.full((3, 3), 0.25)})
    for path in (tmp_path / "a.xyz", tmp_path / "a.db"):
        (structure,) = read(path)
        assert structure.energy == -7.0
        np.testing.assert_array_equal(structure.forces, np.full((3, 3), 0.25))
    assert [s.group for s in read(tmp_path / "a.db", AseReader(group_key="family"))] == ["water"]


def test_a_database_that_states_another_unit_is_refused_until_the_reader_has_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with ase.db.connect(path) as database:
        database.metadata = {"_property_unit_dict": {"energy": "kcal/mol", "forces": "kcal/mol/Ang"}}
        database.write(molecule("H2O"), data={"energy": -23.06, "forces": np.zeros((3, 3))})
    with pytest.raises(UnknownUnitsError, match=r"a\.db: its metadata say that energies are in kcal/mol, .* state it"):
        list(read(path))
    (structure,) = read(path, AseReader(energy_unit="kcal/mol"))
    assert structure.energy == pytest.approx(-1.0, rel=1e-3)
    with ase.db.connect(path) as database:
        database.metadata = {"_property_unit_dict": {"energy": "eV"}}
    assert [structure.energy for structure in read(path)] == [-23.06]


@pytest.mark.parametrize("suffix", [".xyz", ".traj", ".db"])
def test_constraints_do_not_change_forces(suffix: str, tmp_path: Path) -> None:
    atoms = labelled(molecule("H2O"))
    atoms.set_constraint(FixAtoms([0, 1, 2]))
    assert not atoms.get_forces().any()
    ase.io.write(tmp_path / f"fixed{suffix}", atoms)
    (structure,) = read(tmp_path / f"fixed{suffix}")
    np.testing.assert_allclose(structure.forces, atoms.get_forces(apply_constraint=False), atol=6e-9)


def test_units_are_those_stated() -> None:
    atoms = labelled(bulk("Si"), stress=np.ones(6))
    plain, stated = AseReader().convert(atoms), AseReader(energy_unit="hartree", length_unit="bohr").convert(atoms)
    hartree, bohr = 27.211386245988, 0.529177210903
    assert stated.energy == plain.energy * hartree
    np.testing.assert_allclose(stated.positions, plain.positions * bohr, rtol=1e-14)
    np.testing.assert_allclose(stated.cell, plain.cell * bohr, rtol=1e-14)
    np.testing.assert_allclose(stated.forces, plain.forces * hartree / bohr, rtol=1e-14)
    np.testing.assert_allclose(stated.stress, plain.stress * hartree / bohr**3, rtol=1e-14)


def test_plain_xyz_does_not_fix_the_unit_of_its_labels(tmp_path: Path) -> None:
    path = tmp_path / "plain.xyz"
    path.write_text("2\nenergy=-1.5 step\nH 0 0 0\nH 0 0 0.74\n")
    with pytest.raises(
        UnknownUnitsError, match=r"plain.xyz, frame 0: a plain xyz .* state it: --reader '.*energy_unit"
    ):
        list(read(path))
    (structure,) = read(path, AseReader(energy_unit="meV"))
    assert structure.energy == -1.5e-3
    path.write_text("2\nhydrogen, relaxed\nH 0 0 0\nH 0 0 0.74\n")
    (structure,) = read(path)
    assert structure.energy is None


def test_lattice_vectors_behind_the_atoms_belong_to_the_frame(tmp_path: Path) -> None:
    path = tmp_path / "vec.xyz"
    path.write_text("1\nfirst\nH 0 0 0\nVEC1 3 0 0\nVEC2 0 4 0\n\n1\nsecond\nHe 0 0 0\n\n")
    first, second = read(path)
    np.testing.assert_array_equal(first.cell, np.diag([3.0, 4.0, 0.0]))
    np.testing.assert_array_equal(first.pbc, [True, True, False])
    assert second.atomic_numbers.tolist() == [2]


def test_group_key_that_a_frame_lacks_is_a_fault(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "a.xyz", labelled(molecule("H2O")))
    with pytest.raises(BadFrameError, match=r"a.xyz, frame 0: no group: info has no 'run'; it has nothing"):
        list(read(tmp_path / "a.xyz", AseReader(group_key="run")))


GOOD = (
    '2\nProperties=species:S:1:pos:R:3:forces:R:3 energy=1.5 pbc="F F F"\nC 0 0 0 0.1 0.2 0.3\nO 0 0 1.1 0.1 0.2 0.3\n'
)
BAD = {
    "energy=nan": (GOOD.replace("1.5", "nan"), "the energy is nan"),
    "energy=inf": (GOOD.replace("1.5", "-inf"), "the energy is -inf"),
    "energy word": (GOOD.replace("1.5", "high"), "the energy must be numbers, but is 'high'"),
    "energy bool": (GOOD.replace("1.5", "T"), "the energy must be numbers, but is 'True'"),
    "energy list": (GOOD.replace("1.5", '"1 2"'), r"the energy must be one number, but has shape \(2,\)"),
    "force nan": (GOOD.replace("0.3\nO", "nan\nO"), "a force is NaN or infinite"),
    "element": (GOOD.replace("\nO", "\nQq"), "unknown element or key 'Qq'"),
    "no element": (GOOD.replace("\nO", "\nX"), r"unknown element: atomic numbers \[0\]"),
    "same place": (GOOD.replace("1.1", "0.0"), "two atoms are closer than"),
    "short line": (GOOD.replace(" 0.3\nO", "\nO"), ""),
    "word in a line": (GOOD.replace("1.1", "one"), "could not convert string to float: 'one'"),
    "no atoms": ("0\nenergy=1 Properties=species:S:1:pos:R:3\n", ""),
    "stress": (
        GOOD.replace("energy", 'REF_stress="1 2 3 4" energy'),
        r"stress must have 6 or 3 × 3 components, but has sh",
    ),
    "forces": (
        GOOD.replace("forces:R:3", "forces:R:2").replace(" 0.3\n", "\n"),
        r"forces must have shape \(2, 3\), but has shape \(2, 2\)",
    ),
    "binary": (GOOD.replace("C 0", "\udcff\udcfe 0"), "unknown element or key"),
}


@pytest.mark.parametrize("case", BAD)
def test_damaged_frame_is_a_fault_and_costs_only_itself(case: str, tmp_path: Path) -> None:
    path, (text, reason) = tmp_path / "a.xyz", BAD[case]
    path.write_text(GOOD + text + GOOD, encoding="utf-8", errors="surrogateescape")
    faults: list[Fault] = []
    assert [s.energy for s in read(path, on_fault=faults.append)] == [1.5, 1.5]
    assert len(faults) == 1
    with pytest.raises(BadFrameError, match=rf"a.xyz, frame 1: .*{reason}"):
        list(read(path))


@pytest.mark.parametrize("count", ["1", "3", "4", "two", "-2", "2.0", "٢"])
def test_wrong_number_of_atoms_is_never_a_silent_stop(count: str, tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text(GOOD + GOOD.replace("2\n", f"{count}\n", 1) + GOOD, encoding="utf-8")
    with pytest.raises(
        UnreadableFileError, match=r"a.xyz, frame \d: expected a line with the number of atoms, but found"
    ):
        list(read(tmp_path / "a.xyz", on_fault=lambda fault: None))


def test_file_cut_anywhere_gives_whole_frames_and_a_fault(tmp_path: Path) -> None:
    """No structure is invented: not even from a number that lost its last digits."""
    frames = [labelled(molecule(name), seed) for seed, name in enumerate(["OH", "H2O"])]
    buffer = io.StringIO()
    ase.io.write(buffer, frames, format="extxyz")
    text, path = buffer.getvalue(), tmp_path / "a.xyz"
    path.write_text(text)
    whole = list(read(path))
    for end in chain(range(1, len(text) - 90, 7), range(len(text) - 90, len(text) - 1)):
        path.write_text(text[:end])
        faults: list[Fault] = []
        found = list(read(path, on_fault=faults.append))
        assert all(same(a, b) for a, b in zip(found, whole, strict=False))  # the last one is cut
        assert len(found) + len(faults) == (1 if end <= text.index("\n3\n") + 1 else 2)
        assert len(found) < 2


def test_truncation_is_explained(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text(GOOD + "".join(GOOD.splitlines(keepends=True)[:3]))
    with pytest.raises(
        BadFrameError, match=r"a.xyz, frame 1: the file is truncated: it announces 2 atoms and ends after 1"
    ):
        list(read(tmp_path / "a.xyz"))
    (tmp_path / "a.xyz").write_text(GOOD[:-2])
    with pytest.raises(
        BadFrameError, match=r"a.xyz, frame 0: the file is truncated in its last line; if it is complete, end"
    ):
        list(read(tmp_path / "a.xyz"))


@pytest.mark.parametrize("suffix", [".traj", ".db", ".xyz.gz"])
@pytest.mark.parametrize("kept", [0.2, 0.6, 0.95])
def test_truncated_binary_files_name_themselves(suffix: str, kept: float, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    ase.io.write(path, [labelled(molecule("CH4"), seed) for seed in range(30)])
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    faults: list[Fault] = []
    with pytest.raises((UnreadableFileError, OSError), match=f"a{suffix}"):
        list(read(path, on_fault=faults.append))


VASPRUN_HEAD = """<?xml version="1.0"?>
<modeling><kpoints></kpoints>
<atominfo><array name="atoms"><set><rc><c>Na</c></rc><rc><c>Cl</c></rc></set></array></atominfo>
<structure name="initialpos">
  <crystal><varray name="basis"><v>4 0 0</v><v>0 4 0</v><v>0 0 4</v></varray></crystal>
  <varray name="positions"><v>0 0 0</v><v>0.5 0.5 0.5</v></varray>
</structure>
"""
VASPRUN_STEP = """<calculation>
<scstep><energy><i name="e_fr_energy">-{i}</i><i name="e_0_energy">-{i}</i></energy></scstep>
<structure>
  <crystal><varray name="basis"><v>4 0 0</v><v>0 4 0</v><v>0 0 4</v></varray></crystal>
  <varray name="positions"><v>0 0 0</v><v>0.5 0.5 0.5</v></varray>
</structure>
<varray name="forces"><v>0 0 {i}</v><v>0 0 -{i}</v></varray>
<varray name="stress"><v>4 0 0</v><v>0 4 0</v><v>0 0 4</v></varray>
<energy><i name="e_fr_energy">-{i}</i><i name="e_0_energy">-{i}</i></energy>
</calculation>
"""


def vasprun(steps: int) -> str:
    return VASPRUN_HEAD + "".join(VASPRUN_STEP.format(i=i + 1) for i in range(steps)) + "</modeling>\n"


def test_vasprun_is_read_and_an_unfinished_one_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "vasprun.xml"
    path.write_text(vasprun(3))
    structures = list(read(path))
    assert [s.energy for s in structures] == [-1, -2, -3]
    np.testing.assert_array_equal(structures[1].forces, [[0, 0, 2], [0, 0, -2]])
    np.testing.assert_allclose(structures[1].stress, -4.0 / 1602.1766 * np.eye(3), rtol=1e-6)
    path.write_text(vasprun(3).removesuffix("</modeling>\n"))
    faults: list[Fault] = []
    assert len(list(read(path, on_fault=faults.append))) == 3
    assert len(faults) == 1
    with pytest.raises(
        BadFrameError, match=r"vasprun.xml, frame 3: the file ends before </modeling>: it is truncated, or"
    ):
        list(read(path))


def test_kind_of_file_that_ase_does_not_know_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.strange").write_text("what is this?")
    with pytest.raises(
        UnreadableFileError, match=r"a.strange: ASE does not know this kind of file .* --reader '.*ase_format"
    ):
        list(read(tmp_path / "a.strange"))
    (tmp_path / "a.strange").write_text(GOOD)
    assert len(list(read(tmp_path / "a.strange", AseReader(ase_format="extxyz")))) == 1


def test_gzipped_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.xyz.gz").write_bytes(gzip.compress(GOOD.encode()))
    assert [s.energy for s in read(tmp_path / "a.xyz.gz")] == [1.5]
