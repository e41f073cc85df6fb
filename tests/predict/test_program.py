"""One structure, batches, files and the calculator give the same numbers by the same rules."""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError

from huefield import Calculator
from huefield.core.structure import Structure, pack
from huefield.data.batches.batching import make_batch
from huefield.model.calibration import ScaleCalibration
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import EnergyForcesCalibration
from huefield.predict import predict_blocks
from huefield.predict.evaluator import Evaluator
from tests.potentials.cases import CUTOFF, LOCAL, crystal, molecule, randomised
from tests.training.helpers import POTENTIAL

ISOLATED = {1: -13.6, 6: -1029.0, 7: -1485.0, 8: -2041.0}
CALIBRATION = EnergyForcesCalibration(energy=ScaleCalibration(factor=4.0), forces=ScaleCalibration(factor=0.25))


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    potential = {**POTENTIAL, "elements": ["H", "C", "N", "O"], "cutoff_angstrom": CUTOFF}
    config = ForceField.Config.model_validate({"potential": potential, "noise": LOCAL})
    made = randomised(Ensemble.build(config, 3, key=jax.random.key(0)))
    return made.with_atom_energies(ISOLATED).with_calibration(CALIBRATION)


@pytest.mark.parametrize("structure", [molecule(7), crystal()], ids=["molecule", "crystal"])
def test_one_structure_is_a_batch_of_one(ensemble: Ensemble, structure: Structure) -> None:
    stress = bool(structure.pbc.any())
    alone = Evaluator(ensemble).marginals(structure, stress=stress)
    block = pack([structure], np.arange(1), "one")
    (batched,) = predict_blocks(ensemble, [block], stress=stress, members=True)
    whole = ensemble.predict(make_batch([structure], CUTOFF, ()).graph, stress=stress)
    for quantity in ("energy", "forces", "stress")[: 2 + stress]:
        one, other = getattr(alone, quantity), getattr(batched, quantity)
        for name in ("mean", "variance", "aleatoric_var", "epistemic_var", "members", "factors"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=2e-3, atol=2e-5, err_msg=name)
        rows = slice(len(one.mean))
        np.testing.assert_allclose(one.mean, np.asarray(getattr(whole, quantity))[rows], atol=2e-5)
        np.testing.assert_allclose(
            one.members, np.asarray(getattr(whole, f"{quantity}_ensemble"))[:, rows], atol=2e-5, rtol=1e-4
        )
        deviation = np.asarray(getattr(whole, f"{quantity}_uncertainty"))[rows]
        np.testing.assert_allclose(one.deviation, deviation, atol=2e-5, rtol=1e-3)


def boxed() -> Structure:
    """A molecule in a box without periodic directions, as many files have it."""
    return replace(molecule(4), cell=20.0 * np.eye(3))


def slab() -> Structure:
    return replace(crystal(), pbc=np.array([True, True, False]))


@pytest.mark.parametrize(
    ("make", "expected"), [(crystal, True), (slab, True), (boxed, False), (molecule, False)], ids=lambda x: str(x)[:20]
)
def test_one_rule_says_which_structures_have_a_stress(
    ensemble: Ensemble, make: Callable[[], Structure], expected: bool
) -> None:
    structure = make()
    (found,) = predict_blocks(ensemble, [pack([structure, crystal()], np.arange(2), "two")], stress=True)
    assert np.isfinite(found.stress.mean).all((1, 2)).tolist() == [expected, True]
    graph = make_batch([structure], CUTOFF, ()).graph
    atoms = Atoms(structure.atomic_numbers, structure.positions, cell=structure.cell, pbc=structure.pbc)
    calc = Calculator(ensemble)
    if expected:
        np.testing.assert_allclose(ensemble.predict(graph, stress=True).stress[0], found.stress.mean[0], atol=1e-5)
        assert np.isfinite(calc.get_stress(atoms)).all()
        return
    with pytest.raises(ValueError, match="structure 0 has no periodic cell and so no stress: predict without stress"):
        ensemble.predict(graph, stress=True)
    with pytest.raises(PropertyNotImplementedError, match="without a periodic cell"):
        calc.get_stress(atoms)


def test_energies_of_many_atoms_are_summed_in_double_precision(ensemble: Ensemble) -> None:
    """In single precision the sum of 7 eV over a thousand atoms is wrong by a tenth of a meV and more."""
    shifted = eqx.tree_at(lambda e: e.members.potential.shift_ev, ensemble, replace_fn=lambda shift: shift - 7.3)
    rng = np.random.default_rng(0)
    grid = 1.5 * np.stack(np.meshgrid(*[np.arange(10)] * 3), -1).reshape(-1, 3) + 0.1 * rng.normal(size=(1000, 3))
    structure = Structure(rng.choice([1, 6, 7, 8], 1000).astype(np.uint8), grid)
    graph = make_batch([structure], CUTOFF, ()).graph
    of_atoms = eqx.filter_jit(eqx.filter_vmap(lambda member, graph: member.potential(graph).energy, in_axes=(0, None)))
    members = np.asarray(of_atoms(shifted.members, graph), float)[:, :1000].sum(1)
    isolated = sum(ISOLATED[int(z)] for z in structure.atomic_numbers)
    expected = members.mean() + isolated
    atoms = Atoms(structure.atomic_numbers, structure.positions)
    calc = Calculator(shifted, warn_above=None)
    (batched,) = predict_blocks(shifted, [pack([structure], np.arange(1), "one")])
    found = {
        "predict": shifted.predict(graph).energy[0],
        "batch": batched.energy.mean[0],
        "mean": calc.get_potential_energy(atoms),
        "uncertainty": Calculator(shifted, uncertainty="always", warn_above=None).get_potential_energy(atoms),
        "distribution": calc.distribution(atoms).energy,
        "covariance": calc.energy_covariance([atoms]).energy[0],
    }
    single = float(shifted.predict(graph).distribution.mean.energy[0]) + isolated
    assert abs(single - expected) > 2e-5
    assert {name: abs(energy - expected) < 1e-5 for name, energy in found.items()} == dict.fromkeys(found, True)
    spread = np.sqrt(CALIBRATION.energy.factor) * (members - members.mean())
    ensemble_energies = calc.get_property("energy_ensemble", atoms)
    np.testing.assert_allclose(ensemble_energies, expected + spread, atol=1e-5)
