"""Training on tiny problems, on one batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from huefield.core import Graph, Labels, Partition
from huefield.data import toy
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.training import BetaNLLStage, NLLStage, SquaredErrorStage, Stage, StepReport, TrainingDivergedError, fit
from huefield.training.stages import AbstractStage

pytestmark = pytest.mark.usefixtures("x64")

SMALL = {"kind": "mlp", "width": 8, "depth": 1}


@pytest.fixture
def problem() -> tuple[Graph, Labels]:
    data = toy.draw_toy(toy.ToyProcess(num_train=8), np.linspace(-1, 1, 5), key=jax.random.key(0))
    return toy.toy_graph(data.train.x), toy.toy_labels(data.train)


def ensemble(noise: dict[str, object], members: int = 2, strategy: str = "vmap") -> Ensemble:
    config = ForceField.Config.model_validate({"potential": SMALL, "noise": noise})
    return Ensemble.build(config, members, key=jax.random.key(1), strategy=strategy)


@pytest.mark.parametrize("noise", [{"kind": "vanilla"}, {"kind": "white"}, {"kind": "colored"}])
def test_squared_error_falls(noise: dict[str, object], problem: tuple[Graph, Labels]) -> None:
    losses = []
    fit(
        ensemble(noise),
        *problem,
        [SquaredErrorStage(steps=60, learning_rate=1e-2)],
        report_every=20,
        report=losses.append,
    )
    assert [p.step for p in losses] == [20, 40, 60]
    assert np.all(losses[-1].loss < 0.7 * losses[0].loss)


@pytest.mark.parametrize("joint", [False, True])
def test_three_stages_lower_the_nll(joint: bool, problem: tuple[Graph, Labels]) -> None:
    stages = [
        SquaredErrorStage(steps=40, learning_rate=1e-2),
        BetaNLLStage(steps=40, learning_rate=1e-2, initialise_noise=True),
        NLLStage(steps=80, learning_rate=1e-2, joint=joint),
    ]
    seen: list[StepReport] = []
    trained = fit(ensemble({"kind": "colored"}), *problem, stages, report_every=20, report=seen.append)
    nll = [p.loss.mean() for p in seen if p.stage_name == "nll"]
    assert nll[-1] < nll[0] - 0.2
    assert np.all(np.asarray(trained.members.noise.gamma.gamma) > 0)


def test_the_first_stage_leaves_the_noise_alone(problem: tuple[Graph, Labels]) -> None:
    before = ensemble({"kind": "colored"})
    after = fit(before, *problem, [SquaredErrorStage(steps=10)])
    assert eqx.tree_equal(before.members.noise, after.members.noise)
    assert not eqx.tree_equal(before.members.potential, after.members.potential)


@pytest.mark.parametrize(
    "noise",
    [{"kind": "white"}, {"kind": "colored", "channels": 2}, {"kind": "colored", "gamma": "atom"}, {"kind": "local"}],
)
def test_noise_starts_at_the_training_errors(noise: dict[str, object], problem: tuple[Graph, Labels]) -> None:
    graph, labels = problem
    start = fit(ensemble(noise), graph, labels, [NLLStage(steps=0, initialise_noise=True)])
    for index in range(2):
        distribution = eqx.filter_jit(start.member(index))(graph)
        energy_rmse = np.sqrt(np.mean((labels.energy - distribution.mean.energy) ** 2))
        force_rmse = np.sqrt(np.mean((labels.forces - distribution.mean.forces) ** 2))
        np.testing.assert_allclose(np.sqrt(distribution.variance().energy), energy_rmse, rtol=1e-5)
        np.testing.assert_allclose(np.sqrt(distribution.variance().forces), force_rmse, rtol=1e-5)


def test_trained_noise_is_kept_unless_a_stage_asks_for_a_new_start(problem: tuple[Graph, Labels]) -> None:
    trained = fit(ensemble({"kind": "colored"}), *problem, [NLLStage(steps=5)])
    assert eqx.tree_equal(fit(trained, *problem, [NLLStage(steps=0)]).members, trained.members)
    again = fit(trained, *problem, [NLLStage(steps=0, initialise_noise=True)])
    assert not eqx.tree_equal(again.members.noise, trained.members.noise)
    assert eqx.tree_equal(again.members.potential, trained.members.potential)


def test_weight_decay_shrinks_the_potential_and_not_the_noise(problem: tuple[Graph, Labels]) -> None:
    start = ensemble({"kind": "colored"})
    plain, decayed = (fit(start, *problem, [SquaredErrorStage(steps=30, weight_decay=w)]) for w in (0.0, 1.0))
    assert eqx.tree_equal(plain.members.noise, decayed.members.noise)
    norms = [float(jnp.abs(e.members.potential.network.layers[0].weight).sum()) for e in (plain, decayed)]
    assert norms[1] < norms[0]


@pytest.mark.parametrize("stage", [NLLStage(steps=1), NLLStage(steps=1, joint=True), BetaNLLStage(steps=1)])
def test_a_model_without_noise_has_no_likelihood_to_train(stage: AbstractStage, problem: tuple[Graph, Labels]) -> None:
    with pytest.raises(ValueError, match=r"stage 1 \(.*Stage\) trains the noise, but VanillaNoise has none"):
        fit(ensemble({"kind": "vanilla"}), *problem, [stage])


def test_energies_alone_are_enough_to_start_the_noise(problem: tuple[Graph, Labels]) -> None:
    graph, labels = problem
    energies = Labels.from_arrays(graph.partition, 1, energy=labels.energy)
    start = fit(ensemble({"kind": "colored"}), graph, energies, [NLLStage(steps=0, initialise_noise=True)])
    np.testing.assert_allclose(start.members.noise.gamma.gamma, 1.0)
    assert np.all(np.isfinite(start.members.noise.offset))


def test_members_come_out_the_same_side_by_side_or_one_after_the_other(problem: tuple[Graph, Labels]) -> None:
    stages = [SquaredErrorStage(steps=15), NLLStage(steps=15)]
    together = fit(ensemble({"kind": "colored"}, strategy="vmap"), *problem, stages)
    in_turn = fit(ensemble({"kind": "colored"}, strategy="loop"), *problem, stages)
    assert eqx.tree_equal(together.members, in_turn.members, rtol=1e-8, atol=1e-10)


def test_a_member_does_not_depend_on_its_neighbours(problem: tuple[Graph, Labels]) -> None:
    both = ensemble({"kind": "colored"}, members=2)
    alone = Ensemble.from_members([both.member(1)], strategy="vmap")
    stages = [NLLStage(steps=20)]
    trained_both, trained_alone = fit(both, *problem, stages), fit(alone, *problem, stages)
    assert eqx.tree_equal(trained_both.member(1), trained_alone.member(0), rtol=1e-8, atol=1e-10)


def test_reports_change_nothing(problem: tuple[Graph, Labels]) -> None:
    stages = [BetaNLLStage(steps=21)]
    seldom = fit(ensemble({"kind": "colored"}), *problem, stages, report_every=100)
    often = fit(ensemble({"kind": "colored"}), *problem, stages, report_every=7)
    assert eqx.tree_equal(seldom.members, often.members)


def test_beta_goes_from_its_start_to_its_end(problem: tuple[Graph, Labels]) -> None:
    graph, labels = problem
    stage, first = BetaNLLStage(steps=11, beta_start=0.8, beta_end=0.2), ensemble({"kind": "colored"}).member(0)(graph)
    fixed = {beta: BetaNLLStage(steps=11, beta_start=beta, beta_end=beta) for beta in (0.8, 0.5, 0.2)}
    for progress, beta in ((0.0, 0.8), (0.5, 0.5), (1.0, 0.2)):
        got = stage.loss(first, labels, jnp.asarray(progress)).value
        np.testing.assert_allclose(got, fixed[beta].loss(first, labels, jnp.asarray(0.0)).value, rtol=1e-12)


def test_a_diverged_member_is_named(problem: tuple[Graph, Labels]) -> None:
    good = ensemble({"kind": "vanilla"}, members=3)
    weights = good.members.potential.network.layers[0].weight
    broken = eqx.tree_at(lambda e: e.members.potential.network.layers[0].weight, good, weights.at[1].set(jnp.nan))
    with pytest.raises(TrainingDivergedError, match=r"member 1 diverged at step 10 of stage 1"):
        fit(broken, *problem, [SquaredErrorStage(steps=20)], report_every=10)


def test_unknown_keys_of_a_stage_are_refused() -> None:
    with pytest.raises(ValidationError, match="learning_rat"):
        TypeAdapter(Stage).validate_python({"kind": "nll", "steps": 3, "learning_rat": 0.1})
    with pytest.raises(ValidationError, match="squared_error"):
        TypeAdapter(Stage).validate_python({"kind": "mse", "steps": 3})


def test_golden_run() -> None:
    """A fixed seed gives fixed numbers; a change here is a change of the method and belongs in the changelog."""
    positions = jnp.linspace(-1.0, 1.0, 5)[:, None]
    partition = Partition.from_sizes([1] * 5)
    graph = Graph(positions, jnp.zeros(5, int), partition)
    labels = Labels.from_arrays(partition, 1, energy=positions[:, 0] ** 2, forces=-2 * positions)
    stages = [SquaredErrorStage(steps=30), BetaNLLStage(steps=30), NLLStage(steps=30, joint=True)]
    trained = fit(ensemble({"kind": "colored", "gamma": "atom", "channels": 2}), graph, labels, stages)
    prediction = trained.predict(graph)
    got = [prediction.energy[1], prediction.forces[3, 0], *prediction.distribution.variance().energy[:2]]
    np.testing.assert_allclose(got, GOLDEN, rtol=1e-6)


GOLDEN = [0.3110359963106674, 0.00012669319989608296, 0.7419265162508956, 0.749164556470612]
