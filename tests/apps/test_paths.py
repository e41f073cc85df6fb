"""Reaction paths whose barriers have error bars."""

import json
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


def test_it_stops_when_asked(calculator: Calculator) -> None:
    with pytest.raises(PathStoppedError, match="stopped in step 0 of the band"):
        find_path(calculator, *ends(), QUICK, should_stop=lambda: True)


def test_ends_that_do_not_fit(calculator: Calculator) -> None:
    first, last = ends()
    with pytest.raises(ValueError, match="same atoms in the same order"):
        find_path(calculator, first, last[::-1])
    last.pbc = True
    with pytest.raises(ValueError, match="in the same cell"):
        find_path(calculator, first, last)


def test_the_command(tmp_path: Path) -> None:
    save(ensemble(), tmp_path / "model.safetensors")
    for name, atoms in zip(("reactant", "product"), ends(), strict=True):
        write(tmp_path / f"{name}.xyz", atoms)
    arguments = ["neb", *(str(tmp_path / name) for name in ("model.safetensors", "reactant.xyz", "product.xyz"))]
    options = ["--images", "4", "--fmax", "0.02", "--no-relax-ends", "--out", str(tmp_path / "out")]
    run = CliRunner().invoke(app, [*arguments, *options])
    assert run.exit_code == 0, run.output
    assert "reaction energy" in run.output
    assert "the barrier is between" in run.output
    short = CliRunner().invoke(app, [*arguments, *options, "--steps", "1", "--fmax", "1e-6"])
    assert short.exit_code == 1
    assert "did not converge" in short.output
