"""Energies of several structures and the covariance of their errors."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from huefield.core.structure import Precision, Structure
from huefield.data.batches.batching import Batch, make_batch
from huefield.model.calibration import ONE_SIGMA, ConformalCalibration, ScaleCalibration
from huefield.model.differences import EnergyCovariance
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import CoherentCalibration, EnergyForcesCalibration
from huefield.support.errors import NoPredictionError
from tests.potentials.cases import molecule, randomised
from tests.training.helpers import POTENTIAL

pytestmark = pytest.mark.usefixtures("x64")


def ensemble(noise: dict[str, object]) -> Ensemble:
    config = ForceField.Config.model_validate(
        {"potential": {**POTENTIAL, "elements": ["H", "C", "N", "O"]}, "noise": noise}
    )
    with jax.enable_x64(True):
        made = Ensemble.build(config, 3, key=jax.random.key(0))
        return randomised(made).with_atom_energies({1: -1.0, 6: -10.0, 7: -20.0, 8: -30.0})


@pytest.fixture(scope="module")
def colored() -> Ensemble:
    return ensemble({"kind": "colored", "gamma": "atom"})


def path(count: int = 5) -> list[Structure]:
    start = molecule()
    step = 0.1 * np.random.default_rng(3).normal(size=start.positions.shape)
    return [replace(start, positions=start.positions + index * step) for index in range(count)]


def test_energies_and_their_variances_are_those_of_predictions(colored: Ensemble) -> None:
    found = colored.energy_covariance(path())
    predicted = colored.predict(make_batch(path(), 3.0, ()).graph)
    np.testing.assert_allclose(found.energy, predicted.energy[:5], rtol=1e-12)
    np.testing.assert_allclose(found.uncertainty, predicted.energy_uncertainty[:5], rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(np.diag(found.epistemic)), predicted.energy_uncertainty_epistemic[:5], rtol=1e-6)
    np.testing.assert_allclose(found.members, predicted.energy_ensemble[:, :5], rtol=1e-12)


@pytest.mark.parametrize("precise", ["float32", "float64"])
def test_the_covariance_is_positive_semidefinite(colored: Ensemble, precise: Precision) -> None:
    with jax.enable_x64(precise == "float64"):
        found = colored.in_precision(precise).energy_covariance(path(40))
    assert len(found) == 40
    for part in (found.total, found.aleatoric, found.epistemic):
        np.testing.assert_allclose(part, part.T, rtol=1e-12)
        assert np.linalg.eigvalsh(part).min() > -1e-12 * np.trace(part)


def test_the_noise_of_one_member_is_the_kernel_of_the_paper() -> None:
    whole = ensemble({"kind": "colored", "gamma": "global"})
    one = Ensemble.from_members([whole.member(1)])
    found, structures = one.energy_covariance(path(), match=False), path()
    assert np.abs(found.epistemic).max() == 0
    levels = found.uncertainty
    gamma = float(one.members.noise.gamma.gamma[0, 0])
    closest = [np.linalg.norm(found_distance) for found_distance in _superposed_steps(structures)]
    expected = levels[0] * levels[1:] * np.exp(-0.5 * gamma * np.square(closest))
    np.testing.assert_allclose(found.aleatoric[0, 1:], expected, rtol=1e-3)


def _superposed_steps(structures: list[Structure]) -> list[np.ndarray]:
    from ase import Atoms
    from ase.build import minimize_rotation_and_translation

    steps = []
    for other in structures[1:]:
        first, second = (Atoms(s.atomic_numbers, s.positions) for s in (structures[0], other))
        minimize_rotation_and_translation(first, second)
        steps.append(second.positions - first.positions)
    return steps


COPIES = {
    "itself": lambda r: r,
    "rotated": lambda r: r[:, [1, 2, 0]] + 4.0,
    "mirror image": lambda r: r * [1, 1, -1] - 2.0,
    "exchanged mirror image": lambda r: r[[0, 3, 2, 1, 4, 5]] * [1, -1, 1],
}
NOISES: dict[str, dict[str, object]] = {
    "vanilla": {"kind": "vanilla"},
    "white": {"kind": "white"},
    "colored": {"kind": "colored", "gamma": "global"},
    "atom": {"kind": "colored", "gamma": "atom"},
    "force": {"kind": "colored", "gamma": "force"},
    "local": {"kind": "local"},
    "local white": {"kind": "local_white"},
}


@pytest.mark.parametrize("noise", NOISES)
def test_copies_of_a_structure_differ_by_nothing(noise: str) -> None:
    model, structure = ensemble(NOISES[noise]), molecule()
    assert len(set(structure.atomic_numbers[[1, 3]])) == 1
    copies = [replace(structure, positions=change(structure.positions)) for change in COPIES.values()]
    with_all = model.energy_covariance([path()[3], structure, *copies])
    for index, copy in enumerate(copies):
        for found in (model.energy_difference(structure, copy), with_all.difference(1, 2 + index)):
            assert abs(found.value) < 1e-9
            assert max(found.uncertainty_aleatoric, found.uncertainty_epistemic) < 1e-6
            assert found.uncertainty_if_independent > 0.01
            assert str(found) == "0.000 ± 0.000 eV"
    for part in (with_all.total, with_all.aleatoric):
        assert np.linalg.eigvalsh(part).min() >= -1e-12 * np.trace(part)


def test_copies_differ_by_nothing_that_shows_in_single_precision() -> None:
    with jax.enable_x64(False):
        model = ensemble(NOISES["white"]).in_precision("float32")
        image = replace(molecule(), positions=COPIES["mirror image"](molecule().positions))
        found = model.energy_difference(molecule(), image)
    assert str(found) == "0.000 ± 0.000 eV"


def test_the_difference_is_that_of_the_covariance(colored: Ensemble) -> None:
    a, b = path()[0], path()[4]
    found, both = colored.energy_difference(a, b), colored.energy_covariance([a, b])
    assert found.value == pytest.approx(both.energy[1] - both.energy[0])
    assert found.uncertainty**2 == pytest.approx(np.array([-1, 1]) @ both.total @ [-1, 1])
    assert found.uncertainty == pytest.approx(np.hypot(found.uncertainty_aleatoric, found.uncertainty_epistemic))
    assert found.uncertainty_epistemic == pytest.approx(np.std(both.members[:, 1] - both.members[:, 0]))
    np.testing.assert_allclose(both.relative_to(0), [0.0, found.uncertainty], rtol=1e-9)


def test_white_noise_is_independent_for_structures_that_are_no_copies() -> None:
    found = ensemble({"kind": "white"}).energy_covariance(path(3))
    assert (np.diag(found.aleatoric) > 0).all()
    assert np.abs(found.aleatoric - np.diag(np.diag(found.aleatoric))).max() == 0
    assert np.abs(ensemble({"kind": "vanilla"}).energy_covariance(path(3)).aleatoric).max() == 0


def test_calibration_scales_all_of_it(colored: Ensemble) -> None:
    calibration = EnergyForcesCalibration(energy=ScaleCalibration(factor=4.0), forces=ScaleCalibration(factor=9.0))
    before, after = (each.energy_covariance(path(3)) for each in (colored, colored.with_calibration(calibration)))
    np.testing.assert_allclose(after.total, 4.0 * before.total, rtol=1e-6)
    np.testing.assert_allclose(after.energy, before.energy)
    np.testing.assert_allclose(np.var(after.members, axis=0), 4.0 * np.var(before.members, axis=0), rtol=1e-6)


def test_a_coherent_calibration_scales_each_part(colored: Ensemble) -> None:
    calibration = CoherentCalibration(noise=4.0, spread=9.0)
    before, after = (each.energy_covariance(path(3)) for each in (colored, colored.with_calibration(calibration)))
    np.testing.assert_allclose(after.aleatoric, 4.0 * before.aleatoric, rtol=1e-9)
    np.testing.assert_allclose(after.epistemic, 9.0 * before.epistemic, rtol=1e-9)
    np.testing.assert_allclose(np.var(after.members, axis=0), np.diag(after.epistemic), rtol=1e-9)
    np.testing.assert_allclose(after.energy, before.energy)


def test_members_that_agree_on_a_difference_still_agree_after_a_coherent_calibration(colored: Ensemble) -> None:
    """They disagree on energies by constants. A curve for variances of energies would bring the noise in between."""
    calibration = CoherentCalibration(noise=4.0, spread=9.0)
    terms = colored.with_calibration(calibration).energy_terms(path(3))
    found = replace(terms, members=terms.members[:1] + np.array([[0.0], [0.1], [0.3]])).covariance()
    assert np.sqrt(np.diag(found.epistemic)) == pytest.approx(3 * np.std([0.0, 0.1, 0.3]), rel=1e-9)
    assert found.difference(0, 2).uncertainty_epistemic < 1e-7
    assert found.difference(0, 2).uncertainty_aleatoric > 1e-3


def test_other_atoms_have_no_common_error(colored: Ensemble) -> None:
    other = replace(molecule(), atomic_numbers=np.full(6, 6, np.uint8))
    with pytest.raises(ValueError, match="not made of the same atoms"):
        colored.energy_difference(molecule(), other)
    with pytest.raises(ValueError, match="no structures"):
        colored.energy_covariance([])


def test_many_structures_of_any_atoms_are_predicted_together(colored: Ensemble) -> None:
    structures = [molecule(atoms, seed) for seed in range(9) for atoms in (3, 4, 5, 6)]
    terms = colored.energy_terms(structures)
    alone = colored.energy_covariance([structures[35], structures[35]])
    found = terms.covariance([35, 35])
    assert isinstance(found, EnergyCovariance)
    np.testing.assert_allclose(found.total, alone.total, rtol=1e-8)


def test_many_structures_have_few_shapes(colored: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, told = set(), []

    def recorded(*given: Any) -> Batch:
        made = make_batch(*given)
        shapes.add((made.graph.positions.shape, made.graph.neighbours.num_slots, made.structure_mask.shape))
        return made

    monkeypatch.setattr("huefield.model.ensemble.make_batch", recorded)
    sizes = np.random.default_rng(0).integers(2, 7, 600).tolist()
    colored.energy_terms([molecule(atoms, seed) for seed, atoms in enumerate(sizes)], lambda *given: told.append(given))
    assert len(shapes) <= 2
    assert [total for _, total in told] == [600] * len(told)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert (len(told), told[-1]) == (3, (600, 600))


def test_what_is_no_number_is_named(colored: Ensemble) -> None:
    broken = jax.tree.map(lambda leaf: leaf * np.nan if eqx.is_inexact_array(leaf) else leaf, colored)
    with pytest.raises(
        NoPredictionError, match="prediction of structure 0 of 2 is NaN or infinite: the structure is far from"
    ):
        broken.energy_difference(*path(2))


def test_differences_have_a_calibration_of_their_own(colored: Ensemble) -> None:
    shares, widths = (0.5, ONE_SIGMA, 0.95), (0.5, 2.0, 6.0)
    calibration = EnergyForcesCalibration(differences=ConformalCalibration(coverages=shares, widths=widths))
    before, after = (each.energy_covariance(path(3)) for each in (colored, colored.with_calibration(calibration)))
    np.testing.assert_allclose(after.total, before.total)
    np.testing.assert_allclose(after.of_differences(), 4.0 * before.total)
    np.testing.assert_allclose(after.of_differences(0.95), (6.0 / 1.959964) ** 2 * before.total, rtol=1e-6)
    np.testing.assert_allclose(after.relative_to(1), 2.0 * before.relative_to(1))
    raw, wide = before.difference(0, 2), after.difference(0, 2)
    assert wide.uncertainty == pytest.approx(2.0 * raw.uncertainty)
    assert wide.half_width(0.95) == pytest.approx(6.0 * raw.uncertainty)
    assert raw.half_width(0.95) == pytest.approx(1.959964 * raw.uncertainty)
    assert wide.as_dict()["half_width_95"] == wide.half_width(0.95)
