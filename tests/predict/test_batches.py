"""Predictions in batches are those of single structures, whether structures come as a part or block by block."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write

from huefield.core import Labels
from huefield.core.structure import Block
from huefield.data.batches.batching import BatchShape, make_batch
from huefield.data.dataset import Part, open_part
from huefield.data.readers.base import BadFrameError, Fault
from huefield.model.calibration import ScaleCalibration
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import EnergyForcesCalibration
from huefield.potentials import MLPPotential
from huefield.predict import predict_blocks, predict_part
from huefield.predict.batches import CHUNK_ATOMS, CHUNK_STRUCTURES, chunks_of
from tests.evaluation.synthetic import waters as synthetic_waters
from tests.training.helpers import POTENTIAL, write_waters

BLOCK = 500
CALIBRATION = EnergyForcesCalibration(energy=ScaleCalibration(factor=4.0), forces=ScaleCalibration(factor=9.0))
ATOMS = {1: -1.5, 8: -1000.25}


def ensemble_for(noise: str, elements: tuple[str, ...] = ("H", "O")) -> Ensemble:
    config = ForceField.Config.model_validate(
        {"potential": {**POTENTIAL, "elements": elements}, "noise": {"kind": noise}}
    )
    return Ensemble.build(config, 2, key=jax.random.key(0)).with_atom_energies(ATOMS)


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Part:
    return open_part("waters", [write_waters(tmp_path_factory.mktemp("data") / "waters.xyz", 70)])


@pytest.fixture(scope="module")
def colored() -> Ensemble:
    return ensemble_for("colored")


def whole(part: Part) -> Block:
    return part.block(np.arange(len(part)))


def test_each_structure_gets_what_the_model_says_of_it_alone(colored: Ensemble, part: Part) -> None:
    """More structures than a batch holds, in another order than batches have them."""
    told: list[tuple[int, int]] = []
    found = predict_part(colored, part, "mine", lambda done, total: told.append((done, total)))
    assert (told[-1], found.name, len(found)) == ((70, 70), "mine", 70)
    for index in (0, 33, 69):
        batch = make_batch(whole(part).block(np.array([index])), 3.0, [BatchShape(1, 8, 4)])
        expected, atoms = colored.predict(batch.graph), slice(3 * index, 3 * index + 3)
        assert found.energy.mean[index] == pytest.approx(expected.energy[0], abs=1e-5)
        assert found.energy.variance[index] == pytest.approx(float(expected.energy_uncertainty[0]) ** 2, rel=1e-4)
        np.testing.assert_allclose(found.forces.mean[atoms], expected.forces[:3], atol=1e-5)
        for name in ("aleatoric", "epistemic"):
            deviation = np.asarray(getattr(expected, f"forces_uncertainty_{name}"))[:3]
            np.testing.assert_allclose(getattr(found.forces, f"{name}_var")[atoms], deviation**2, rtol=1e-3, atol=1e-9)
        labels = batch.labels
        shifted = Labels(
            labels.energy - (2 * ATOMS[1] + ATOMS[8]), labels.forces, labels.energy_mask, labels.forces_mask
        )
        nll = -expected.distribution.log_prob(shifted)[0]
        assert found.joint_nll[index] == pytest.approx(float(nll), rel=1e-3)


def test_calibrated_models_come_with_what_they_were_before(colored: Ensemble, part: Part) -> None:
    before = predict_part(colored, part, "mine", members=True)
    after = predict_part(colored.with_calibration(CALIBRATION), part, "mine", members=True)
    assert before.uncalibrated() is None
    np.testing.assert_allclose(after.forces.variance, 9 * before.forces.variance, rtol=1e-5)
    np.testing.assert_allclose(after.energy.epistemic_var, 4 * before.energy.epistemic_var, rtol=1e-5)
    np.testing.assert_allclose(after.energy.members.var(0), after.energy.epistemic_var, rtol=1e-3, atol=1e-12)
    for found in (after.uncalibrated(), before.calibrated(CALIBRATION).uncalibrated()):
        for quantity in ("energy", "forces"):
            ours, theirs = getattr(found, quantity), getattr(before, quantity)
            np.testing.assert_allclose(ours.variance, theirs.variance, rtol=1e-5)
            np.testing.assert_allclose(ours.members, theirs.members, atol=1e-5)
            assert ours.factors is None
        assert found.joint_nll is None
    by_arrays = before.calibrated(CALIBRATION)
    np.testing.assert_allclose(by_arrays.forces.aleatoric_var, after.forces.aleatoric_var, rtol=1e-5)
    np.testing.assert_allclose(by_arrays.forces.members, after.forces.members, atol=1e-5)


def test_without_noise_there_is_no_joint_density(part: Part) -> None:
    assert predict_part(ensemble_for("vanilla"), part, "mine").joint_nll is None


def test_what_vanishes_by_symmetry_has_no_variance(tmp_path: Path) -> None:
    """Across the axis of a linear molecule members differ by rounding, and agree by symmetry."""
    linear = Atoms("OHH", [[0, 0, 0], [0.9, 0.4, 0.2], [-0.9, -0.4, -0.2]])
    write_labelled(tmp_path / "linear.xyz", linear)
    flat = Atoms("OHH", [[0, 0, 0], [0.9, 0, 0], [-1.1, 0, 0]])
    write_labelled(tmp_path / "axis.xyz", flat)
    vanilla = ensemble_for("vanilla")
    found = predict_part(vanilla, open_part("axis", [tmp_path / "axis.xyz"]), "mine")
    assert (found.forces.variance[:, 0] > 0).all()
    assert (found.forces.variance[:, 1:] == 0).all()
    tilted = predict_part(vanilla, open_part("linear", [tmp_path / "linear.xyz"]), "mine")
    assert (tilted.forces.variance[1:] > 0).all()


def write_labelled(path: Path, atoms: Atoms) -> None:
    atoms.calc = SinglePointCalculator(atoms, energy=0.0, forces=np.zeros((len(atoms), 3)))
    write(path, atoms, format="extxyz")


def test_missing_labels_leave_the_joint_density_open(colored: Ensemble, part: Part) -> None:
    block = whole(part)
    without = replace(block, has_energy=np.arange(70) % 2 == 0)
    found = predict_part(colored, Part("half", without, np.arange(70)), "mine")
    assert np.isfinite(found.joint_nll).tolist() == without.has_energy.tolist()
    assert len(found.observed_energies().mean) == 35


def test_strange_elements_are_left_out_and_counted(colored: Ensemble, tmp_path: Path) -> None:
    frames = read(write_waters(tmp_path / "waters.xyz", 12), ":")
    for frame in frames[:5]:
        frame.numbers[0] = 16
    write(tmp_path / "mixed.xyz", frames)
    found = predict_part(colored, open_part("mixed", [tmp_path / "mixed.xyz"]), "mine")
    assert found.left_out == {"contain S, but the model was trained for H, O only": 5}
    assert found.structures.frames.tolist() == list(range(5, 12))
    write(tmp_path / "all.xyz", frames[:5])
    with pytest.raises(ValueError, match="every structure contains S, but the model was trained for H, O only"):
        predict_part(colored, open_part("all", [tmp_path / "all.xyz"]), "mine")


def test_predictions_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    """Sulphur has energies beyond single precision here; the others are not harmed."""
    frames = read(write_waters(tmp_path / "waters.xyz", 12), ":")
    for frame in frames[:2]:
        frame.numbers[0] = 16
    write(tmp_path / "mixed.xyz", frames)
    built = ensemble_for("colored", ("H", "O", "S")).with_atom_energies({**ATOMS, 16: 0.0})
    scale = lambda e: e.members.potential.scale_ev  # noqa: E731
    wild = eqx.tree_at(scale, built, scale(built).at[:, 2].set(3e38))
    found = predict_part(wild, open_part("mixed", [tmp_path / "mixed.xyz"]), "mine")
    assert found.left_out == {"have predictions that are NaN or infinite": 2}
    assert found.structures.frames.tolist() == list(range(2, 12))
    assert len(found.forces.mean) == 30


def test_a_potential_that_is_not_of_atoms_is_refused(part: Part) -> None:
    config = ForceField.Config.model_validate({"potential": {"kind": "mlp"}, "noise": {"kind": "vanilla"}})
    assert isinstance(config.potential, MLPPotential.Config)
    toy = Ensemble.build(config, 1, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"MLPPotential.*cannot predict molecules"):
        predict_part(toy, part, "toy")


def blocks(count: int, taken: list[int]) -> Iterator[Block]:
    for number in range(count):
        taken.append(number)
        block = synthetic_waters(BLOCK, seed=number)
        yield replace(block, frames=block.frames + number * BLOCK)


def test_blocks_are_taken_as_they_are_needed(colored: Ensemble) -> None:
    """Of a source without an end; what was predicted is that of the whole, in its order."""
    taken: list[int] = []
    told: list[int] = []
    found = predict_blocks(colored, blocks(10**9, taken), "mine", report=told.append)
    first, second = next(found), next(found)
    found.close()  # type: ignore[attr-defined]
    per_chunk = -(-CHUNK_STRUCTURES // BLOCK)
    assert len(taken) <= 5 * per_chunk
    assert (len(first), len(second), told[-1]) == (per_chunk * BLOCK,) * 2 + (2 * per_chunk * BLOCK,)
    assert second.structures.frames.tolist() == list(range(per_chunk * BLOCK, 2 * per_chunk * BLOCK))
    some = first.structures.block(np.arange(100, 140))
    expected = predict_part(colored, Part("some", some, np.arange(40)), "mine")
    np.testing.assert_allclose(first.energy.mean[100:140], expected.energy.mean, atol=1e-4)
    np.testing.assert_allclose(first.forces.mean[300:420], expected.forces.mean, atol=1e-5)
    np.testing.assert_allclose(first.forces.epistemic_var[300:420], expected.forces.epistemic_var, rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(first.joint_nll[100:140], expected.joint_nll, rtol=1e-4)


def strange(block: Block, *indices: int) -> Block:
    numbers = block.atomic_numbers.copy()
    numbers[block.starts[list(indices)]] = 16
    return replace(block, atomic_numbers=numbers)


def test_unknown_elements_are_told_or_refused(colored: Ensemble) -> None:
    given = strange(synthetic_waters(600), 3, 7)
    with pytest.raises(
        BadFrameError, match="synthetic, frame 3: it contains S, but the model was trained for H, O only"
    ):
        list(predict_blocks(colored, [given]))
    told: list[Fault] = []
    (found,) = predict_blocks(colored, [given, strange(synthetic_waters(1), 0)], on_fault=told.append)
    assert [fault.frame for fault in told] == [3, 7, 0]
    assert found.structures.frames.tolist() == [n for n in range(600) if n not in (3, 7)]


def test_chunks_are_the_same_structures() -> None:
    given = [synthetic_waters(10), synthetic_waters(3 * CHUNK_STRUCTURES, seed=1), synthetic_waters(30_000, seed=2)]
    found = list(chunks_of(given))
    for name in ("positions", "energy", "frames"):
        expected = np.concatenate([getattr(block, name) for block in given])
        np.testing.assert_array_equal(np.concatenate([getattr(block, name) for block in found]), expected)
    assert max(block.sizes.sum() for block in found) <= 2 * CHUNK_ATOMS
    assert min(map(len, found[:-1])) >= CHUNK_STRUCTURES
