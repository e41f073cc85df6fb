"""Stress labels in losses, gradients and metrics, with a random model on small crystals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.io import write

from huefield import Ensemble, ForceField, load
from huefield.core import Gaussian, voigt
from huefield.core.structure import Structure, cell_volumes
from huefield.data.batches.batching import Batch, BatchShape, make_batch
from huefield.noise import LocalNoise
from huefield.predict import predict_part
from huefield.training import BetaNLLStage, NLLStage, SquaredErrorStage, train
from huefield.training.history import read_history
from huefield.training.likelihoods import joint_nll, marginal_nll, squared_error
from huefield.training.stages import AbstractStage
from huefield.training.step import OptimiserConfig, optimiser_for, start, step
from tests.core.test_strain import CUTOFF, finite_difference, random_ensemble
from tests.training.helpers import POTENTIAL, config_for
from tests.training.springs import crystals, with_labels

SHAPE = BatchShape(4, 10, 24)
SINGLE = BatchShape(1, 3, 24)


def structures(stressed: tuple[bool, ...] = (True, False, True)) -> list[Structure]:
    """Crystals with labels of springs, some of them without a stress."""
    found = []
    for number, (atoms, known) in enumerate(zip(crystals(len(stressed)), stressed, strict=True)):
        tensor = atoms.get_stress(voigt=False)
        numbers = np.array([6, 8] if number else [6, 8, 8], np.uint8)[: len(atoms)]
        cell, pbc = np.array(atoms.cell), np.ones(3, bool)
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        found.append(Structure(numbers, atoms.positions, cell, pbc, energy, forces, tensor if known else None))
    return found


def member() -> ForceField:
    return replace(random_ensemble(LocalNoise.Config()).member(0), log_strain_rest=jnp.asarray(0.4))


@eqx.filter_jit
def predicted(member: ForceField, batch: Batch) -> Gaussian:
    return member(batch.graph, strain=batch.labels.strain is not None)


@pytest.mark.usefixtures("x64")
def test_squared_errors_vanish_for_finite_differences_of_the_energy_under_strain() -> None:
    """The label has the sign of ASE, V⁻¹ ∂E/∂ε: with the wrong sign the error is twice the strain derivative."""
    model = member()
    energy = eqx.filter_jit(lambda graph: model(graph).mean.energy[0])
    crystal = structures()[0]

    def energy_of(given: Structure) -> float:
        return float(energy(make_batch([given], CUTOFF, [SINGLE]).graph))

    derivative = finite_difference(energy_of, crystal)
    stress = derivative / cell_volumes(crystal.cell)
    right, wrong = (make_batch([replace(crystal, stress=sign * stress)], CUTOFF, [SINGLE]) for sign in (1, -1))
    found = squared_error(predicted(model, right), right.labels).strain
    assert np.abs(found).max() < 1e-10 * np.abs(derivative).max()
    planted = squared_error(predicted(model, wrong), wrong.labels).strain
    np.testing.assert_allclose(planted[0], np.triu(0.5 * (2 * derivative) ** 2), rtol=1e-4, atol=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("loss", [squared_error, marginal_nll, joint_nll])
def test_a_structure_has_the_same_terms_alone_and_in_a_batch(loss: Any) -> None:
    model, given = member(), structures()
    whole = make_batch(given, CUTOFF, [SHAPE])
    together = loss(predicted(model, whole), whole.labels)
    for number, one in enumerate(given):
        batch = make_batch([one], CUTOFF, [SINGLE], stress=True)
        alone = loss(predicted(model, batch), batch.labels)
        if loss is joint_nll:
            assert float(together[number]) == pytest.approx(float(alone[0]), rel=1e-9)
        else:
            np.testing.assert_allclose(together.strain[number], alone.strain[0], rtol=1e-9, atol=1e-12)
            assert bool(np.asarray(alone.strain).any()) == (one.stress is not None)


@pytest.mark.usefixtures("x64")
def test_marginal_terms_are_normal_densities_of_six_components() -> None:
    batch = make_batch(structures(), CUTOFF, [SHAPE])
    found = predicted(member(), batch)
    terms = marginal_nll(found, batch.labels).strain
    error, variance = np.asarray(batch.labels.strain - found.mean.strain)[0], np.asarray(found.variance().strain)[0]
    expected = 0.5 * (error**2 / variance + np.log(2 * np.pi * variance))
    np.testing.assert_allclose(terms[0], np.triu(expected), rtol=1e-9)
    assert np.count_nonzero(terms[0]) == 6
    assert not np.asarray(terms[1]).any()


STAGES: dict[str, AbstractStage] = {
    "squared_error": SquaredErrorStage(steps=1, stress_weight=0.3, energy_weight=2.0),
    "averages": SquaredErrorStage(steps=1, stress_weight=0.3, reduction="averages"),
    "beta_nll": BetaNLLStage(steps=1, beta_start=0.0),
    "nll": NLLStage(steps=1, degrees_of_freedom=5.0),
    "joint": NLLStage(steps=1, joint=True),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name != "joint" else name for name in STAGES]
)
def test_gradients_of_a_stage_are_those_of_finite_differences(name: str) -> None:
    """Along a random direction of all parameters: third derivatives of the potential, by positions and strain."""
    stage, batch, model = STAGES[name], make_batch(structures(), CUTOFF, [SHAPE]), member()
    parameters, static = eqx.partition(model, eqx.is_inexact_array)
    rng = np.random.default_rng(2)
    direction = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), parameters)

    @jax.jit
    def loss(amount: jax.Array) -> jax.Array:
        moved = eqx.combine(jax.tree.map(lambda p, d: p + amount * d, parameters, direction), static)
        return stage.loss(stage.distribution(moved, batch.graph, batch.labels), batch.labels, jnp.zeros(())).value

    size = 1e-5
    numeric = (loss(jnp.asarray(size)) - loss(jnp.asarray(-size))) / (2 * size)
    assert float(jax.jit(jax.grad(loss))(jnp.zeros(()))) == pytest.approx(float(numeric), rel=1e-5)


@pytest.mark.usefixtures("x64")
def test_a_stage_adds_the_weighted_terms() -> None:
    batch = make_batch(structures(), CUTOFF, [SHAPE])
    found = predicted(member(), batch)
    terms = squared_error(found, batch.labels)
    sums = [float(jnp.sum(each)) for each in (terms.energy, terms.forces, terms.strain)]
    stage = SquaredErrorStage(steps=1, energy_weight=2.0, force_weight=3.0, stress_weight=0.3)
    total = float(stage.loss(found, batch.labels, jnp.zeros(())).value)
    assert total == pytest.approx((2 * sums[0] + 3 * sums[1] + 0.3 * sums[2]) / 3, rel=1e-9)
    averages = stage.model_copy(update={"reduction": "averages"}).loss(found, batch.labels, jnp.zeros(()))
    counts = (3, 3 * sum(len(s) for s in structures()), 12)
    expected = sum(w * s / n for w, s, n in zip((2, 3, 0.3), sums, counts, strict=True))
    assert float(averages.value) == pytest.approx(expected, rel=1e-9)


@pytest.mark.usefixtures("x64")
def test_the_factor_of_the_rest_changes_nothing_else() -> None:
    """κ multiplies the diagonal of the strain derivative, also where ρ learns from energies alone."""
    graph, model = make_batch(structures(), CUTOFF, [SHAPE]).graph, member()
    plain = replace(model, log_strain_rest=None)
    for predict in (
        lambda one: one(graph, strain=True),
        lambda one: one.as_taught(graph, jnp.zeros(4), strain=True),
    ):
        ours, theirs = (eqx.filter_jit(predict)(each) for each in (model, plain))
        np.testing.assert_allclose(ours.diagonal.strain, np.exp(0.4) * theirs.diagonal.strain, rtol=1e-12)
        same = [eqx.tree_at(lambda g: g.diagonal.strain, each, jnp.zeros((4, 3, 3))) for each in (ours, theirs)]
        assert eqx.tree_equal(*same, rtol=1e-12, atol=1e-12)


class TestCost:
    """Without stress labels, or with a weight of zero, nothing of the stress is computed."""

    @pytest.mark.parametrize("level_learns", ["likelihood", "evenly", "energies"])
    def test_strain_derivatives_are_computed_only_for_labels_with_a_weight(self, level_learns: str) -> None:
        model, given = member(), structures()
        with_labels, without = make_batch(given, CUTOFF, [SHAPE]), make_batch(given, CUTOFF, [SHAPE], stress=False)

        def strained(batch: Batch, **changes: float) -> bool:
            stage = NLLStage.model_validate({"steps": 1, "level_learns": level_learns, **changes})
            shape = eqx.filter_eval_shape(stage.distribution, model, batch.graph, batch.labels)
            return shape.mean.strain is not None

        assert strained(with_labels)
        assert not strained(with_labels, stress_weight=0.0)
        assert not strained(without)

    @pytest.mark.slow
    def test_a_step_without_stress_labels_is_the_same_program_as_before(self) -> None:
        """Not one operation more than with labels that were never read."""
        model, given = member(), structures((False, False))
        batch = make_batch(given, CUTOFF, [SHAPE])
        stage, config = NLLStage(steps=1), OptimiserConfig()

        def operations(weight: float, labelled: Batch) -> int:
            chosen = stage.model_copy(update={"stress_weight": weight})
            state = start(model, optimiser_for(chosen, config))
            arrays, static = eqx.partition(state, eqx.is_array)
            program = jax.make_jaxpr(
                lambda a, b: eqx.filter(
                    step(eqx.combine(a, static), b.graph, b.labels, chosen, config)[0], eqx.is_array
                )
            )
            return str(program(arrays, labelled)).count(" = ")

        assert operations(1.0, batch) == operations(0.0, batch)
        stressed = make_batch(structures((True, True)), CUTOFF, [SHAPE])
        assert operations(0.0, stressed) == operations(0.0, batch) < operations(1.0, stressed)


def test_a_joint_likelihood_takes_stress_or_leaves_it() -> None:
    assert NLLStage(steps=1, joint=True, stress_weight=0.0).stress_weight == 0
    with pytest.raises(ValueError, match=r"no separate stress terms, but stress_weight is 0.5: remove it"):
        NLLStage(steps=1, joint=True, stress_weight=0.5)


def test_labels_of_the_springs_are_derivatives_of_their_energy() -> None:
    atoms = crystals(1)[0]

    def energy_of(given: Structure) -> float:
        moved = with_labels(Atoms("CO", given.positions, cell=given.cell, pbc=True))
        return float(moved.get_potential_energy())

    same = Structure(atoms.numbers.astype(np.uint8), atoms.positions, np.array(atoms.cell), np.ones(3, bool))
    expected = finite_difference(energy_of, same) / atoms.get_volume()
    np.testing.assert_allclose(atoms.get_stress(voigt=False), expected, atol=1e-6)
    shifted = replace(same, positions=same.positions + np.array([[1e-5, 0, 0], [0, 0, 0]]))
    numeric = -(energy_of(shifted) - energy_of(same)) / 1e-5
    assert atoms.get_forces()[0, 0] == pytest.approx(numeric, abs=1e-3)


@pytest.mark.slow
def test_a_run_learns_stresses_and_scores_them(tmp_path: Path) -> None:
    """Scores are those of stresses, as predictions of the model and an independent sum give them."""
    write(tmp_path / "springs.xyz", crystals(24), format="extxyz")
    model = {"potential": {**POTENTIAL, "features": 16}, "noise": {"kind": "local"}}
    stages = [
        {"kind": "squared_error", "steps": 200, "learning_rate": 1e-2, "decay": 0.1, "stress_weight": 1.0},
        {"kind": "nll", "steps": 2, "learning_rate": 1e-5, "initialise_noise": True},
    ]
    config = config_for(tmp_path / "springs.xyz", model=model, stages=stages, validate_every=50)
    done = train(config, tmp_path / "run", report=lambda event: None)
    scores = done.scores["validation"].stress
    assert scores is not None
    assert done.validation is not None
    found = predict_part(done.ensemble, done.validation, "model")
    assert found.stress is not None
    block = found.structures
    error = voigt(found.stress.mean - block.stress).ravel()
    assert scores.count == 6 * len(block) == error.size
    assert scores.rmse == pytest.approx(float(np.sqrt(np.mean(error**2))), rel=1e-5)
    z = error / np.sqrt(voigt(found.stress.variance).ravel())
    assert scores.rzv == pytest.approx(float(z.std()), rel=1e-5)
    table = done.table()
    assert "stress [meV/Å³] " in table
    assert f"{1e3 * scores.mae:8.4f} {1e3 * scores.rmse:8.4f} {scores.nll:8.2f}" in table
    per_atom = done.scores["validation"].energy_per_atom
    assert per_atom is not None
    assert per_atom.rmse == pytest.approx(done.scores["validation"].energy.rmse / 2)
    assert "energy/atom [meV]" in table
    seen = [e for e in read_history(tmp_path / "run" / "history.jsonl") if e["event"] == "validation"]
    assert np.mean(seen[-1]["stress_rmse"]) < 0.7 * np.mean(seen[0]["stress_rmse"])
    begun = next(e for e in seen if e["stage"] == 1)
    np.testing.assert_allclose(begun["stress_rzv"], 1.0, rtol=1e-3)  # noise starts with the size of errors
    kappa = load(tmp_path / "run" / "model.safetensors").members.log_strain_rest
    assert kappa is not None
    assert kappa.shape == (2,)
    assert np.abs(kappa).min() > 0.1


def test_metrics_of_runs_without_stresses_are_those_of_before(tmp_path: Path) -> None:
    frames = crystals(12)
    for atoms in frames:
        del atoms.calc.results["stress"]
    write(tmp_path / "springs.xyz", frames, format="extxyz")
    stages = [{"kind": "squared_error", "steps": 2}]
    done = train(config_for(tmp_path / "springs.xyz", stages=stages), tmp_path / "run", report=lambda event: None)
    assert done.ensemble.members.log_strain_rest is None
    assert done.scores["validation"].stress is None
    assert "stress" not in done.table()
    assert "stress" not in (tmp_path / "run" / "history.jsonl").read_text()


def test_an_ensemble_predicts_stresses_of_labelled_structures_beside_others(tmp_path: Path) -> None:
    """Stresses are NaN where a structure has none, and the joint likelihood counts the six components."""
    from huefield.core.structure import pack
    from huefield.data.dataset import Part

    molecule = replace(structures()[2], cell=np.zeros((3, 3)), pbc=np.zeros(3, bool), stress=None)
    block = pack([*structures(), molecule], np.arange(4), "mixed")
    ensemble: Ensemble = random_ensemble(LocalNoise.Config(), 2).with_atom_energies({6: 0.0, 8: 0.0})
    found = predict_part(ensemble, Part("mixed", block, np.arange(4)), "model")
    assert found.stress is not None
    assert np.isnan(found.stress.mean).all((1, 2)).tolist() == [False, False, False, True]
    observed = found.observed_stress()
    assert observed is not None
    assert observed.structure.tolist() == [0] * 6 + [2] * 6
    np.testing.assert_allclose(observed.target[:6], voigt(block.stress[0]), rtol=1e-12)
    np.testing.assert_allclose(observed.mean[6:], voigt(found.stress.mean[2]), rtol=1e-12)
    np.testing.assert_array_equal(found.marginals.joint_count, 1 + 3 * block.sizes + np.array([6, 0, 6, 0]))
    for number in (0, 1):
        batch = make_batch([block[number]], CUTOFF, [SINGLE])
        alone = ensemble(batch.graph, strain=batch.labels.strain is not None).log_prob(batch.labels)[0]
        assert found.joint_nll is not None
        assert found.joint_nll[number] == pytest.approx(-float(alone), rel=1e-4)
