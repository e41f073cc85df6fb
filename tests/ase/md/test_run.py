"""Runs of molecular dynamics: what they keep, where they end, and that going on with them changes nothing."""

import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from ase import Atoms, units
from ase.build import bulk
from ase.io import read

from huefield.ase.calculator import Calculator
from huefield.ase.md import MDConfig, MDProgress, MDResult
from huefield.ase.md import run_md as run_and_draw
from huefield.ase.md.dynamics import Dynamics
from huefield.ase.md.figure import read_log
from huefield.ase.md.folder import CHECKPOINT, FORMAT
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.support.errors import HuefieldError
from huefield.support.files import FolderInUseError, alone_in
from huefield.support.tensorfile import checked_metadata, format_file, tensors_in
from tests.training.helpers import POTENTIAL, waters

FILES = ("trajectory.xyz", "log.csv", "uncertain.xyz", "checkpoint.safetensors")
PARTS = ("", "_aleatoric", "_epistemic")


@cache
def ensemble(*, noise: str = "vanilla", elements: tuple[str, ...] = ("H", "O"), members: int = 2) -> Ensemble:
    """Smooth and weak, as it is not trained."""
    config = ForceField.Config.model_validate(
        {"potential": {**POTENTIAL, "elements": elements}, "noise": {"kind": noise}}
    )
    return Ensemble.build(config, members, key=jax.random.key(0))


@pytest.fixture(scope="module")
def calculator() -> Calculator:
    return Calculator(ensemble(), precision="float64")


@pytest.fixture
def water() -> Atoms:
    return waters(1)[0]


def config(**changes: Any) -> MDConfig:
    given = {"steps": 40, "temperature_kelvin": 300.0, "every": 5, "uncertainty_every": 5, "checkpoint_every": 10}
    return MDConfig.model_validate({**given, "precision": "float64", **changes})


run_md = partial(run_and_draw, figure=False)


class Killed(BaseException):
    """Comes at any moment, as SIGKILL does."""


def killing_at(step: int) -> Callable[[MDProgress | str], None]:
    def report(event: MDProgress | str) -> None:
        if isinstance(event, MDProgress) and event.step >= step:
            raise Killed

    return report


def levels(folder: Path) -> np.ndarray:
    return read_log(folder / "log.csv")["forces_uncertainty_max"]


def require_same(a: Path, b: Path) -> None:
    for name in FILES:
        found, expected = ((folder / name).read_bytes() if (folder / name).exists() else b"" for folder in (a, b))
        assert found == expected, f"{name} differs"


def interrupted_run(settings: MDConfig, model: Any, start: Atoms, out: Path, kills: tuple[int, ...]) -> MDResult:
    """Killed again and again, each time while it writes a frame, and gone on with."""
    for step in kills:
        with pytest.raises(Killed):
            run_md(settings, model, start, out, report=killing_at(step))
        for name in ("trajectory.xyz", "log.csv"):
            with (out / name).open("a") as file:
                file.write('3\nLattice="1 0')
    return run_md(settings, model, start, out)


def test_total_energy_is_conserved(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    """While potential and kinetic energy change into each other."""
    done = run_md(config(ensemble="nve", steps=200), calculator, water, tmp_path)
    log = read_log(tmp_path / "log.csv")
    assert (done.ended, done.step, done.frames) == ("finished", 200, 41)
    assert np.ptp(log["potential_energy"]) > 5e-3
    assert np.ptp(log["total_energy"]) < 1e-6
    np.testing.assert_allclose(log["total_energy"], log["potential_energy"] + log["kinetic_energy"], rtol=1e-10)
    assert log["step"].tolist() == list(range(0, 201, 5))
    np.testing.assert_allclose(log["time_fs"], 0.5 * log["step"])
    frames = read(tmp_path / "trajectory.xyz", ":")
    momentum = [np.abs(frame.get_momenta().sum(0)).max() for frame in frames]
    turning = [np.abs(frame.get_angular_momentum()).max() for frame in frames]
    assert max(momentum) < 1e-9
    assert max(turning) < 1e-6


def test_frames_contain_the_results_of_the_calculator(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    run_md(config(every=2, uncertainty_every=4, steps=6), calculator, water, tmp_path)
    frames = read(tmp_path / "trajectory.xyz", ":")
    assert [frame.info["step"] for frame in frames] == [0, 2, 4, 6]
    assert [frame.info["time_fs"] for frame in frames] == [0, 1, 2, 3]
    assert ["energy_uncertainty" in frame.info for frame in frames] == [True, False, True, False]
    asked = calculator.sibling()
    frame = frames[2]
    assert frame.get_potential_energy() == pytest.approx(asked.get_property("energy", frame), abs=1e-9)
    np.testing.assert_allclose(frame.get_forces(), asked.get_property("forces", frame), atol=1e-9)
    for part in PARTS:
        assert frame.info[f"energy_uncertainty{part}"] == pytest.approx(
            asked.get_property(f"energy_uncertainty{part}", frame), rel=1e-6
        )
        expected = asked.get_property(f"forces_uncertainty{part}", frame)
        np.testing.assert_allclose(frame.arrays[f"forces_uncertainty{part}"], expected, rtol=1e-5, atol=1e-10)
    log = read_log(tmp_path / "log.csv")
    of_atoms = np.sqrt((asked.get_property("forces_uncertainty_epistemic", frame) ** 2).mean(1))
    assert log["forces_uncertainty_epistemic_max"][2] == pytest.approx(of_atoms.max(), rel=1e-6)
    assert log["forces_uncertainty_epistemic_mean"][2] == pytest.approx(of_atoms.mean(), rel=1e-6)
    assert np.isnan(log["forces_uncertainty_max"]).tolist() == [False, True, False, True]


@pytest.mark.parametrize("kind", ["nve", "nvt"])
def test_kills_change_nothing(calculator: Calculator, water: Atoms, tmp_path: Path, kind: str) -> None:
    settings = config(ensemble=kind, threshold="0.001", on_threshold="save", save_every=7)
    alone = run_md(settings, calculator, water, tmp_path / "alone")
    assert 1 < alone.saved < 7
    done = interrupted_run(settings, calculator, water, tmp_path / "run", (0, 15, 35))
    assert (done.ended, done.frames, done.saved) == ("finished", alone.frames, alone.saved)
    require_same(tmp_path / "run", tmp_path / "alone")


def test_seeds_and_thermostats_matter(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    """Else the test before would prove little."""
    last = []
    for number, changes in enumerate(({}, {"seed": 1}, {"friction_per_fs": 0.1})):
        run_md(config(steps=5, **changes), calculator, water, tmp_path / str(number))
        last.append(read(tmp_path / str(number) / "trajectory.xyz", "-1").get_momenta())
    assert np.abs(last[0] - last[1]).max() > 1e-2
    assert np.abs(last[0] - last[2]).max() > 1e-2


def test_a_finished_run_can_be_extended(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    run_md(config(), calculator, water, tmp_path / "whole")
    told: list[MDProgress | str] = []
    run_md(config(steps=20), calculator, water, tmp_path / "parts")
    run_md(config(), calculator, water, tmp_path / "parts", report=told.append)
    require_same(tmp_path / "parts", tmp_path / "whole")
    assert f"Resuming the run in {tmp_path / 'parts'} at step 20" in told
    steps = [event.step for event in told if isinstance(event, MDProgress)]
    assert steps == [25, 30, 35, 40]
    again = run_md(config(), calculator, water, tmp_path / "parts")
    assert (again.ended, again.step, again.frames) == ("finished", 40, 9)
    require_same(tmp_path / "parts", tmp_path / "whole")
    with pytest.raises(ValueError, match="has already taken 40 steps, more than 20: increase --steps"):
        run_md(config(steps=20), calculator, water, tmp_path / "parts")


def test_a_stopped_run_can_be_resumed(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    run_md(config(), calculator, water, tmp_path / "alone")
    asked = iter([False] * 17 + [True] * 9)
    done = run_and_draw(config(), calculator, water, tmp_path / "run", should_stop=lambda: next(asked))
    assert (done.ended, done.step, done.frames) == ("interrupted", 17, 4)
    assert "repeat the command to resume from the checkpoint at step 10" in done.message
    assert (tmp_path / "run" / "md.png") in done.files
    run_md(config(), calculator, water, tmp_path / "run")
    require_same(tmp_path / "run", tmp_path / "alone")


def test_a_run_stopped_at_its_threshold_resumes_with_a_higher_one(
    calculator: Calculator, water: Atoms, tmp_path: Path
) -> None:
    run_md(config(), calculator, water, tmp_path / "free")
    found = levels(tmp_path / "free")
    threshold = 0.5 * (found[0] + found.max())
    first = 5 * int(np.argmax(found > threshold))
    assert 0 < first < 40
    for _ in range(2):  # the same command stops at the same place
        done = run_md(config(threshold=threshold), calculator, water, tmp_path / "run")
        assert (done.ended, done.step, done.saved) == ("stopped", first, 1)
    assert f"Stopped at step {first}" in done.message
    assert f"{found[first // 5]:.3g} eV/Å, above {threshold:.3g} eV/Å, most of all on " in done.message
    assert "--on-threshold save or a higher --threshold" in done.message
    saved = read(tmp_path / "run" / "uncertain.xyz", ":")
    assert len(saved) == 1
    assert saved[0].info["step"] == first
    worst = np.atleast_1d(saved[0].info["uncertain_atoms"])
    of_atoms = np.sqrt((saved[0].arrays["forces_uncertainty"] ** 2).mean(1))
    assert set(worst.tolist()) == set(np.flatnonzero(of_atoms > threshold).tolist())
    assert saved[0].calc is None, "what a model says is no label"
    done = run_md(config(), calculator, water, tmp_path / "run")
    assert (done.ended, done.saved) == ("finished", 0)
    require_same(tmp_path / "run", tmp_path / "free")


def test_uncertain_structures_are_saved_at_intervals(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    settings = config(threshold=1e-9, on_threshold="save", save_every=15, measure="mean", part="epistemic")
    settings = settings.model_copy(update={"refuse_above": "1"})
    done = run_md(settings, calculator, water, tmp_path)
    saved = [frame.info["step"] for frame in read(tmp_path / "uncertain.xyz", ":")]
    assert saved == [0, 15, 30]
    assert (done.ended, done.saved, done.frames) == ("finished", 3, 9)
    stopping = settings.model_copy(update={"on_threshold": "stop", "save_every": 100, "steps": 60})
    done = run_md(stopping, calculator, water, tmp_path)
    assert (done.ended, done.step, done.saved) == ("stopped", 45, 4), "what stops a run is saved, however soon"
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert (written["measure"], written["part"], written["run"]["limits_ev_per_angstrom"]) == (
        *("mean", "epistemic"),
        {"threshold": 1e-9, "refuse_above": 1.0},
    )


def test_frames_above_the_upper_threshold_are_refused(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    run_md(config(), calculator, water, tmp_path / "free")
    found = levels(tmp_path / "free")
    refuse = 0.5 * (found[0] + found.max())
    first = 5 * int(np.argmax(found > refuse))
    done = run_and_draw(config(refuse_above=refuse), calculator, water, tmp_path / "run")
    assert (done.ended, done.step, done.frames) == ("exploded", first, first // 5)
    assert "uncertainty of forces" in done.message
    assert f"{first // 5} frames before it are in {tmp_path / 'run' / 'trajectory.xyz'}" in done.message
    frames = read(tmp_path / "run" / "trajectory.xyz", ":")
    assert [frame.info["step"] for frame in frames] == list(range(0, first, 5))
    assert len(levels(tmp_path / "run")) == first // 5
    assert (tmp_path / "run" / "md.png") in done.files


def test_explosions_keep_the_frames_before_them(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    """Hydrogens that are shot at oxygen, and away from it."""
    cases = {
        "close": ([[0, 0, 0], [0.9, 0, 0], [-0.9, 0, 0]], 1, "are 0.* Å apart"),
        "far": ([[0, 0, 0], [0, 0.9, 0], [0, 2.0, 0]], 2, "H2 left: no other atom is within the cutoff of 3 Å"),
    }
    for name, (positions, mover, reason) in cases.items():
        atoms = Atoms("OHH", positions)
        velocity = -atoms.positions[mover] if name == "close" else atoms.positions[mover]
        momenta = np.zeros((3, 3))
        momenta[mover] = velocity / np.linalg.norm(velocity)
        atoms.set_momenta(momenta)
        settings = config(ensemble="nve", temperature_kelvin=5000.0, steps=200, every=1)
        done = run_md(settings, calculator, atoms, tmp_path / name)
        assert done.ended == "exploded"
        assert done.frames > 5
        np.testing.assert_array_equal(len(read(tmp_path / name / "trajectory.xyz", ":")), done.frames)
        assert re.search(reason, done.message), done.message


def test_atoms_on_top_of_each_other_are_an_explosion(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    dynamics_step = Dynamics.advance

    def collide(dynamics: Dynamics) -> None:
        dynamics_step(dynamics)
        if dynamics.step == 12:
            dynamics.atoms.positions[1] = dynamics.atoms.positions[0]
            dynamics.atoms.get_forces()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dynamics, "advance", collide)
        done = run_md(config(), calculator, water, tmp_path)
    assert (done.ended, done.step, done.frames) == ("exploded", 12, 3)
    assert "are 0 Å apart" in done.message


def test_a_bug_is_not_an_explosion(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    """An error that says nothing about the structure propagates; all frames before it are kept."""
    dynamics_step = Dynamics.advance

    def fail(dynamics: Dynamics) -> None:
        dynamics_step(dynamics)
        if dynamics.step == 12:
            raise ValueError("operands could not be broadcast together")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dynamics, "advance", fail)
        with pytest.raises(ValueError, match="could not be broadcast"):
            run_md(config(), calculator, water, tmp_path)
    assert [frame.info["step"] for frame in read(tmp_path / "trajectory.xyz", ":")] == [0, 5, 10]
    run_md(config(), calculator, water, tmp_path)
    run_md(config(), calculator, water, tmp_path / "alone")
    require_same(tmp_path, tmp_path / "alone")


def test_a_collapsing_cell_is_an_explosion(tmp_path: Path) -> None:
    crystal = bulk("Cu", "fcc", a=3.6, cubic=True)
    model = Calculator(ensemble(elements=("Cu",)), precision="float64")
    settings = config(ensemble="npt", pressure_bar=1e9, barostat_fs=10.0, uncertainty_every=0, every=1)
    done = run_md(settings, model, crystal, tmp_path)
    assert done.ended == "exploded"
    assert done.frames == len(read(tmp_path / "trajectory.xyz", ":")) > 0


def test_a_heated_run_ends(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    water.set_momenta(3.0 * (water.positions - water.positions[0]))
    done = run_md(config(), calculator, water, tmp_path)
    assert (done.ended, done.step, done.frames) == ("exploded", 0, 0)
    assert "above 5000 K" in done.message
    assert "the start is unphysical" in done.message
    assert "trajectory.xyz" not in done.message  # no frame is written


def test_a_crystal_at_constant_pressure(tmp_path: Path) -> None:
    crystal = bulk("Cu", "fcc", a=3.6)  # a skewed cell
    crystal = crystal.repeat(2)
    crystal.rattle(0.05, seed=1)
    model = Calculator(ensemble(elements=("Cu",)), precision="float64")
    settings = config(ensemble="npt", pressure_bar=-2e4, barostat_fs=100.0, uncertainty_every=0)
    done = run_md(settings, model, crystal, tmp_path / "alone")
    assert done.ended == "finished"
    log = read_log(tmp_path / "alone" / "log.csv")
    assert np.ptp(log["volume_angstrom3"]) > 1.0
    frames = read(tmp_path / "alone" / "trajectory.xyz", ":")
    shape = frames[-1].cell[:] / frames[0].cell[:].max()
    np.testing.assert_allclose(shape / shape.max(), frames[0].cell[:] / frames[0].cell[:].max(), atol=1e-9)
    assert frames[-1].get_volume() == pytest.approx(log["volume_angstrom3"][-1], rel=1e-9)
    stress = frames[-1].get_stress(voigt=False, include_ideal_gas=True)
    assert -stress.trace() / 3 / units.bar == pytest.approx(log["pressure_bar"][-1], rel=1e-6)
    assert log["volume_angstrom3"][-1] > log["volume_angstrom3"][0], "under tension"
    interrupted_run(settings, model, crystal, tmp_path / "run", (15,))
    require_same(tmp_path / "run", tmp_path / "alone")
    looking = settings.model_copy(update={"steps": 5, "uncertainty_every": 5})
    run_md(looking, model, crystal, tmp_path / "uncertain")
    last = read(tmp_path / "uncertain" / "trajectory.xyz", "-1")
    for part in PARTS:
        expected = model.sibling().get_property(f"stress_uncertainty{part}", last)
        np.testing.assert_allclose(last.info[f"stress_uncertainty{part}"], expected, rtol=1e-5, atol=1e-12)


def test_a_folder_is_for_one_run_at_a_time(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    with alone_in(tmp_path), pytest.raises(FolderInUseError, match="another process is at work"):
        run_md(config(steps=10), calculator, water, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_charge_is_warned_of(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    water.info["charge"] = 1
    with pytest.warns(UserWarning, match="a charge, which models do not take as input") as told:
        run_md(config(steps=20), calculator, water, tmp_path)
    assert len(told) == 1


def test_a_folder_with_another_run_is_not_changed(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    run_md(config(steps=10), calculator, water, tmp_path)
    before = (tmp_path / "trajectory.xyz").read_bytes()
    with pytest.raises(ValueError, match=r"seed was 0 and is 3; timestep_fs was 0\.5 and is 1\.0.*--overwrite"):
        run_md(config(steps=10, seed=3, timestep_fs=1.0), calculator, water, tmp_path)
    with pytest.raises(ValueError, match="the start is different"):
        run_md(config(steps=10), calculator, waters(2)[1], tmp_path)
    assert (tmp_path / "trajectory.xyz").read_bytes() == before
    (tmp_path / "trajectory.xyz").write_bytes(before[:-10])
    with pytest.raises(ValueError, match=r"trajectory\.xyz is shorter than at the last checkpoint"):
        run_md(config(steps=20), calculator, water, tmp_path)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="or start again with --overwrite"):
        run_md(config(steps=20), calculator, water, tmp_path)
    (tmp_path / "checkpoint.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has trajectory\.xyz, log\.csv but no checkpoint"):
        run_md(config(steps=10), calculator, water, tmp_path)
    done = run_md(config(steps=10, seed=3), calculator, water, tmp_path, overwrite=True)
    assert done.frames == 3


def test_a_checkpoint_of_an_older_huefield_is_refused(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    run_md(config(steps=10), calculator, water, tmp_path)
    path = tmp_path / CHECKPOINT
    content = path.read_bytes()
    metadata = checked_metadata(path, content, FORMAT, "checkpoint")
    metadata["place"] = metadata.pop("written")
    path.write_bytes(format_file(tensors_in(path, content), metadata, FORMAT))
    with pytest.raises(HuefieldError, match=r"older huefield.*--overwrite"):
        run_md(config(steps=20), calculator, water, tmp_path)


def test_a_calculator_of_another_precision_is_refused(calculator: Calculator, water: Atoms, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has the precision float64, but the run float32"):
        run_md(config(precision="float32"), calculator, water, tmp_path)
