"""Reaction paths whose barriers have error bars."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import all_changes
from ase.constraints import FixAtoms
from ase.io import read, write
from ase.mep import NEB
from matplotlib.figure import Figure
from scipy import stats
from typer.testing import CliRunner

from huefield import Calculator, save
from huefield.ase.neb import PathConfig, PathReport, PathStoppedError, ReactionPath, find_path, save_path
from huefield.ase.neb.ends import require_different
from huefield.ase.neb.profile import draw_profile
from huefield.cli.main import app
from huefield.model.calibration import ONE_SIGMA, ConformalCalibration
from huefield.model.differences import EnergyCovariance
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import CoherentCalibration, EnergyForcesCalibration, Tails
from huefield.support.files import FolderInUseError, alone_in
from tests.pictures import require_readable
from tests.potentials.cases import LOCAL, molecule, randomised
from tests.training.helpers import POTENTIAL
from tests.training.jobs import ROOT, until

QUICK = PathConfig(images=4, fmax_ev_per_angstrom=0.02, relax_ends=False)


def ensemble() -> Ensemble:
    potential = {**POTENTIAL, "elements": ["H", "C", "N", "O"]}
    config = ForceField.Config.model_validate({"potential": potential, "noise": LOCAL})
    return randomised(Ensemble.build(config, 2, key=jax.random.key(0))).with_atom_energies(
        {1: -1.0, 6: -10.0, 7: -20.0, 8: -30.0}
    )


@pytest.fixture(scope="module")
def calculator() -> Calculator:
    return Calculator(ensemble())


def ends() -> tuple[Atoms, Atoms]:
    structure = molecule()
    first = Atoms(structure.atomic_numbers, structure.positions)
    last = first.copy()
    last.positions[-1] += [0.09, 0.12, 0.06]
    last.rotate(30, "z")
    return first, last


@pytest.fixture(scope="module")
def found(calculator: Calculator) -> ReactionPath:
    return find_path(calculator, *ends(), QUICK)


class Transfer(Calculator):
    """A hydrogen between two oxygens, with a Morse potential to each of them and a spring between these."""

    noise_grows = False

    def __init__(self) -> None:
        AseCalculator.__init__(self)
        self._told_of_ignored, self._told_of_size, self.count = False, True, [0]

    def calculate(self, atoms=None, properties=("energy",), system_changes=tuple(all_changes)) -> None:
        AseCalculator.calculate(self, atoms, properties, system_changes)
        self.tell_of_limits(self.atoms)
        self.count[0] += 1
        energy, forces = 0.0, np.zeros((3, 3))
        for i, j in ((0, 1), (1, 2), (0, 2)):
            vector = self.atoms.positions[j] - self.atoms.positions[i]
            length = float(np.linalg.norm(vector))
            fall = np.exp(-2.2 * (length - 0.97))
            value, slope = 4.5 * (1 - fall) ** 2, 9.9 * 2 * (1 - fall) * fall
            if (i, j) == (0, 2):
                value, slope = 10 * (length - 3.0) ** 2, 20 * (length - 3.0)
            energy += value
            forces[i] += slope * vector / length
            forces[j] -= slope * vector / length
        self.results = {"energy": energy, "free_energy": energy, "forces": forces}

    def check_state(self, atoms: Atoms, tol: float = 0.0) -> list[str]:
        return super().check_state(atoms, tol)  # as strict as can be

    def require_sense(self, atoms: Atoms) -> None:
        """Anything is fine."""

    def sibling(self) -> "Transfer":
        made = Transfer()
        made._told_of_ignored, made.count = self._told_of_ignored, self.count
        return made

    def energy_covariance(self, images: Sequence[Atoms], *, match: bool = True) -> EnergyCovariance:
        energies = np.array([image.get_potential_energy() for image in images])
        return EnergyCovariance(energies, 0.01 * np.eye(len(images)), np.zeros((len(images),) * 2), energies[None])


def oxygens(hydrogen: float, angle: float = 0.0) -> Atoms:
    atoms = Atoms("OHO", [[0, 0, 0], [hydrogen, 0.02, 0], [3.0, 0, 0]])
    atoms.rotate(angle, "z")
    return atoms


def test_one_image_that_climbs() -> None:
    settings = PathConfig(images=3, fmax_ev_per_angstrom=0.02)
    found = find_path(Transfer(), oxygens(0.97), oxygens(2.03, 40), settings)
    assert found.converged
    assert found.top == 1
    _, hydrogen, _ = found.images[1].positions
    apart = [np.linalg.norm(hydrogen - found.images[1].positions[oxygen]) for oxygen in (0, 2)]
    assert apart[0] == pytest.approx(apart[1], abs=1e-3)
    largest = np.linalg.norm(found.images[1].get_forces(), axis=1).max()
    assert found.fmax == pytest.approx(largest, rel=1e-6), "at the saddle all forces count"
    assert found.fmax < 0.02


def test_images_are_computed_once_a_step() -> None:
    calculator, counts = Transfer(), list[int]()

    def report(told: PathReport) -> None:
        if told.what.endswith("band"):
            counts.append(calculator.count[0])

    settings = PathConfig(images=5, fmax_ev_per_angstrom=0.01)
    find_path(calculator, oxygens(0.97), oxygens(2.03, 40), settings, report=report)
    assert len(counts) > 5
    assert max(np.diff(counts)) <= 4, "all images but the first"


def test_the_best_band_is_kept_without_convergence() -> None:
    reports: list[PathReport] = []
    settings = PathConfig(images=7, fmax_ev_per_angstrom=1e-3, steps=30, spring_ev_per_angstrom2=30.0, relax_ends=False)
    found = find_path(Transfer(), oxygens(0.97), oxygens(2.03), settings, report=reports.append)
    climbing = [report.fmax for report in reports if report.what == "climbing band"]
    assert climbing[-1] > 1.02 * min(climbing), "the last one is not the best"
    assert not found.converged
    assert found.fmax == min(climbing)


def test_linear_molecules_are_not_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    turned: list[bool] = []

    class Noting(NEB):
        def __init__(self, *given: object, **options: object) -> None:
            turned.append(bool(options["remove_rotation_and_translation"]))
            super().__init__(*given, **options)

    monkeypatch.setattr("huefield.ase.neb.search.NEB", Noting)
    settings = PathConfig(images=3, relax_ends=False, steps=1)
    bent = oxygens(2.03)
    bent.positions[1, 1] = 0.6
    find_path(Transfer(), bent, oxygens(0.97), settings)
    bent_too = oxygens(0.97)
    bent_too.positions[1, 1] = 0.6
    find_path(Transfer(), bent, bent_too, settings)
    assert turned == [False, True]


def test_fixed_atoms_stay_in_place() -> None:
    first, last = oxygens(0.97), oxygens(2.03, 10)
    first.set_constraint(FixAtoms([0]))
    found = find_path(Transfer(), first, last, PathConfig(images=5, relax_ends=False))
    for image in found.images:
        np.testing.assert_array_equal(image.positions[0], first.positions[0])
    np.testing.assert_array_equal(found.images[0].positions, first.positions)
    np.testing.assert_array_equal(found.images[-1].positions, last.positions)
    last.positions[0, 0] += 0.2
    with pytest.raises(ValueError, match="fixed atoms must have the same positions in reactant and product"):
        find_path(Transfer(), first, last)


def test_equal_ends_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"reactant and product are the same structure \(.* Å apart in configuration space\)"
    ):
        find_path(Transfer(), oxygens(0.97), oxygens(0.97, 30))
    with pytest.raises(ValueError, match="reactant and product relax to the same structure"):
        find_path(Transfer(), oxygens(0.97), oxygens(1.1))


def test_a_path_may_lead_to_the_mirror_image() -> None:
    pyramid = Atoms("NH3", [[0, 0, 0.12], [0, 0.94, -0.27], [0.81, -0.47, -0.27], [-0.81, -0.47, -0.27]])
    inverted = pyramid.copy()
    inverted.positions[:, 2] *= -1
    require_different(pyramid, inverted, "are")
    with pytest.raises(ValueError, match="the same structure"):
        require_different(pyramid, pyramid, "are")


def test_ends_that_do_not_relax() -> None:
    with pytest.raises(
        ValueError, match="the reactant did not relax in 1 steps: increase --steps, or give a better start"
    ):
        find_path(Transfer(), oxygens(1.1), oxygens(2.03), PathConfig(steps=1))


def test_a_charge_is_warned_of_once() -> None:
    first, last = oxygens(0.97), oxygens(2.03)
    for atoms in (first, last):
        atoms.info["charge"] = 1
        atoms.set_initial_charges([0, 1, 0])
    with pytest.warns(UserWarning, match="a charge, which models do not take as input") as told:
        find_path(Transfer(), first, last, PathConfig(images=3, steps=1, relax_ends=False))
    assert len(told) == 1


def test_the_range_of_a_barrier_is_as_wide_as_intervals_of_differences() -> None:
    widths = ConformalCalibration(coverages=(0.68, ONE_SIGMA, 0.95), widths=(0.9, 1.0, 4.0))
    calibration = EnergyForcesCalibration(differences=widths)
    energies, nothing = np.array([0.0, 5.0, 1.0]), np.zeros((3, 3))
    found = ReactionPath(
        (),
        EnergyCovariance(energies, 0.01 * np.eye(3), nothing, energies[None], calibration),
        True,
        0.0,
        noise_grows=True,
    )
    for share in (0.68, 0.95):
        low, high = found.barrier_range(share)
        assert 0.5 * (high - low) == pytest.approx(found.barrier.half_width(share), rel=0.05)


@pytest.mark.parametrize("dof", [None, 3.0])
def test_the_range_of_a_barrier_has_the_tails_of_energies(dof: float | None) -> None:
    """With one possible top it is the interval of the difference, at every share."""
    energies, nothing = np.array([0.0, 5.0, 1.0]), np.zeros((3, 3))
    calibration = CoherentCalibration(tails=Tails(energy=dof))
    covariance = EnergyCovariance(energies, 0.01 * np.eye(3), nothing, energies[None], calibration)
    found = ReactionPath((), covariance, True, 0.0, noise_grows=True)
    for share, normal in ((0.5, 0.6745), (0.68, 0.9945), (0.99, 2.5758)):
        width = stats.t.ppf(0.5 + 0.5 * share, dof) / np.sqrt(3.0) if dof else normal
        low, high = found.barrier_range(share, draws=40_000)
        assert 0.5 * (high - low) == pytest.approx(width * np.sqrt(0.02), rel=0.05)
        assert 0.5 * (low + high) == pytest.approx(5.0, abs=0.02)


def test_profiles_have_the_covariance_of_energies() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    energies, calibration = rng.normal(size=3), CoherentCalibration(tails=Tails(energy=8.0))
    found = EnergyCovariance(energies, root @ root.T, np.zeros((3, 3)), energies[None], calibration)
    drawn = found.profiles(100_000, coverage=0.68, seed=1)
    np.testing.assert_allclose(np.cov(drawn.T), root @ root.T, atol=0.05 * np.trace(root @ root.T))
    np.testing.assert_allclose(drawn.mean(0), energies - energies[0], atol=0.02)


def test_forces_across_a_converged_path_vanish(found: ReactionPath) -> None:
    assert found.converged
    assert 0 < found.fmax < 0.02
    energies = [image.get_potential_energy() for image in found.images]
    np.testing.assert_allclose(found.energies.energy, energies, atol=1e-5)


def test_differences_are_those_of_the_covariance(found: ReactionPath) -> None:
    top, last = found.top, len(found.images) - 1
    assert found.barrier == found.energies.difference(0, top)
    assert found.reverse_barrier.value == pytest.approx(found.barrier.value - found.reaction_energy.value)
    assert found.reaction_energy.uncertainty == pytest.approx(found.energies.relative_to(0)[last])


def test_the_range_of_the_barrier_counts_every_image(found: ReactionPath) -> None:
    low, high = found.barrier_range(0.95)
    assert low < high
    assert high > found.barrier.value
    narrow = found.barrier_range(0.5)
    assert low <= narrow[0] < narrow[1] < high


def test_saved_files_are_complete(found: ReactionPath, tmp_path: Path) -> None:
    files = save_path(found, tmp_path / "out")
    assert [file.name for file in files] == ["path.xyz", "path.json", "profile.png", "profile.pdf"]
    assert all(file.stat().st_size > 500 for file in files)
    images = read(tmp_path / "out" / "path.xyz", ":")
    assert len(images) == 4
    uncertainties = [image.info["energy_uncertainty"] for image in images]
    np.testing.assert_allclose(uncertainties, found.energies.uncertainty, rtol=1e-3)
    assert images[0].arrays["forces_uncertainty"].shape == (6, 3)
    result = json.loads((tmp_path / "out" / "path.json").read_text())
    assert result["barrier_ev"]["uncertainty"] == found.barrier.uncertainty
    assert np.array(result["covariance_epistemic_ev2"]).shape == (4, 4)


def test_the_figure_shows_the_profile(found: ReactionPath) -> None:
    """However large errors would be, were they independent."""
    common = 1e4 * np.ones((len(found.images),) * 2)
    energies = replace(found.energies, aleatoric=found.energies.aleatoric + common)
    figure = Figure(layout="constrained")
    ax = figure.subplots()
    draw_profile(ax, replace(found, energies=energies))
    require_readable(figure)
    low, high = ax.get_ylim()
    assert high - low < 2 * np.ptp(found.energies.energy) + 10 * found.energies.relative_to(0).max()
    assert not ax.texts


def test_a_search_starts_from_an_earlier_path(calculator: Calculator, found: ReactionPath) -> None:
    steps: list[PathReport] = []
    again = find_path(calculator, *ends(), QUICK, through=found.images, report=steps.append)
    assert again.converged
    assert len(steps) <= 4
    assert again.barrier.value == pytest.approx(found.barrier.value, abs=1e-3)


def test_a_stopped_band_is_kept_and_resumed(calculator: Calculator) -> None:
    kept: list[list[np.ndarray]] = []
    steps: list[PathReport] = []

    def keep(band: Sequence[Atoms]) -> None:
        kept.append([image.positions.copy() for image in band])

    def stopping(count: int) -> Callable[[], bool]:
        return lambda: len(steps) > count

    exact = QUICK.model_copy(update={"fmax_ev_per_angstrom": 1e-9, "climb": False})
    with pytest.raises(PathStoppedError, match="stopped in step 23 of the band") as stopped:
        find_path(calculator, *ends(), exact, keep=keep, report=steps.append, should_stop=stopping(23))
    assert stopped.value.kept
    assert len(kept) == 3, "in steps 0, 20 and 23"
    assert all(np.abs(a[1] - b[1]).max() > 1e-4 for a, b in pairwise(kept))
    band = [Atoms(ends()[0].numbers, positions) for positions in kept[-1]]
    last = steps[-1]
    steps.clear()
    with pytest.raises(PathStoppedError, match="stopped in step 0 of the band"):
        find_path(calculator, *ends(), exact, through=band, report=steps.append, should_stop=stopping(0))
    assert steps[0].fmax == pytest.approx(last.fmax, rel=1e-3)


def test_there_is_no_band_while_ends_relax(calculator: Calculator) -> None:
    kept: list[object] = []
    relaxing = QUICK.model_copy(update={"relax_ends": True})
    with pytest.raises(PathStoppedError, match="stopped in step 0 of the reactant") as stopped:
        find_path(calculator, *ends(), relaxing, keep=kept.append, should_stop=lambda: True)
    assert not stopped.value.kept
    assert not kept


def test_ends_that_do_not_match_are_refused(calculator: Calculator) -> None:
    first, last = ends()
    with pytest.raises(ValueError, match="same atoms in the same order"):
        find_path(calculator, first, last[::-1])
    with pytest.raises(ValueError, match="at least three images, but the initial path has 2"):
        find_path(calculator, first, last, through=[first, last])
    with pytest.raises(ValueError, match=r"^image 1 of the initial path: reactant .* and it .* same order"):
        find_path(calculator, first, last, through=[first, last[::-1], last])
    broken = last.copy()
    broken.positions[1] = np.nan
    with pytest.raises(ValueError, match=r"^product: positions of .*1 are NaN"):
        find_path(calculator, first, broken)
    last.pbc = True
    with pytest.raises(ValueError, match="in the same cell"):
        find_path(calculator, first, last)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of the command: a model and both ends."""
    folder = tmp_path_factory.mktemp("inputs")
    save(ensemble(), folder / "model.safetensors")
    for name, atoms in zip(("reactant", "product"), ends(), strict=True):
        write(folder / f"{name}.xyz", atoms)
    return ["neb", *(str(folder / name) for name in ("model.safetensors", "reactant.xyz", "product.xyz"))]


OPTIONS = ["--images", "4", "--fmax", "0.02", "--no-relax-ends"]


def test_the_command(arguments: list[str], tmp_path: Path) -> None:
    options = [*OPTIONS, "--out", str(tmp_path / "out")]
    run = CliRunner().invoke(app, [*arguments, *options])
    assert run.exit_code == 0, run.output
    assert "reaction energy" in run.output
    assert "the barrier is between" in run.output
    assert not (tmp_path / "out" / "band.xyz").exists()
    with pytest.raises(ValueError, match=rf"has path\.xyz, path\.json .* --start-from {tmp_path / 'out' / 'path.xyz'}"):
        CliRunner().invoke(app, [*arguments, *options], catch_exceptions=False)
    with alone_in(tmp_path / "out"), pytest.raises(FolderInUseError, match="another process is at work"):
        CliRunner().invoke(app, [*arguments, *options, "--overwrite"], catch_exceptions=False)
    short = CliRunner().invoke(app, [*arguments, *options, "--steps", "1", "--fmax", "1e-6", "--overwrite"])
    assert short.exit_code == 1
    assert "did not converge" in short.output
    assert f"--start-from {tmp_path / 'out' / 'path.xyz'}" in short.output


@pytest.mark.slow
def test_a_terminated_process_leaves_its_band(arguments: list[str], tmp_path: Path) -> None:
    band, log = tmp_path / "out" / "band.xyz", tmp_path / "log"
    endless = ["--fmax", "1e-9", "--steps", "1000000", "--no-climb", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "huefield", *arguments, *OPTIONS, *endless]
    with log.open("wb") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        until(lambda: band.exists() or child.poll() is not None, 120)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 130, log.read_text()
    finally:
        child.kill()
    assert f" of the band: resume with --start-from {band}" in log.read_text()
    assert {path.name for path in band.parent.iterdir()} == {"band.xyz", ".lock"}
    with pytest.raises(ValueError, match=rf"resume from it with --start-from {band}, choose another --out"):
        CliRunner().invoke(app, [*arguments, *OPTIONS, "--out", str(tmp_path / "out")], catch_exceptions=False)
    images = read(band, ":")
    assert len(images) == 4
    assert images[1].calc is None
    going_on = ["--start-from", str(band), "--images", "9", "--out", str(tmp_path / "out")]
    run = CliRunner().invoke(app, [*arguments, *OPTIONS, *going_on])
    assert run.exit_code == 0, run.output
    assert f"note: --images 9 has no effect: {band} has 4" in run.output
    assert len(read(tmp_path / "out" / "path.xyz", ":")) == 4
    assert not band.exists()


def test_a_stop_while_ends_relax_leaves_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def asked(when: str) -> Iterator[Callable[[], bool]]:
        yield lambda: True

    monkeypatch.setattr("huefield.cli.signals.stopping_politely", asked)
    run = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert run.exit_code == 130
    assert "stopped in step 0 of the reactant: no band yet, nothing was written" in run.output
    assert not (tmp_path / "out").exists()


def test_bad_input_is_refused(arguments: list[str], tmp_path: Path) -> None:
    def refused(message: str, *given: str, error: type[Exception] = ValueError) -> None:
        with pytest.raises(error, match=message):
            CliRunner().invoke(app, ["neb", *given, "--out", str(tmp_path / "out")], catch_exceptions=False)
        assert not (tmp_path / "out").exists()

    _, model, reactant, product = arguments
    good = Path(product).read_text()
    for name, content in {"broken.xyz": good[: len(good) // 2], "empty.xyz": ""}.items():
        (tmp_path / name).write_text(content)
    broken, empty, missing = (str(tmp_path / name) for name in ("broken.xyz", "empty.xyz", "missing.xyz"))
    refused(r"broken\.xyz, frame 0: the file is truncated.*correct the file", model, broken, product)
    refused(r"empty\.xyz has no structure", model, reactant, empty)
    refused(r"there is no file .*missing\.xyz", model, missing, product, error=FileNotFoundError)
    refused(r"broken\.xyz, frame 0: the file is truncated", model, reactant, product, "--start-from", broken)
    refused(r"empty\.xyz has no structure", model, reactant, product, "--start-from", empty)
    refused(r"there is no file", model, reactant, product, "--start-from", missing, error=FileNotFoundError)
    refused(r"at least three images", model, reactant, product, "--start-from", product)
    chlorine, close = ends()
    chlorine.numbers[1] = 17
    close.positions[1] = close.positions[0] + 0.01
    for name, atoms in {"chlorine.xyz": chlorine, "close.xyz": close}.items():
        write(tmp_path / name, atoms)
    refused(r"^reactant \(.*chlorine\.xyz\): the structure contains Cl", model, str(tmp_path / "chlorine.xyz"), product)
    refused(r"^product \(.*close\.xyz\): atoms 0 and 1 are", model, reactant, str(tmp_path / "close.xyz"))
    refused(r"there is no model file .*missing", missing, reactant, product, error=FileNotFoundError)
    refused(r"^--spring: Input should be greater than 0", model, reactant, product, "--spring", "0")
    refused(r"^--fmax: Input should be greater than 0 \(got -1\.0\)$", model, reactant, product, "--fmax", "-1")
    refused(r"^--fmax: Input should be a finite number", model, reactant, product, "--fmax", "inf")
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(NotADirectoryError, match="is a file, but a folder is needed"):
        CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "taken")], catch_exceptions=False)
