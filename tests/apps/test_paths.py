"""Reaction paths whose barriers have error bars."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest
from ase import Atoms
from ase.io import read, write
from typer.testing import CliRunner

from huefield import Calculator, save
from huefield.apps.cli.main import app
from huefield.apps.paths import PathConfig, PathReport, PathStoppedError, ReactionPath, find_path, save_path
from huefield.forcefield import Ensemble, ForceField
from tests.potentials.painn_cases import NOISE, molecule, randomised
from tests.training.helpers import POTENTIAL
from tests.training.jobs import ROOT, until

QUICK = PathConfig(images=4, fmax_ev_per_angstrom=0.02, relax_ends=False)


def ensemble() -> Ensemble:
    potential = {**POTENTIAL, "elements": ["H", "C", "N", "O"]}
    config = ForceField.Config.model_validate({"potential": potential, "noise": NOISE.model_dump()})
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


def test_files_have_it_all(found: ReactionPath, tmp_path: Path) -> None:
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


def test_a_path_goes_on_from_one_of_before(calculator: Calculator, found: ReactionPath) -> None:
    steps: list[PathReport] = []
    again = find_path(calculator, *ends(), QUICK, through=found.images, report=steps.append)
    assert again.converged
    assert len(steps) <= 4
    assert again.barrier.value == pytest.approx(found.barrier.value, abs=1e-3)


def test_a_band_that_stops_is_kept_and_gone_on_with(calculator: Calculator) -> None:
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


def test_ends_that_do_not_fit(calculator: Calculator) -> None:
    first, last = ends()
    with pytest.raises(ValueError, match="same atoms in the same order"):
        find_path(calculator, first, last[::-1])
    with pytest.raises(ValueError, match="three images at least, but that to begin with has 2"):
        find_path(calculator, first, last, through=[first, last])
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
    short = CliRunner().invoke(app, [*arguments, *options, "--steps", "1", "--fmax", "1e-6"])
    assert short.exit_code == 1
    assert "did not converge" in short.output
    assert f"--start-from {tmp_path / 'out' / 'path.xyz'}" in short.output


def test_a_process_that_is_ended_leaves_its_band(arguments: list[str], tmp_path: Path) -> None:
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
    assert f" of the band: go on with --start-from {band}" in log.read_text()
    assert [path.name for path in band.parent.iterdir()] == ["band.xyz"]
    images = read(band, ":")
    assert len(images) == 4
    assert images[1].calc is None
    going_on = ["--start-from", str(band), "--images", "9", "--out", str(tmp_path / "out")]
    run = CliRunner().invoke(app, [*arguments, *OPTIONS, *going_on])
    assert run.exit_code == 0, run.output
    assert len(read(tmp_path / "out" / "path.xyz", ":")) == 4
    assert not band.exists()


def test_a_stop_while_ends_relax_leaves_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def asked(when: str) -> Iterator[Callable[[], bool]]:
        yield lambda: True

    monkeypatch.setattr("huefield.apps.cli.progress.stopping_politely", asked)
    run = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert run.exit_code == 130
    assert "stopped in step 0 of the reactant: no band yet, nothing was written" in run.output
    assert not (tmp_path / "out").exists()


def test_bad_input_is_refused_in_words(arguments: list[str], tmp_path: Path) -> None:
    def refused(message: str, *given: str, error: type[Exception] = ValueError) -> None:
        with pytest.raises(error, match=message):
            CliRunner().invoke(app, ["neb", *given, "--out", str(tmp_path / "out")], catch_exceptions=False)
        assert not (tmp_path / "out").exists()

    _, model, reactant, product = arguments
    good = Path(product).read_text()
    for name, content in {"broken.xyz": good[: len(good) // 2], "empty.xyz": ""}.items():
        (tmp_path / name).write_text(content)
    broken, empty, missing = (str(tmp_path / name) for name in ("broken.xyz", "empty.xyz", "missing.xyz"))
    refused(r"broken\.xyz, frame 0: the file is truncated.*mend the file", model, broken, product)
    refused(r"empty\.xyz has no structure", model, reactant, empty)
    refused(r"there is no file .*missing\.xyz", model, missing, product, error=FileNotFoundError)
    refused(r"broken\.xyz, frame 0: the file is truncated", model, reactant, product, "--start-from", broken)
    refused(r"empty\.xyz has no structure", model, reactant, product, "--start-from", empty)
    refused(r"there is no file", model, reactant, product, "--start-from", missing, error=FileNotFoundError)
    refused(r"three images at least", model, reactant, product, "--start-from", product)
    refused(r"^--fmax: Input should be greater than 0 \(got -1\.0\)$", model, reactant, product, "--fmax", "-1")
    refused(r"^--fmax: Input should be a finite number", model, reactant, product, "--fmax", "inf")
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(NotADirectoryError, match="is a file, but should be a folder"):
        CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "taken")], catch_exceptions=False)
