import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import molecule
from ase.vibrations import VibrationsData
from scipy.optimize import minimize_scalar
from scipy.spatial.transform import Rotation

from huefield.core.structure import Structure
from huefield.data.bundled.sets import read_splits
from huefield.make_data import MakeProgress, SamplingError, SamplingPlan, make
from huefield.make_data.geometry import bonds, from_zmatrix, num_fragments
from huefield.make_data.molecules import equilibrium_molecules
from huefield.make_data.neb import BANDS, BandHistory, num_maxima, reaction_path, require_physical
from huefield.make_data.oracles import AbstractOracle, OracleError, TbliteOracle
from huefield.make_data.pool import run_tasks
from huefield.make_data.reactions import HELD_OUT, elementary_reactions
from huefield.make_data.relax import Relaxation, relaxed
from huefield.make_data.sampling import MODES, PER_CM, DynamicsSettings, hessian, normal_modes
from huefield.make_data.sampling import sample_dynamics as dynamics
from huefield.make_data.sampling import sample_modes as displaced
from huefield.make_data.splits import assigned_splits
from huefield.make_data.thinning import distinct, spread_out
from huefield.make_data.units import UnitResult, finish_unit, label_structures, read_unit, sample_reaction

FEW = {"dynamics_per_molecule": 2, "hot_per_molecule": 2, "frames_per_reaction": 6, "frames_per_held_out_reaction": 4}
REACTIONS = ("ammonia inversion", "malonaldehyde hydrogen transfer")
SMALL = SamplingPlan(molecules=("water", "hydrogen cyanide"), reactions=REACTIONS, modes_per_molecule=8, **FEW)


@dataclass(frozen=True)
class Spring(AbstractOracle):
    """Two atoms with the energy ½k(r − r₀)²."""

    constant: float
    rest: float = 0.75

    def label(self, structure: Structure) -> Structure:
        bond = structure.positions[1] - structure.positions[0]
        length = np.linalg.norm(bond)
        pull = self.constant * (length - self.rest) * bond / length
        energy = float(self.constant * (length - self.rest) ** 2 / 2)
        return replace(structure, energy=energy, forces=np.array([pull, -pull]))

    def provenance(self) -> dict[str, object]:
        return {"level": "spring"}

    def with_unpaired_electrons(self, unpaired: int) -> "Spring":
        return self


H2 = np.array([1, 1], np.uint8)
AT_REST = np.array([[0.0, 0, 0], [0, 0, 0.75]])
AMMONIA = next(reaction for reaction in elementary_reactions() if reaction.name == "ammonia inversion")


def test_zmatrix_has_the_distances_angles_and_dihedrals_that_ase_measures() -> None:
    numbers, positions = from_zmatrix("C; O 1 1.21; N 2 1.36 1 124.7; H 3 1.10 2 100 1 37; H 1 1.0 3 75 4 -110")
    atoms = Atoms(numbers, positions)
    assert atoms.get_chemical_symbols() == ["C", "O", "N", "H", "H"]
    assert atoms.get_distance(0, 1) == pytest.approx(1.21)
    assert atoms.get_angle(2, 1, 0) == pytest.approx(124.7)
    assert atoms.get_dihedral(3, 2, 1, 0) == pytest.approx(37)
    assert (atoms.get_distance(4, 0), atoms.get_angle(4, 0, 2)) == pytest.approx((1.0, 75))
    assert atoms.get_dihedral(4, 0, 2, 3) == pytest.approx(360 - 110)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("C; O 1", r"row 2 of a Z-matrix must be an element and 2 numbers, but is \['O', '1'\]"),
        ("Q", "row 1 of a Z-matrix must be an element"),
        ("C; O 2 1.0", "row 2 of a Z-matrix refers to a row that is not above it"),
        ("C; O 1 1.0; O 1 1.0 2 180; H 2 1.0 1 90 3 0", "references of a Z-matrix row are collinear"),
    ],
)
def test_zmatrix_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_zmatrix(text)


def test_bonds_and_pieces_of_two_waters() -> None:
    water = molecule("H2O")
    both = np.concatenate([water.positions, water.positions + np.array([0, 0, 5.0])])
    numbers = np.tile(water.numbers, 2).astype(np.uint8)
    assert num_fragments(numbers, both) == 2
    assert bonds(numbers, both).sum() == 2 * 4
    assert num_fragments(numbers, both, factor=10.0) == 1


def test_molecules_are_small_closed_shells_in_one_piece() -> None:
    molecules = equilibrium_molecules()
    assert len({m.name for m in molecules}) == len(molecules) >= 15
    for each in molecules:
        assert set(each.numbers.tolist()) <= {1, 6, 7, 8}, each.name
        assert len(each.numbers) <= 12, each.name
        assert each.numbers.sum() % 2 == 0, each.name
        assert num_fragments(each.numbers, each.positions) == 1, each.name


def test_reactions_lead_elsewhere() -> None:
    reactions = elementary_reactions()
    assert len(reactions) >= 8
    turns = {"ammonia inversion", "diazene trans to cis", "hydroxycarbene rotation", "formic acid rotation"}
    for each in reactions:
        same = np.array_equal(bonds(each.numbers, each.reactant), bonds(each.numbers, each.product))
        assert same == (each.name in turns), each.name
        assert each.numbers.sum() % 2 == 0, each.name


def test_formulas_of_held_out_reactions_are_nowhere_else() -> None:
    reactions = elementary_reactions()
    assert set(HELD_OUT) <= {each.name for each in reactions}
    held_out = {tuple(sorted(r.numbers)) for r in reactions if r.name in HELD_OUT}
    others = {tuple(sorted(r.numbers)) for r in reactions if r.name not in HELD_OUT}
    others |= {tuple(sorted(m.numbers)) for m in equilibrium_molecules()}
    assert not held_out & others


def test_spring_relaxes_to_its_length_and_impatience_is_an_error() -> None:
    stretched = AT_REST * 1.3
    assert np.linalg.norm(np.diff(relaxed(H2, stretched, Spring(30.0)), axis=0)) == pytest.approx(0.75, abs=1e-3)
    with pytest.raises(SamplingError, match="H2 did not relax in 1 steps: the largest force is still"):
        relaxed(H2, stretched, Spring(30.0), Relaxation(max_steps=1))


def test_normal_modes_have_the_frequencies_that_ase_finds() -> None:
    atoms = molecule("H2CO")
    numbers, oracle = atoms.numbers.astype(np.uint8), TbliteOracle()
    minimum = relaxed(numbers, atoms.positions, oracle)
    second = hessian(numbers, minimum, oracle, MODES.step_angstrom)
    modes = normal_modes(numbers, minimum, second)
    assert len(modes.omega2) == 3 * 4 - 6
    expected = VibrationsData.from_2d(Atoms(numbers, minimum), second).get_frequencies().real[6:]
    np.testing.assert_allclose(np.sqrt(modes.omega2) / PER_CM, expected, rtol=1e-3)
    masses = Atoms(numbers).get_masses()[:, None]
    norms = np.einsum("vax,wax->vw", modes.directions * masses, modes.directions)
    np.testing.assert_allclose(norms, np.eye(6), atol=1e-9)
    shift = np.einsum("vax->vx", modes.directions * masses)
    np.testing.assert_allclose(shift, 0, atol=1e-9)


def test_linear_molecule_has_one_vibration_more() -> None:
    modes = normal_modes(H2, AT_REST, hessian(H2, AT_REST, Spring(30.0), 1e-4))
    assert len(modes.omega2) == 1
    assert modes.omega2[0] == pytest.approx(30.0 / (Atoms("H").get_masses()[0] / 2), rel=1e-5)


def test_mode_displacements_have_thermal_energy() -> None:
    modes = normal_modes(H2, AT_REST, hessian(H2, AT_REST, Spring(30.0), 1e-4))
    cold = replace(MODES, lowest_k=300.0, highest_k=300.0)
    frames = displaced(AT_REST, modes, 20_000, rng=np.random.default_rng(0), settings=cold)
    lengths = np.linalg.norm(frames[:, 1] - frames[:, 0], axis=-1)
    assert 0.5 * 30.0 * ((lengths - 0.75) ** 2).mean() == pytest.approx(units.kB * 300.0 / 2, rel=0.03)


def test_soft_modes_move_no_further_than_at_the_floor() -> None:
    soft = normal_modes(H2, AT_REST, hessian(H2, AT_REST, Spring(1e-6), 1e-4))
    frames = displaced(AT_REST, soft, 4_000, rng=np.random.default_rng(0), settings=replace(MODES, lowest_k=999.99))
    reduced_mass = Atoms("H").get_masses()[0] / 2
    expected = units.kB * 1000.0 / (reduced_mass * (MODES.floor_per_cm * PER_CM) ** 2)
    lengths = frames[:, 1, 2] - frames[:, 0, 2]
    assert lengths.var() == pytest.approx(expected, rel=0.1)


def test_dynamics_have_thermal_energy() -> None:
    settings = DynamicsSettings(timestep_fs=0.5, friction_per_fs=0.2, equilibration_steps=50, steps_between_frames=10)
    rng = np.random.default_rng(1)
    frames, restarts = dynamics(H2, AT_REST, Spring(30.0), 200, temperature_k=600.0, rng=rng, settings=settings)
    lengths = np.linalg.norm(frames[:, 1] - frames[:, 0], axis=-1)
    assert restarts == 0
    assert 0.5 * 30.0 * ((lengths - 0.75) ** 2).mean() == pytest.approx(units.kB * 600.0 / 2, rel=0.3)
    np.testing.assert_allclose(frames.mean(1), 0, atol=1e-12)


def test_molecule_that_falls_apart_is_given_up() -> None:
    twice, rng = DynamicsSettings(attempts=2), np.random.default_rng(0)
    with pytest.raises(SamplingError, match="the molecule dissociated 2 times at 300 K"):
        dynamics(H2, AT_REST, Spring(1.0, rest=5.0), 3, temperature_k=300.0, rng=rng, settings=twice)


def test_ammonia_inverts_over_the_planar_molecule() -> None:
    oracle = TbliteOracle()
    path = reaction_path(AMMONIA, oracle)
    angles = 2 * np.pi * np.arange(3) / 3
    planar = np.array([[0, 0, 0], *([np.cos(a), np.sin(a), 0] for a in angles)])
    at = partial(Structure, AMMONIA.numbers)
    top = minimize_scalar(lambda length: oracle.label(at(length * planar)).energy, bounds=(0.9, 1.1)).fun
    assert path.barrier == pytest.approx(top - path.energies[0], abs=0.005)
    assert path.bands.shape[1:] == (BANDS.images, 4, 3)


def test_end_point_that_becomes_another_molecule_is_refused() -> None:
    torn = AMMONIA.product.copy()
    torn[1] *= 1.5
    with pytest.raises(SamplingError, match="the product relaxed to another molecule: its bonds changed"):
        reaction_path(replace(AMMONIA, product=torn), TbliteOracle())


def test_maxima_are_counted_without_wiggles() -> None:
    none = [[0, 1, 2, 3], [3, 2, 1], [0, 0.05, 0, 0.05, 0]]
    one = [[0, 1, 2, 1, 0], [0, 2, 1.95, 2, 0], [0, -1, 2, 1, 1.05]]
    for tops, profiles in enumerate([none, one, [[0, 2, 1, 2, 0]], [[0, 3, 1, 2, 1, 4, 0]]]):
        for energies in profiles:
            assert num_maxima(np.array(energies, float), 0.1) == tops, energies


@pytest.mark.parametrize(
    ("energies", "fmax", "message"),
    [
        ([0, 9.0, 0], 0.0, "the barrier is 9.00 eV, not between 0.03 and 8.0 eV"),
        ([0, -1.0, -2], 0.0, "the barrier is 0.00 eV"),
        ([0, np.nan, 0], 0.0, "the barrier is nan eV"),
        ([0, 2.0, 0, 2.0, 0], 0.0, r"the path has 2 maxima, not one: \[0.0, 2.0, 0.0, 2.0, 0.0\] eV"),
        ([0, 2.0, 0], 1.0, "the band did not converge: its largest force is 1.00 eV/Å"),
    ],
)
def test_unphysical_paths_are_refused(energies: list[float], fmax: float, message: str) -> None:
    path = BandHistory(np.zeros((1, len(energies), 1, 3)), np.array(energies, float), fmax)
    with pytest.raises(SamplingError, match=message):
        require_physical(path, BANDS)


def test_spread_out_takes_the_farthest_and_stops_at_duplicates() -> None:
    lengths = np.array([1.0, 1.001, 2.0, 1.4, 1.7])
    frames = np.zeros((5, 2, 3))
    frames[:, 1, 0] = lengths
    assert spread_out(frames, 3, [0], 0.01).tolist() == [0, 2, 3]
    assert spread_out(frames, 9, [0, 1], 0.01).tolist() == [0, 2, 3, 4]
    assert spread_out(frames, 1, [2, 0], 0.01).tolist() == [2]


def test_distinct_knows_a_turned_and_reordered_copy() -> None:
    atoms = molecule("CH3OH")
    numbers = atoms.numbers.astype(np.uint8)
    order = np.array([1, 0, 3, 2, 5, 4])
    turned = Rotation.from_rotvec([0.3, 1.0, -0.4]).apply(atoms.positions)[order] + 1.0
    moved = atoms.positions + 0.05 * np.random.default_rng(0).standard_normal((6, 3))
    kept = distinct([numbers, numbers[order], numbers], [atoms.positions, turned, moved], 0.005)
    assert kept.tolist() == [True, False, True]


def test_splits_follow_the_group_and_the_shares() -> None:
    one = Structure(H2, AT_REST)
    groups = [f"reaction: {HELD_OUT[0]}", "water: dynamics at 2000 K", *["water: dynamics at 500 K"] * 2000]
    names = assigned_splits([replace(one, group=g) for g in groups], SamplingPlan(), rng=np.random.default_rng(0))
    assert names[:2] == ["test_reactions", "test_hot"]
    assert names.count("train") / 2000 == pytest.approx(0.80, abs=0.03)
    assert names.count("validation") / 2000 == pytest.approx(0.08, abs=0.02)
    assert names.count("test_id") / 2000 == pytest.approx(0.12, abs=0.02)


def test_larger_molecules_are_a_test_of_their_own_and_have_fewer_configurations() -> None:
    plan = SamplingPlan(max_heavy_atoms=1, fewer_above=1, modes_per_molecule=40)
    water, hydrogen_cyanide = np.array([8, 1, 1], np.uint8), np.array([6, 7, 1], np.uint8)
    assert plan.of_unit(water).modes_per_molecule == 40
    assert plan.of_unit(hydrogen_cyanide).modes_per_molecule == 8
    groups = (f"reaction: {HELD_OUT[0]}", f"path: {HELD_OUT[0]}", "hydrogen cyanide: dynamics at 2000 K")
    larger = [Structure(hydrogen_cyanide, np.eye(3), group=group) for group in groups]
    names = assigned_splits(larger, plan, rng=np.random.default_rng(0))
    assert names == ["test_reactions", "test_paths", "test_larger"]
    assert not SamplingPlan().is_larger(hydrogen_cyanide)


def test_whole_path_of_a_reaction_comes_first_and_in_order() -> None:
    (reaction,) = (each for each in elementary_reactions() if each.name == "malonaldehyde hydrogen transfer")
    plan = SamplingPlan(frames_per_held_out_reaction=2, whole_paths=True)
    found = sample_reaction(reaction, plan, TbliteOracle())
    groups = [structure.group for structure in found.structures]
    assert groups == [f"path: {reaction.name}"] * BANDS.images + [f"reaction: {reaction.name}"] * 2
    path = [TbliteOracle().label(structure) for structure in found.structures[: BANDS.images]]
    energies = np.array([structure.energy for structure in path])
    assert energies.argmax() not in (0, BANDS.images - 1)
    assert energies[0] == pytest.approx(energies[-1], abs=0.02)  # the hydrogen goes to an equal place


def test_labelling_drops_what_cannot_be_used_and_counts_it() -> None:
    water = Structure(np.array([8, 1, 1], np.uint8), molecule("H2O").positions)
    squeezed, collapsed = replace(water, positions=water.positions * 0.5), replace(water, positions=np.zeros((3, 3)))
    result = label_structures([water, squeezed, collapsed], 30.0, TbliteOracle())
    assert len(result.structures) == 1
    assert result.record["dropped"] == {"unlabelled": 1, "force too large": 1}


def test_unit_is_done_once_and_read_back(tmp_path: Path) -> None:
    calls = []

    def work() -> UnitResult:
        calls.append(1)
        labelled = Spring(3.0).label(Structure(H2, AT_REST * 1.1, group="h2"))
        return UnitResult([labelled, labelled], {"note": "ä"})

    path = tmp_path / "unit.npz"
    finish_unit(path, work)
    finish_unit(path, work)
    result = read_unit(path)
    assert len(calls) == 1
    assert result.record == {"note": "ä"}
    assert [s.group for s in result.structures] == ["h2", "h2"]
    assert result.structures[1].energy == pytest.approx(0.5 * 3.0 * 0.075**2)
    np.testing.assert_allclose(result.structures[1].forces[0], [0, 0, 3.0 * 0.075])


@pytest.mark.parametrize("error", [SamplingError, OracleError])
def test_failed_unit_is_a_result_with_its_reason(tmp_path: Path, error: type[ValueError]) -> None:
    def work() -> UnitResult:
        raise error("two maxima")

    finish_unit(tmp_path / "unit.npz", work)
    result = read_unit(tmp_path / "unit.npz")
    assert (result.structures, result.record) == ([], {"failed": "two maxima"})


def test_failing_task_and_no_workers_are_errors() -> None:
    with pytest.raises(ValueError, match="workers must be at least 1, but is 0"):
        run_tasks("sampling", [partial(print)], 0)
    with pytest.raises(ValueError, match="invalid literal for int"):
        run_tasks("sampling", [partial(int, "no number")], 1)


def test_an_interruption_ends_tasks_that_have_long_to_go() -> None:
    """A real Ctrl-C: the signal goes to the whole process group, workers included."""
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # in a job it may be ignored
        "from functools import partial; import time; from huefield.make_data.pool import run_tasks\n"
        "def say(progress): print(progress.done, flush=True)\n"
        "if __name__ == '__main__': run_tasks('naps', [partial(time.sleep, s) for s in (0, 300, 300, 300)], 1, say)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"0\n", b"1\n"]
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) != 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_workers_end_soon_after_their_parent_is_killed() -> None:
    """They would write units into the folder of the next run."""
    program = (
        "from functools import partial; import os, time; from huefield.make_data.pool import run_tasks\n"
        "def nap(): print(os.getpid(), flush=True); time.sleep(300)\n"
        "if __name__ == '__main__': run_tasks('naps', [partial(nap)], 1)"
    )
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "naps.py"
        script.write_text(program)
        with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            worker = int(process.stdout.readline())
            process.kill()
    deadline = time.monotonic() + 30.0
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(worker)


def _runs(process: int) -> bool:
    """Whether a process exists and is not a zombie."""
    status = Path(f"/proc/{process}/status")
    try:
        return "State:\tZ" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_plan_scales_and_names_what_it_does_not_know() -> None:
    plan = SamplingPlan(modes_per_molecule=40, hot_per_molecule=0).scaled(0.01)
    assert (plan.modes_per_molecule, plan.hot_per_molecule, plan.hot_k) == (1, 0, SamplingPlan().hot_k)
    assert SamplingPlan(dynamics_per_molecule=2, hot_per_molecule=3).dynamics_runs() == [(500, 2), (1500, 2), (2000, 1)]
    assert plan.dynamics_runs() == [(500, 1)]  # at least one where there were some, none where there were none
    with pytest.raises(ValueError, match="unknown molecule 'phlogiston'; known are methane, ammonia"):
        SamplingPlan(molecules=("phlogiston",)).chosen_molecules()
    with pytest.raises(ValueError, match="unknown reaction 'alchemy'; known are hydrogen cyanide to isocyanide"):
        SamplingPlan(reactions=("alchemy",)).chosen_reactions()


def test_bad_requests_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scale must be positive, but is 0"):
        make(tmp_path, scale=0.0)
    with pytest.raises(ValueError, match="unknown level of theory"):
        make(tmp_path, level_of_theory="hf")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made")
    seen: list[MakeProgress] = []
    make(out, seed=3, plan=SMALL, workers=2, report=seen.append)
    assert (seen[0].stage, seen[-1].stage, seen[-1].done) == ("sampling", "labelling", seen[-1].total)
    assert [progress.done for progress in seen if progress.stage == "sampling"] == [0, 1, 2, 3, 4]
    return out


def test_made_data_are_labelled_split_and_documented(made: Path) -> None:
    data = read_splits(made / "data.npz")
    assert data.provenance == json.loads((made / "provenance.json").read_text())
    assert data.provenance["counts"] == {name: len(block) for name, block in data.blocks.items()}
    dropped = sum(data.provenance["dropped"].values()) - data.provenance["dropped"]["in pieces"]
    sampled = sum(unit["sampled"] for unit in data.provenance["units"].values())
    assert sum(data.provenance["counts"].values()) == sampled - dropped
    assert set(data.blocks["test_reactions"].groups) == {"reaction: malonaldehyde hydrogen transfer"}
    assert all(group.endswith(("1500 K", "2000 K")) for group in data.blocks["test_hot"].groups)
    assert data.provenance["command"] == "huefield data make OUT --level-of-theory 'gfn2-xtb' --seed 3 --scale 1"
    assert data.provenance["versions"]["ase"]
    assert data.atom_energies[8] == TbliteOracle().atom_energy(8)
    one = data.blocks["train"][0]
    again = TbliteOracle().label(one)
    assert again.energy == pytest.approx(one.energy, abs=1e-9)
    np.testing.assert_allclose(one.forces, again.forces, rtol=1e-6, atol=1e-7)


def test_interrupted_job_goes_on_to_the_same_data(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(made, out)
    (out / "work" / "samples" / "molecule_water.npz").unlink()
    (out / "work" / "labels" / "000000.npz").unlink()
    (out / "data.npz").unlink()
    kept = out / "work" / "samples" / "reaction_ammonia_inversion.npz"
    before = kept.stat().st_mtime_ns
    seen: list[MakeProgress] = []
    make(out, seed=3, plan=SMALL, workers=1, report=seen.append)
    assert (seen[0].done, seen[0].resumed, seen[0].total, seen[1].done) == (3, 3, 4, 4)
    assert seen[1].seconds_left == 0
    assert (out / "data.npz").read_bytes() == (made / "data.npz").read_bytes()
    assert kept.stat().st_mtime_ns == before


def test_folder_of_another_request_is_refused(made: Path) -> None:
    with pytest.raises(ValueError, match=r"work holds units of another request .* start anew with --no-resume"):
        make(made, seed=4, plan=SMALL)


def test_starting_anew_forgets_finished_units_and_dft_labels_the_same_way(tmp_path: Path) -> None:
    pytest.importorskip("pyscf")
    none = {"reactions": (), "dynamics_per_molecule": 0, "hot_per_molecule": 0}
    plan = SamplingPlan(molecules=("water",), modes_per_molecule=1, **none)
    (tmp_path / "work" / "samples").mkdir(parents=True)
    (tmp_path / "work" / "samples" / "molecule_water.npz").write_bytes(b"half a file")
    data = make(tmp_path, level_of_theory="wb97x/6-31g(d)", plan=plan, resume=False)
    energies = np.concatenate([block.energy for block in data.blocks.values()])
    assert data.provenance["labels"]["program"] == "pyscf"
    assert data.atom_energies[1] == pytest.approx(-13.5872, abs=1e-3)
    np.testing.assert_allclose(energies, -2078.5, atol=1.0)  # water at its minimum: −2078.6 eV


def test_command_prints_counts_and_what_was_left_out(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huefield.make_data as package
    from huefield.cli.make_data import make as command

    data = read_splits(made / "data.npz")
    data.provenance["units"]["reaction: x"] = {"failed": "two maxima"}

    def pretend(out: Path, **options: object) -> object:
        assert options.pop("report") is not None
        assert options.pop("plan") == SamplingPlan(max_heavy_atoms=3, fewer_above=2, whole_paths=True)
        assert options == {"seed": 1, "level_of_theory": "gfn2-xtb", "workers": 2, "scale": 0.5, "resume": False}
        return data

    monkeypatch.setattr(package, "make", pretend)
    command(made, seed=1, workers=2, scale=0.5, resume=False, max_heavy_atoms=3, fewer_above=2, whole_paths=True)
    printed = capsys.readouterr()
    assert f"train: {len(data.blocks['train'])} structures" in printed.out
    assert "left out reaction: x: two maxima" in printed.err
