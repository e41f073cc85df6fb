"""The calculator in the hands of ASE."""

import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms, units
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet
from ase.optimize import BFGS
from ase.vibrations import Vibrations

from huefield import Calculator, save
from huefield.ase.results import UNCERTAIN
from huefield.ase.thresholds import UncertaintyWarning
from huefield.core import voigt
from huefield.data.batches.batching import make_batch
from huefield.model.calibration import ScaleCalibration
from huefield.model.ensemble import Ensemble, require_structures
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import EnergyForcesCalibration
from huefield.model.typical import SHARES, PartQuantiles, TypicalUncertainty
from huefield.noise import ColoredNoise
from tests.potentials.cases import CUTOFF, LOCAL, crystal, molecule, randomised
from tests.training.helpers import POTENTIAL

CALIBRATION = EnergyForcesCalibration(energy=ScaleCalibration(factor=4.0), forces=ScaleCalibration(factor=0.25))
ENERGIES = {1: -1.0, 6: -1000.0, 7: -1500.0, 8: -2000.0}


@pytest.fixture(scope="module")
def model() -> Ensemble:
    with jax.enable_x64(True):
        potential = {**POTENTIAL, "elements": ["H", "C", "N", "O"]}
        config = ForceField.Config.model_validate({"potential": potential, "noise": LOCAL})
        made = randomised(Ensemble.build(config, 2, key=jax.random.key(0)))
    return made.with_atom_energies(ENERGIES).with_calibration(CALIBRATION)


@pytest.fixture(scope="module")
def double(model: Ensemble) -> Calculator:
    return Calculator(model, precision="float64")


def chain() -> Atoms:
    structure = molecule()
    return Atoms(structure.atomic_numbers, structure.positions)


def salt(repeats: tuple[int, int, int] = (1, 1, 1)) -> Atoms:
    structure = crystal()
    return Atoms(structure.atomic_numbers, structure.positions, cell=structure.cell, pbc=True) * repeats


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("atoms", [chain(), salt()], ids=["molecule", "crystal"])
def test_results_are_the_predictions_of_the_model(double: Calculator, model: Ensemble, atoms: Atoms) -> None:
    calc = double.sibling()
    structure = molecule() if not atoms.pbc.any() else crystal()
    expected = model.predict(make_batch([structure], CUTOFF, ()).graph, stress=bool(atoms.pbc.any()))
    count, quantities = len(atoms), ("energy", "forces", "stress") if atoms.pbc.any() else ("energy", "forces")
    for quantity in quantities:
        for kind in ("", "_uncertainty", "_uncertainty_aleatoric", "_uncertainty_epistemic"):
            found, wanted = calc.get_property(quantity + kind, atoms), np.asarray(getattr(expected, quantity + kind))
            wanted = {"energy": wanted[0], "forces": wanted[:count], "stress": wanted[0]}[quantity]
            wanted = voigt(jnp.asarray(wanted)) if quantity == "stress" else wanted
            np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-12)
    members = calc.get_property("forces_ensemble", atoms)
    np.testing.assert_allclose(members, np.asarray(expected.forces_ensemble)[:, :count], rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(calc.get_property("energy_ensemble", atoms), expected.energy_ensemble[:, 0], rtol=1e-12)
    assert set(calc.results) <= set(calc.implemented_properties)


def test_forces_and_stress_are_derivatives_as_ase_has_them(double: Calculator) -> None:
    atoms = salt()
    atoms.calc = double.sibling()
    np.testing.assert_allclose(calculate_numerical_forces(atoms, eps=1e-4), atoms.get_forces(), atol=1e-7)
    np.testing.assert_allclose(calculate_numerical_stress(atoms, eps=1e-5), atoms.get_stress(), atol=1e-7)


def test_total_energies_keep_their_digits(model: Ensemble, double: Calculator) -> None:
    atoms = chain()
    single = Calculator(model).get_potential_energy(atoms)
    assert single == pytest.approx(double.get_potential_energy(atoms), abs=2e-5)
    assert single < -2500


def test_uncertainties_are_computed_when_they_are_wanted(model: Ensemble) -> None:
    atoms, calc = chain(), Calculator(model)
    atoms.calc = calc
    atoms.get_forces()
    assert not set(calc.results) & set(UNCERTAIN)
    assert calc.evaluator.compilations == 1
    assert calc.get_property("energy_uncertainty", atoms) > 0
    assert "forces_uncertainty_epistemic" in calc.results
    has = []
    third = Calculator(model, uncertainty=3)
    for index in range(7):
        moved = chain()
        moved.positions[0, 0] += 0.01 * index
        moved.calc = third
        moved.get_potential_energy()
        moved.get_forces()
        has.append("energy_uncertainty" in third.results)
    assert has == [True, False, False, True, False, False, True]
    always = Calculator(model, uncertainty="always")
    always.get_potential_energy(atoms)
    assert "energy_uncertainty" in always.results


def test_a_direct_call_leaves_nothing_of_the_structure_before(double: Calculator) -> None:
    calc, moved = double.sibling(), chain()
    calc.get_property("energy_uncertainty", chain())
    moved.positions[0, 0] += 0.1
    calc.calculate(moved)
    assert not set(calc.results) & set(UNCERTAIN)
    calc.calculate(moved, ["energy_uncertainty"], [])
    assert set(calc.results) & set(UNCERTAIN)


def test_rounding_is_no_change(double: Calculator) -> None:
    calc, atoms = double.sibling(), salt()
    assert "positions" in calc.check_state(atoms)
    calc.get_potential_energy(atoms)
    atoms.positions += 4e-16
    assert calc.check_state(atoms) == []
    assert calc.check_state(atoms, tol=0.0) == ["positions"]
    atoms.positions[0, 0] += 1e-12
    atoms.cell[0, 0] += 1e-12
    assert calc.check_state(atoms) == ["positions", "cell"]
    atoms = salt()
    atoms.pbc = [True, True, False]
    atoms.numbers[0] += 1
    assert calc.check_state(atoms) == ["numbers", "pbc"]
    charged = salt()
    charged.set_initial_charges(np.ones(len(charged)))
    assert calc.check_state(charged) == ["initial_charges"]


def test_stress_comes_with_forces_once_it_was_asked_for(double: Calculator) -> None:
    atoms, calc = salt(), double.sibling()
    atoms.calc = calc
    atoms.get_forces()
    assert "stress" not in calc.results
    atoms.get_stress()
    atoms.rattle(0.01)
    atoms.get_forces()
    assert "stress" in calc.results


def test_dynamics_compile_once_and_conserve_energy(model: Ensemble) -> None:
    atoms = salt((2, 2, 1))
    calc = Calculator(model)
    atoms.calc = calc
    thermalize_momenta(atoms, temperature_K=200, rng=np.random.default_rng(0))
    energies = []
    dynamics = VelocityVerlet(atoms, 0.25 * units.fs)
    for _ in dynamics.irun(120):
        energies.append(atoms.get_total_energy())
    assert calc.evaluator.compilations == 1
    assert 1 <= calc.evaluator.searches < 60
    kinetic = atoms.get_kinetic_energy()
    assert np.ptp(energies) < 0.05 * kinetic


def test_it_serves_optimisers_and_vibrations(double: Calculator, tmp_path: Path) -> None:
    atoms = chain()
    atoms.calc = double.sibling()
    before = atoms.get_potential_energy()
    BFGS(atoms, logfile=None).run(fmax=1e-4, steps=5)
    assert atoms.get_potential_energy() < before
    vibrations = Vibrations(atoms, indices=[0], name=str(tmp_path / "vib"))
    vibrations.run()
    assert vibrations.get_energies().shape == (3,)


def test_siblings_share_programs(double: Calculator) -> None:
    first = double.sibling()
    first.get_potential_energy(chain())
    before = first.evaluator.compilations
    other = first.sibling()
    other.get_potential_energy(chain())
    assert other.evaluator.compilations == before
    assert other.evaluator.searches == 1


class TestDistribution:
    @pytest.fixture
    def atoms(self) -> Atoms:
        return chain()

    def test_marginals_are_the_results(self, double: Calculator, atoms: Atoms) -> None:
        calc = double.sibling()
        found = calc.distribution(atoms)
        assert found.energy == pytest.approx(calc.get_property("energy", atoms))
        np.testing.assert_allclose(found.forces, calc.get_property("forces", atoms))
        deviations = np.sqrt(np.diag(found.covariance))
        assert deviations[0] == pytest.approx(calc.get_property("energy_uncertainty", atoms))
        np.testing.assert_allclose(deviations[1:], calc.get_property("forces_uncertainty", atoms).ravel())

    def test_observables_have_the_variance_of_samples(self, double: Calculator, atoms: Atoms) -> None:
        found = double.distribution(atoms)
        energies, forces = found.samples(20_000, seed=1, balanced=False)
        assert energies.mean() == pytest.approx(found.energy, abs=5 * energies.std() / 140)
        arms = atoms.positions - atoms.positions.mean(0)
        direction = np.random.default_rng(2).normal(size=arms.shape)
        unit = direction / np.linalg.norm(direction)
        drawn = {
            "net force": (found.net_force(), forces.sum(1)),
            "net torque": (found.net_torque(), np.cross(arms, forces).sum(1)),
            "along": (found.force_along(direction), np.einsum("snx,nx->s", forces, unit)[:, None]),
            "mixed": (found.linear(unit[None], [2.0]), (np.einsum("snx,nx->s", forces, unit) + 2 * energies)[:, None]),
        }
        for name, (estimate, sampled) in drawn.items():
            np.testing.assert_allclose(estimate.uncertainty, sampled.std(0), rtol=0.04, err_msg=name)
            error = 6 * sampled.std(0) / 140 + 1e-8
            assert (np.abs(estimate.mean - sampled.mean(0)) < error).all(), name
            both = np.hypot(estimate.uncertainty_aleatoric, estimate.uncertainty_epistemic)
            np.testing.assert_allclose(both, estimate.uncertainty)

    def test_sampled_forces_are_balanced(self, double: Calculator, atoms: Atoms) -> None:
        energies, forces = double.distribution(atoms).samples(200, seed=1)
        arms = atoms.positions - atoms.positions.mean(0)
        np.testing.assert_allclose(forces.sum(1), 0, atol=1e-9)
        np.testing.assert_allclose(np.cross(arms, forces).sum(1), 0, atol=1e-9)
        free_energies, free = double.distribution(atoms).samples(200, seed=1, balanced=False)
        np.testing.assert_array_equal(energies, free_energies)
        assert forces.std() > 0.3 * free.std()
        assert np.linalg.norm(free.sum(1), axis=1).mean() > free.std()

    def test_a_crystal_has_a_torque_and_no_net_force(self, double: Calculator) -> None:
        atoms = salt((2, 1, 1))
        forces = double.distribution(atoms).samples(50, seed=1)[1]
        np.testing.assert_allclose(forces.sum(1), 0, atol=1e-9)
        assert np.abs(np.cross(atoms.positions, forces).sum(1)).max() > 0.1 * forces.std()

    def test_invalid_directions_are_refused(self, double: Calculator, atoms: Atoms) -> None:
        found = double.distribution(atoms)
        with pytest.raises(ValueError, match="points nowhere"):
            found.force_along(np.zeros((6, 3)))
        with pytest.raises(ValueError, match=r"direction must have shape \(6, any\), but has shape \(5, 3\)"):
            found.force_along(np.ones((5, 3)))

    def test_without_atoms(self, model: Ensemble) -> None:
        with pytest.raises(ValueError, match="no atoms yet"):
            Calculator(model).distribution()


def typical(energy: float, force: float) -> TypicalUncertainty:
    def flat(value: float) -> PartQuantiles:
        row = tuple(value for _ in SHARES)
        return PartQuantiles(total=row, aleatoric=row, epistemic=row)

    parts = {"energy": flat(energy), "atom": flat(force), "max": flat(force), "mean": flat(force)}
    return TypicalUncertainty(source="validation data", structures=7, **parts)


class TestWarnings:
    def test_they_name_the_atoms_once(self, double: Calculator, model: Ensemble) -> None:
        deviations = double.sibling().get_property("forces_uncertainty", chain())
        levels = np.sqrt((deviations**2).mean(1))
        worst, second = np.argsort(-levels)[:2]
        limit = 0.5 * (levels[worst] + levels[second])
        calc = Calculator(model.with_typical(typical(1e9, limit)), uncertainty="always", precision="float64")
        name = f"{chain().symbols[worst]}{worst}"
        with pytest.warns(UncertaintyWarning, match=rf"forces on {name} are uncertain .* 100% of the validation data"):
            calc.get_potential_energy(chain())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = chain()
            again.positions[0] += 1e-4
            calc.get_potential_energy(again)

    def test_of_each_structure_of_a_list(self, model: Ensemble) -> None:
        calc = Calculator(model.with_typical(typical(1e9, 1e-9)), uncertainty="always")
        with pytest.warns(UncertaintyWarning):
            calc.get_potential_energy(chain())
        far = chain()
        far.positions[0] += [0.0, 0.0, 0.6]
        shorter = far[:-1]
        for another in (far, shorter):
            with pytest.warns(UncertaintyWarning):
                calc.get_potential_energy(another)

    def test_of_atoms_that_cross_the_border_of_a_cell_once(self, model: Ensemble) -> None:
        calc, atoms = Calculator(model.with_typical(typical(1e9, 1e-9)), uncertainty="always"), salt()
        with pytest.warns(UncertaintyWarning):
            calc.get_potential_energy(atoms)
        atoms.positions[0] += atoms.cell[0]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            calc.get_potential_energy(atoms)

    def test_of_a_share_without_its_sign(self, model: Ensemble) -> None:
        with pytest.warns(UserWarning, match=r"99\.9 eV/Å is far above .*: did you mean 99\.9%\?"):
            Calculator(model, warn_above=99.9)

    def test_differences_and_distributions_warn_once_for_a_structure(self, model: Ensemble) -> None:
        a, b = chain(), chain()
        b.positions[1, 0] += 0.1
        calc = Calculator(model.with_typical(typical(1e-9, 1e9)))
        with pytest.warns(UncertaintyWarning, match=r"structure [01] of 2: the energy is uncertain by"):
            difference = calc.energy_covariance([a, b])
        calc.energy_difference(a, b)  # a second warning would be an error
        with pytest.warns(UncertaintyWarning, match="^the energy is uncertain by"):
            joint = Calculator(model.with_typical(typical(1e-9, 1e9))).distribution(a)
        assert re.fullmatch(r"EnergyCovariance\(\[\S+ ± \S+, \S+ ± \S+\] eV\)", repr(difference))
        assert re.fullmatch(r"JointDistribution\(energy \S+ ± \S+ eV, forces on \d+ atoms ± \S+ eV/Å .*\)", repr(joint))
        assert re.fullmatch(r"\S+ ± \S+ eV/Å", str(joint.force_along(np.ones((len(a), 3)))))
        assert re.fullmatch(r"\[.* ± .*, .* ± .*, .* ± .*\] eV", str(joint.net_torque()))
        assert re.fullmatch(r"\S+ ± \S+", str(joint.linear(np.ones((1, len(a), 3)))))

    def test_of_the_energy(self, model: Ensemble) -> None:
        calc = Calculator(model.with_typical(typical(1e-9, 1e9)), uncertainty="always")
        with pytest.warns(UncertaintyWarning, match="the energy is uncertain by"):
            calc.get_potential_energy(chain())

    def test_colored_noise_warns_once_beyond_the_sizes_it_was_validated_for(self, model: Ensemble) -> None:
        """Local noise, that of the other tests, does not warn."""
        colored = Ensemble(ForceField(model.members.potential, ColoredNoise.Config().build()))
        known = colored.with_typical(typical(1e9, 1e9).model_copy(update={"most_atoms": len(chain())}))
        calc = Calculator(known)
        calc.tell_of_limits(chain())
        with pytest.warns(UncertaintyWarning, match=r"error bars for 9 atoms .* validated up to 6 atoms"):
            calc.tell_of_limits(chain() + salt())
        calc.tell_of_limits(chain() + salt())
        with pytest.warns(UncertaintyWarning, match="colored of this model, whose size at training is not known"):
            Calculator(colored).tell_of_limits(chain())
        Calculator(model.with_typical(known.typical)).tell_of_limits(salt((5, 5, 5)))

    def test_a_number_needs_no_data(self, model: Ensemble) -> None:
        calc = Calculator(model, uncertainty="always", warn_above=1e-6)
        with pytest.warns(UncertaintyWarning, match="more than the threshold"):
            calc.get_potential_energy(chain())

    def test_a_share_of_unknown_data(self, model: Ensemble) -> None:
        with pytest.raises(ValueError, match="does not know the uncertainties of its validation data"):
            Calculator(model, warn_above="99%")

    def test_ignored_charges_are_warned_of_once(self, double: Calculator) -> None:
        calc = Calculator(double.ensemble)
        atoms = chain()
        atoms.info["charge"] = 1
        atoms.set_initial_magnetic_moments([1.0] + [0.0] * 5)
        atoms.calc = calc
        with pytest.warns(UserWarning, match="a charge and unpaired electrons, which models do not take as input"):
            atoms.get_potential_energy()
        atoms.rattle(0.01)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            atoms.get_potential_energy()

    def test_ignored_charges_are_warned_of_by_every_method(self, double: Calculator) -> None:
        atoms = chain()
        atoms.info["charge"] = 1
        questions: dict[str, Callable[[Calculator], object]] = {
            "distribution": lambda calc: calc.distribution(atoms),
            "covariance": lambda calc: calc.energy_covariance([chain(), atoms]),
            "sibling": lambda calc: calc.sibling().get_potential_energy(atoms),
        }
        for name, ask in questions.items():
            calc = double.sibling()
            with pytest.warns(UserWarning, match="a charge, which models do not take as input"):
                ask(calc)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore" if name == "sibling" else "error")
                calc.tell_of_limits(atoms)
                warnings.simplefilter("error")
                ask(calc)


class TestBadInput:
    def message(self, calc: Calculator, atoms: Atoms) -> str:
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the caller looks at the message
            calc.get_potential_energy(atoms)
        return str(caught.value)

    def test_unknown_elements_are_named_with_their_atoms(self, double: Calculator) -> None:
        atoms = chain()
        atoms.symbols[[1, 4]] = "Au"
        assert "contains Au, but the model was trained for H, C, N, O only" in (message := self.message(double, atoms))
        assert "remove Au1, Au4" in message

    def test_overlapping_atoms(self, double: Calculator) -> None:
        atoms = chain()
        atoms.positions[5] = atoms.positions[2] + 0.01
        assert "atoms 2 and 5 are 0.017 Å apart" in self.message(double.sibling(), atoms)

    def test_overlapping_atoms_of_a_difference(self, double: Calculator) -> None:
        atoms = chain()
        atoms.positions[5] = atoms.positions[2] + 0.01
        with pytest.raises(ValueError, match=r"atoms 2 and 5 are 0\.017 Å apart"):
            double.energy_difference(chain(), atoms)

    def test_a_model_that_predicts_no_numbers(self, model: Ensemble) -> None:
        with jax.enable_x64(True):
            broken = jax.tree.map(lambda leaf: leaf * np.nan if eqx.is_inexact_array(leaf) else leaf, model)
        assert "the prediction is NaN or infinite" in self.message(Calculator(broken), chain())

    def test_atoms_that_come_to_overlap_while_neighbours_are_kept(self, double: Calculator) -> None:
        atoms, calc = chain(), double.sibling()
        calc.get_potential_energy(atoms)
        atoms.positions[5] = atoms.positions[2]
        assert "are 0 Å apart" in self.message(calc, atoms)

    def test_positions_that_are_no_numbers(self, double: Calculator) -> None:
        atoms = chain()
        atoms.positions[3, 1] = np.nan
        assert f"positions of {atoms.symbols[3]}3 are NaN or infinite" in self.message(double.sibling(), atoms)

    def test_periodic_without_a_cell(self, double: Calculator) -> None:
        atoms = chain()
        atoms.pbc = True
        assert "give the cell" in self.message(double.sibling(), atoms)

    def test_a_cell_smaller_than_the_cutoff_is_its_supercell(self, double: Calculator) -> None:
        one, many = (double.sibling().get_potential_energy(each) for each in (salt(), salt((2, 1, 2))))
        assert many == pytest.approx(4 * one, rel=1e-9)

    def test_no_stress_of_molecules(self, double: Calculator) -> None:
        atoms = chain()
        atoms.calc = double.sibling()
        with pytest.raises(PropertyNotImplementedError, match="without a periodic cell"):
            atoms.get_stress()

    @pytest.mark.parametrize("given", [0, -3, True])
    def test_invalid_values_of_uncertainty(self, model: Ensemble, given: object) -> None:
        with pytest.raises(ValueError, match="'always', 'on_request' or a number of steps"):
            Calculator(model, uncertainty=given)


def test_a_file_is_loaded_in_either_precision_and_remembers_what_is_typical(model: Ensemble, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with jax.enable_x64(True):
        save(model.with_typical(typical(0.25, 0.5)), path)
    single, double = Calculator(path), Calculator(path, precision="float64")
    assert single.get_potential_energy(chain()) == pytest.approx(double.get_potential_energy(chain()), abs=2e-5)
    assert double.ensemble.typical == typical(0.25, 0.5)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_it_can_be_pickled(model: Ensemble, precision: Literal["float32", "float64"]) -> None:
    calc = Calculator(model, precision=precision, skin_angstrom=0.1, uncertainty=3)
    expected = calc.get_potential_energy(chain())
    there = pickle.loads(pickle.dumps(calc))  # noqa: S301 - our own
    assert (there.evaluator.precision, there.uncertainty) == (precision, 3)
    assert there.sibling().get_potential_energy(chain()) == expected


def test_invalid_counts_of_samples_and_structures(model: Ensemble) -> None:
    calc = Calculator(model)
    with pytest.raises(ValueError, match="the structure has no atoms: give at least one"):
        calc.get_property("energy", Atoms())
    with pytest.raises(ValueError, match="count must be at least 1, but is -1"):
        calc.distribution(chain()).samples(-1, seed=0)
    with pytest.raises(TypeError, match=r"one is of Atoms: for atoms of ASE use .* of huefield\.Calculator"):
        require_structures([molecule(), chain()])


def test_differences_have_a_readable_repr(model: Ensemble) -> None:
    covariance = Calculator(model).energy_covariance([chain(), chain()])
    assert repr(covariance.difference(0, 1)) == f"EnergyDifference({covariance.difference(0, 1)})"
    assert "calibration" not in repr(covariance)


@pytest.mark.usefixtures("as_users_run")
def test_anything_with_an_ensemble_is_a_model(model: Ensemble) -> None:
    """Such as the results of training and calibration."""

    class Result:
        ensemble = model

    assert Calculator(Result()).ensemble.num_members == 2
    with pytest.raises(ValueError, match=r"an ensemble, a model file, or a result of huefield\.train .* not dict"):
        Calculator({"ensemble": model})


@pytest.mark.usefixtures("as_users_run")
def test_it_prints_what_it_is(double: Calculator) -> None:
    assert repr(double) == "Calculator(PaiNN with LocalNoise, 2 members, elements H, C, N, O, calibrated, float64)"
    plain = Calculator(double.ensemble.with_calibration(None))
    assert "not calibrated, float32" in repr(plain)
