"""Models that correct a baseline: every prediction is the sum of both."""

import pickle
from dataclasses import replace
from pathlib import Path

import ase.io
import jax
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.emt import EMT
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from ase.calculators.lj import LennardJones

import huefield
from huefield import Calculator, HuefieldError
from huefield.ase.calculator import structure_of
from huefield.ase.harmonic import harmonic, oscillators
from huefield.ase.md import MDConfig, run_md
from huefield.baselines import AseBaseline, TbliteBaseline, record_of
from huefield.baselines.files import write_baseline
from huefield.core.structure import pack
from huefield.data.batches.batching import make_batch
from huefield.data.opening import open_data
from huefield.evaluation.pairs import energy_pairs
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.predict import predict_part, read_predictions, with_results
from huefield.predict.file import predict_file
from tests.baselines.molecules import atoms_of, copper, emt, shaken
from tests.potentials.cases import randomised
from tests.training.helpers import POTENTIAL

ELEMENTS = ("H", "C", "N", "O", "Cu")


@pytest.fixture(scope="module")
def plain() -> Ensemble:
    with jax.enable_x64(True):
        potential = {**POTENTIAL, "elements": ELEMENTS}
        config = ForceField.Config.model_validate({"potential": potential, "noise": {"kind": "local"}})
        made = randomised(Ensemble.build(config, 2, key=jax.random.key(0)))
    return made.with_atom_energies({1: -1.0, 6: -10.0, 7: -15.0, 8: -20.0, 29: -50.0})


@pytest.fixture(scope="module")
def corrected(plain: Ensemble) -> Ensemble:
    probes = [replace(s, baseline=emt().compute(s)) for s in (shaken("H2O"), shaken("CH4"))]
    return plain.with_baseline(record_of(AseBaseline.Config(name="EMT"), "", probes))


@pytest.fixture(scope="module")
def both(plain: Ensemble, corrected: Ensemble) -> tuple[Calculator, Calculator]:
    return Calculator(plain, precision="float64"), Calculator(corrected, baseline=EMT(), precision="float64")


def structures() -> list[Atoms]:
    return [atoms_of(each) for each in (shaken("CH3OH"), copper(), shaken("NH3"))]


@pytest.mark.parametrize("atoms", structures(), ids=["methanol", "copper", "ammonia"])
def test_means_are_sums_and_uncertainties_those_of_the_correction(
    both: tuple[Calculator, Calculator], atoms: Atoms
) -> None:
    alone, total = (each.sibling() for each in both)
    base = emt().compute(structure_of(atoms))
    for uncertain in (False, True):
        if uncertain:
            assert total.get_property("energy_uncertainty", atoms) == alone.get_property("energy_uncertainty", atoms)
        energies = [each.get_property("energy", atoms) for each in (total, alone)]
        assert energies[0] - energies[1] == pytest.approx(base.energy, abs=1e-9)
        forces = [each.get_property("forces", atoms) for each in (total, alone)]
        np.testing.assert_allclose(forces[0] - forces[1], base.forces, atol=1e-9)
    members = [each.get_property("forces_ensemble", atoms) for each in (total, alone)]
    np.testing.assert_allclose(members[0] - members[1], np.stack([base.forces] * 2), atol=1e-9)
    drawn = [each.distribution(atoms) for each in (total, alone)]
    np.testing.assert_allclose(drawn[0].energy - drawn[1].energy, base.energy, atol=1e-9)
    np.testing.assert_allclose(drawn[0].forces - drawn[1].forces, base.forces, atol=1e-9)


def test_forces_and_stress_are_derivatives_of_the_sum(both: tuple[Calculator, Calculator]) -> None:
    crystal = atoms_of(copper())
    crystal.calc = both[1].sibling()
    np.testing.assert_allclose(crystal.get_forces(), calculate_numerical_forces(crystal, eps=1e-4), atol=1e-5)
    np.testing.assert_allclose(crystal.get_stress(), calculate_numerical_stress(crystal, eps=1e-5), atol=1e-6)


def test_energy_differences_contain_the_baseline(both: tuple[Calculator, Calculator]) -> None:
    first, second = (atoms_of(shaken("CH3OH", seed=seed)) for seed in (1, 2))
    found, correction = (each.sibling().energy_difference(first, second) for each in (both[1], both[0]))
    base = [emt().compute(structure_of(atoms)).energy for atoms in (first, second)]
    assert found.value - correction.value == pytest.approx(base[1] - base[0], abs=1e-9)
    assert found.uncertainty == correction.uncertainty


def test_frequencies_contain_the_baseline(both: tuple[Calculator, Calculator]) -> None:
    water = atoms_of(shaken("H2O"))
    total, correction = both[1].sibling(), both[0].sibling()

    def forces(positions: np.ndarray) -> np.ndarray:
        moved = Atoms(water.numbers, positions)
        return correction.get_property("forces_ensemble", moved) + emt().compute(structure_of(moved)).forces

    expected = oscillators(forces, water.positions, water.get_masses(), step_angstrom=0.01)
    found = harmonic(total, water)
    np.testing.assert_allclose(found.wavenumbers, expected.wavenumbers, atol=0.01)
    np.testing.assert_allclose(found.wavenumbers_uncertainty, expected.wavenumbers_uncertainty, atol=0.01)


def test_a_baseline_without_stress_gives_none(corrected: Ensemble) -> None:
    class WithoutStress(EMT):
        implemented_properties = ("energy", "forces")

    crystal = atoms_of(copper())
    crystal.calc = Calculator(corrected, baseline=WithoutStress())
    assert np.isfinite(crystal.get_potential_energy())
    with pytest.raises(PropertyNotImplementedError, match="without a stress of the baseline"):
        crystal.get_stress()


def test_one_result_serves_energy_and_uncertainty(corrected: Ensemble) -> None:
    calls = []

    class Watched(EMT):
        def calculate(self, atoms: Atoms, *args: object, **options: object) -> None:
            calls.append(len(atoms))
            super().calculate(atoms, *args, **options)

    calc, atoms = Calculator(corrected, baseline=Watched()), atoms_of(shaken("CO"))
    before = len(calls)
    for name in ("energy", "forces", "forces_uncertainty"):
        calc.get_property(name, atoms)
    assert len(calls) - before == 1


def test_other_baselines_are_refused_and_a_missing_one_is_named(corrected: Ensemble, tmp_path: Path) -> None:
    huefield.save(corrected, tmp_path / "model.safetensors")
    again = huefield.load(tmp_path / "model.safetensors")
    assert again.baseline == corrected.baseline
    with pytest.raises(HuefieldError, match="corrects EMT, but the given baseline is another one"):
        Calculator(tmp_path / "model.safetensors", baseline=LennardJones())
    with pytest.raises(HuefieldError, match=r"corrects EMT, which huefield cannot compute by itself.*baseline="):
        Calculator(tmp_path / "model.safetensors")
    with pytest.raises(HuefieldError, match="corrects EMT, which cannot be computed from a graph"):
        again.predict(make_batch([shaken("CO")], 3.0, ()).graph)
    with pytest.raises(HuefieldError, match="whose results for these structures are missing"):
        again.energy_difference(shaken("CO"), shaken("CO", seed=1))
    assert "corrects EMT" in repr(Calculator(again, baseline=EMT()))


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    frames = structures()
    for index, atoms in enumerate(frames):
        atoms.info |= {"REF_energy": -100.0 - index, "group": "one"}
        atoms.arrays["REF_forces"] = 0.1 * atoms.positions
    ase.io.write(tmp_path / "in.xyz", frames, format="extxyz")
    return tmp_path / "in.xyz"


def test_files_are_predicted_with_a_calculator_or_with_columns(corrected: Ensemble, labelled: Path) -> None:
    columns, first, second = (labelled.with_name(name) for name in ("columns.extxyz", "a.extxyz", "b.extxyz"))
    write_baseline(labelled, columns, emt())
    predict_file(corrected, labelled, first, baseline=EMT())
    predict_file(corrected, columns, second)
    total = Calculator(corrected, baseline=EMT())
    for atoms, one, other in zip(structures(), ase.io.read(first, ":"), ase.io.read(second, ":"), strict=True):
        energy = total.get_property("energy", atoms)
        assert one.get_potential_energy() == pytest.approx(energy, abs=1e-5)
        assert other.get_potential_energy() == pytest.approx(energy, abs=1e-5)
        np.testing.assert_allclose(one.get_forces(), total.get_property("forces", atoms), atol=1e-5)
        np.testing.assert_allclose(other.get_forces(), one.get_forces(), atol=1e-9)
        if atoms.pbc.any():
            np.testing.assert_allclose(one.get_stress(), total.get_property("stress", atoms), atol=1e-6)
            np.testing.assert_allclose(other.get_stress(), one.get_stress(), atol=1e-9)
    assert len(read_predictions(first)) == 3
    with pytest.raises(HuefieldError, match="frame 0: it has no baseline_energy and baseline_forces"):
        predict_file(corrected, labelled, labelled.with_name("c.extxyz"))


def test_errors_and_likelihoods_are_those_of_the_correction(
    plain: Ensemble, corrected: Ensemble, labelled: Path
) -> None:
    part = with_results(corrected, open_data(labelled), EMT())
    total = predict_part(corrected, part, "total")
    learnt = predict_part(plain, part.relative_to_baseline(), "correction")
    pairs = (
        (total.observed_energies(), learnt.observed_energies()),
        (total.observed_forces(), learnt.observed_forces()),
    )
    for one, other in pairs:
        assert one is not None
        assert other is not None
        np.testing.assert_allclose(one.error, other.error, atol=1e-5)
    assert total.joint_nll is not None
    assert learnt.joint_nll is not None
    np.testing.assert_allclose(total.joint_nll, learnt.joint_nll, rtol=1e-4)
    np.testing.assert_array_equal(total.structures.energy, [-100.0, -101.0, -102.0])


def test_pairs_of_energies_contain_the_baseline(plain: Ensemble, corrected: Ensemble) -> None:
    some = [replace(shaken("CH3OH", seed=seed), energy=-100.0 - seed, group="one") for seed in range(4)]
    block = pack(some, np.arange(4), "some").with_baseline([emt().compute(structure) for structure in some])
    total, learnt = energy_pairs(corrected, block), energy_pairs(plain, block.relative_to_baseline())
    assert len(total) == 6
    np.testing.assert_allclose(total.error, learnt.error, atol=1e-6)
    np.testing.assert_allclose(total.deviation, learnt.deviation, rtol=1e-6)


def test_structures_for_which_the_baseline_fails_are_listed(corrected: Ensemble, labelled: Path) -> None:
    class Failing(EMT):
        def calculate(self, atoms: Atoms, *args: object, **options: object) -> None:
            super().calculate(atoms, *args, **options)
            if 29 in atoms.numbers:
                self.results["energy"] = np.nan

    with pytest.raises(HuefieldError, match=r"frame 1: Failing gives .* NaN.*--skip-bad"):
        predict_file(corrected, labelled, labelled.with_name("a.extxyz"), baseline=Failing())
    done = predict_file(corrected, labelled, labelled.with_name("a.extxyz"), baseline=Failing(), skip_bad=True)
    assert done.structures == 2
    assert [each.first.frame for each in done.skipped] == [1]
    found = predict_part(corrected, open_data(labelled), "some", baseline=Failing())
    assert len(found) == 2
    assert any("NaN" in reason for reason in found.left_out)
    with pytest.warns(UserWarning, match="EMT fails for 1 structures, which are left out"):
        assert len(with_results(corrected, open_data(labelled), Failing())) == 2


def test_dynamics_end_where_the_baseline_fails_with_every_frame_kept(corrected: Ensemble, tmp_path: Path) -> None:
    class Unstable(EMT):
        steps = 0

        def calculate(self, atoms: Atoms, *args: object, **options: object) -> None:
            Unstable.steps += 1
            super().calculate(atoms, *args, **options)
            if Unstable.steps > 30:
                raise RuntimeError("no convergence")

    config = MDConfig(steps=100, temperature_kelvin=100.0, every=5, uncertainty_every=5, precision="float64")
    calculator = Calculator(corrected, baseline=Unstable(), precision="float64")
    result = run_md(config, calculator, atoms_of(shaken("CH4")), tmp_path / "md", figure=False)
    assert result.ended == "exploded"
    assert "Unstable failed: RuntimeError: no convergence" in result.message
    assert result.frames >= 5
    assert len(ase.io.read(tmp_path / "md" / "trajectory.xyz", ":")) == result.frames


def test_gfn2_needs_no_argument_not_even_in_another_process(plain: Ensemble, tmp_path: Path) -> None:
    baseline = TbliteBaseline(TbliteBaseline.Config())
    probe = replace(shaken("CH4"), baseline=baseline.compute(shaken("CH4")))
    record = record_of(baseline.config, baseline.version, [probe])
    huefield.save(plain.with_baseline(record), tmp_path / "m.safetensors")
    atoms, calculator = atoms_of(shaken("CH3OH")), Calculator(tmp_path / "m.safetensors")
    found = calculator.get_property("energy", atoms)
    alone = Calculator(plain).get_property("energy", atoms)
    assert found - alone == pytest.approx(baseline.compute(structure_of(atoms)).energy, abs=1e-4)
    again = pickle.loads(pickle.dumps(calculator))  # noqa: S301 - our own
    assert again.get_property("energy", atoms) == pytest.approx(found, abs=1e-9)
