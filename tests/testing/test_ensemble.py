"""The kit for ensembles accepts those that are size-consistent and coherent, and finds those that are not."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms

from huefield.baselines import BaselineRecord, TbliteBaseline
from huefield.core import Structure
from huefield.model.calibration import IsotonicCalibration, ScaleCalibration
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import CoherentCalibration, EnergyForcesCalibration, Tails
from huefield.noise import ColoredNoise, LocalNoise, NoiseConfig
from huefield.noise.novelty import Novelty
from huefield.testing import check_ensemble
from huefield.testing.probes import graph_of
from tests.potentials.cases import CONFIG, randomised

BENT = np.array([[0.0, 0.0, 0.0], [0.97, 0.1, 0.0], [-0.3, 0.9, 0.2]])
MOLECULES = [Structure(np.array(numbers, np.uint8), BENT) for numbers in ([8, 1, 1], [6, 7, 1])]
"""Of equal sizes, so that they share compiled programs."""
COHERENT = CoherentCalibration(
    noise=0.3, energy_diagonal=2.0, force_diagonal=5.0, spread=9.0, tails=Tails(energy=4.0, forces=3.0, joint=5.0)
)


def ensemble(noise: NoiseConfig) -> Ensemble:
    """Untrained, with two members of random weights."""
    with jax.enable_x64(True):
        config = ForceField.Config(potential=CONFIG, noise=noise)
        return randomised(Ensemble.build(config, 2, key=jax.random.key(0)))


@pytest.fixture(scope="module")
def local() -> Ensemble:
    return ensemble(LocalNoise.Config())


def test_local_noise_passes(local: Ensemble) -> None:
    check_ensemble(local, MOLECULES)


def test_the_correction_of_a_baseline_is_checked(local: Ensemble) -> None:
    """With structures of ASE."""
    record = BaselineRecord(config=TbliteBaseline.Config(), version="", probes=())
    check_ensemble(local.with_baseline(record), [Atoms("OHH", BENT)])


def test_a_coherent_calibration_passes(local: Ensemble) -> None:
    check_ensemble(local.with_calibration(COHERENT), MOLECULES)


def test_noise_that_grows_with_the_distance_to_training_data_passes(local: Ensemble) -> None:
    """Far from the data, where it has grown a hundredfold."""
    grown = grown_up(local)
    check_ensemble(grown.with_calibration(COHERENT), MOLECULES)
    with jax.enable_x64(True):
        graph = graph_of(MOLECULES, CONFIG.cutoff_angstrom)
        before, after = (np.asarray(each(graph).aleatoric_variance().energy)[:2] for each in (local, grown))
    assert np.all(after > 1e4 * before)


def grown_up(ensemble: Ensemble) -> Ensemble:
    """The ensemble with training data unlike the molecules."""
    rng = np.random.default_rng(0)
    numbers = np.repeat([1, 6, 7, 8], 40)
    with jax.enable_x64(True):
        data = [(rng.normal(size=(160, CONFIG.features)), rng.normal(size=(160, CONFIG.features))) for _ in range(2)]
        members = [Novelty.fitted(numbers, train, numbers, 0.02 * valid + train) for train, valid in data]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    return replace(ensemble, members=replace(ensemble.members, novelty=stacked))


def test_noise_that_vanishes_as_structures_grow_is_found() -> None:
    with pytest.raises(AssertionError, match=r"σ of forces with \d+ distant copies|σ of the energy of \d+ distant"):
        check_ensemble(ensemble(ColoredNoise.Config()), MOLECULES[:1])


def test_a_calibration_of_energies_and_forces_apart_is_found(local: Ensemble) -> None:
    """Two copies have another factor than one, since the factor of an energy depends on its variance."""
    curve = IsotonicCalibration(variances=(0.1, 10.0, 1e3), calibrated=(0.3, 5.0, 2e3), outside="ratio")
    apart = EnergyForcesCalibration(energy=curve, forces=ScaleCalibration(factor=2.0))
    with pytest.raises(AssertionError, match=r"σ of the energy of \d+ distant copies is .* times that of one"):
        check_ensemble(local.with_calibration(apart), MOLECULES[:1])
