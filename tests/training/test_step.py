"""One step: what is learnt at which rate, what is averaged, and when a step is not taken."""

from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from huefield.core import Graph, Labels
from huefield.data import toy
from huefield.model.forcefield import ForceField
from huefield.training import NLLStage, OptimiserConfig, SquaredErrorStage
from huefield.training.stages import AbstractStage
from huefield.training.step import (
    EXPLOSION,
    LEARNT_FROM,
    MEMORY,
    Health,
    MemberState,
    StepMetrics,
    optimiser_for,
    start,
    step,
)

pytestmark = pytest.mark.usefixtures("x64")

POINTS = 6
NLL = NLLStage(steps=10, learning_rate=1e-2)
PLAIN, AVERAGING = OptimiserConfig(clip_norm=None), OptimiserConfig(average_decay=0.5)
compiled = eqx.filter_jit(step)


def problem() -> tuple[Graph, Labels]:
    data = toy.draw_toy(toy.ToyProcess(num_train=POINTS), np.linspace(-1, 1, 3), key=jax.random.key(0)).train
    return toy.toy_graph(data.x), toy.toy_labels(data)


def member() -> ForceField:
    config = {"potential": {"kind": "mlp", "width": 4, "depth": 1}, "noise": {"kind": "colored"}}
    return ForceField.Config.model_validate(config).build(key=jax.random.key(1))


def steps(count: int, stage: AbstractStage, config: OptimiserConfig) -> list[tuple[MemberState, StepMetrics]]:
    """States and what each step told."""
    state, found = start(member(), optimiser_for(stage, config)), []
    for _ in range(count):
        state, metrics = compiled(state, *problem(), stage, config)
        found.append((state, metrics))
    return found


def flat(tree: Any) -> np.ndarray:
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return np.concatenate([np.asarray(leaf).ravel() for leaf in leaves])


def parts(state: MemberState) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How far the mean, the noise outputs and the noise model have moved."""
    before, after = member(), state.member
    share = flat(before.potential.serves_noise())
    moved = flat(after.potential) - flat(before.potential)
    return moved[share == 0], moved[share == 1], flat(after.noise) - flat(before.noise)


@pytest.mark.parametrize(("fall", "half_way"), [("exponential", 0.01**0.5), ("cosine", (1 + 0.01) / 2)])
def test_the_rate_falls_to_the_decay_of_the_stage(fall, half_way):
    stage = SquaredErrorStage(steps=20, learning_rate=1e-2, decay=0.01, fall=fall)
    optimiser, moved = optimiser_for(stage, PLAIN), []
    ones = jax.tree.map(jnp.ones_like, eqx.filter(member(), eqx.is_inexact_array))
    memory = optimiser.init(ones)
    for _ in range(21):  # equal gradients: each step of Adam has the size of the rate
        updates, memory = optimiser.update(ones, memory, ones)
        moved.append(-float(jax.tree.leaves(updates)[0].ravel()[0]))
    np.testing.assert_allclose([moved[0], moved[10], moved[20]], [1e-2, 1e-2 * half_way, 1e-4], rtol=1e-4)


class TestHealth:
    def after(self, losses: list[float]) -> Health:
        health = Health.unknown()
        for loss in losses:
            value = jnp.asarray(loss)
            health = health.after(value, health.accepts(value, jnp.ones(())))
        return health

    def accepts(self, health: Health, loss: float, norm: float = 1.0) -> bool:
        return bool(health.accepts(jnp.asarray(loss), jnp.asarray(norm)))

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_what_is_no_number_is_never_accepted(self, bad: float) -> None:
        for health in (Health.unknown(), self.after([1.0] * 30)):
            assert not self.accepts(health, bad)
            assert not self.accepts(health, 1.0, norm=bad)

    def test_anything_finite_is_accepted_until_losses_are_known(self) -> None:
        assert self.accepts(self.after([1.0] * (LEARNT_FROM - 1)), 1e9)
        assert not self.accepts(self.after([1.0] * LEARNT_FROM), 1e9)

    def test_explosions_are_measured_in_deviations_from_the_running_mean(self) -> None:
        losses = list(np.random.default_rng(0).normal(5.0, 2.0, size=200))
        mean = deviation = 0.0
        for seen, loss in enumerate(losses):
            kept = seen / (seen + 1) if seen < LEARNT_FROM else MEMORY
            mean = kept * mean + (1 - kept) * loss
            deviation = kept * deviation + (1 - kept) * abs(loss - mean)
        health = self.after(losses)
        np.testing.assert_allclose([health.mean, health.deviation], [mean, deviation], rtol=1e-12)
        assert 0.5 < deviation < 4.0
        assert self.accepts(health, mean + 0.99 * EXPLOSION * deviation)
        assert not self.accepts(health, mean + 1.01 * EXPLOSION * deviation)
        assert self.accepts(health, -1e9)

    def test_failures_are_counted_and_forgotten_in_a_row(self) -> None:
        health = self.after([1.0, np.nan, np.nan, 2.0, np.nan])
        assert (int(health.skipped), int(health.in_a_row), int(health.seen)) == (3, 1, 2)
        assert float(health.mean) == pytest.approx(1.5)


def test_a_step_without_numbers_changes_nothing_but_the_count() -> None:
    graph, labels = problem()
    broken = Labels(labels.energy.at[2].set(np.nan), labels.forces, labels.energy_mask, labels.forces_mask)
    before, _ = steps(2, NLL, AVERAGING)[-1]
    after, metrics = compiled(before, graph, broken, NLL, AVERAGING)
    assert not metrics.accepted
    for name in ("member", "averaged", "optimiser", "rate"):
        assert eqx.tree_equal(getattr(before, name), getattr(after, name))
    assert (int(after.step), int(after.health.skipped), int(after.health.in_a_row)) == (3, 1, 1)


def test_a_gradient_without_numbers_is_noticed_though_the_loss_has_one() -> None:
    """√0 has a value and no derivative: energies of the network are made such that their loss has none either."""

    class Cusp(SquaredErrorStage):
        def loss(self, distribution: Any, labels: Labels, progress: Any) -> Any:
            parts = super().loss(distribution, labels, progress)
            nothing = jnp.sqrt(jnp.sum(0.0 * distribution.mean.energy))
            return eqx.tree_at(lambda p: p.sums, parts, parts.sums + nothing)

    state, metrics = steps(1, Cusp(steps=2), PLAIN)[-1]
    assert np.isfinite(metrics.loss)
    assert not metrics.accepted
    np.testing.assert_array_equal(flat(state.member), flat(member()))


def test_parts_learn_at_rates_of_their_own() -> None:
    (plain, _), *_ = steps(1, NLL, PLAIN)
    (scaled, _), *_ = steps(1, NLL, OptimiserConfig(clip_norm=None, noise_rate=3.0, offset_rate=0.1))
    for before, after, factor in zip(parts(plain), parts(scaled), (1.0, 3.0, 0.1), strict=True):
        assert np.abs(before).max() > 0
        np.testing.assert_allclose(after, factor * before, rtol=1e-9, atol=1e-15)


def test_a_frozen_mean_stays_where_it_is() -> None:
    state, _ = steps(3, NLL, OptimiserConfig(freeze_mean=True))[-1]
    mean, outputs, offsets = parts(state)
    assert np.abs(mean).max() == 0
    assert np.abs(outputs).max() > 0
    assert np.abs(offsets).max() > 0
    graph, _ = problem()
    before, after = member()(graph), state.member(graph)
    np.testing.assert_array_equal(before.mean.forces, after.mean.forces)
    assert not np.allclose(before.variance().energy, after.variance().energy)


def test_the_gradient_of_a_frozen_mean_is_not_clipped_with() -> None:
    (_, all_parts), *_ = steps(1, NLL, PLAIN)
    (_, noise_only), *_ = steps(1, NLL, OptimiserConfig(freeze_mean=True))
    assert 0 < noise_only.gradient_norm < all_parts.gradient_norm


def test_the_moving_average_is_that_of_a_loop() -> None:
    decay, average = AVERAGING.average_decay, flat(member())
    for number, (state, _) in enumerate(steps(8, NLL, AVERAGING)):
        kept = min(decay, (1 + number) / (10 + number))
        average = kept * average + (1 - kept) * flat(state.member)
        np.testing.assert_allclose(flat(state.averaged), average, rtol=1e-12, atol=1e-14)
    assert not np.allclose(average, flat(state.member))


def test_without_averaging_the_average_is_the_last_state() -> None:
    state, _ = steps(2, NLL, PLAIN)[-1]
    np.testing.assert_array_equal(flat(state.averaged), flat(state.member))


def test_adam_with_a_falling_rate_and_weight_decay_is_that_of_a_loop() -> None:
    """Decay of the weights is decoupled, and of the potential alone."""
    stage = SquaredErrorStage(steps=4, learning_rate=1e-2, decay=0.1, weight_decay=0.3)
    graph, labels = problem()

    @eqx.filter_jit
    def gradient(given: ForceField) -> ForceField:
        return eqx.filter_grad(lambda m: stage.loss(m(graph), labels, jnp.zeros(())).value)(given)

    found = [member(), *(state.member for state, _ in steps(4, stage, PLAIN))]
    first = second = np.zeros_like(flat(found[0].potential))
    for number, (before, after) in enumerate(pairwise(found)):
        g, weights = flat(gradient(before).potential), flat(before.potential)
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        unbiased = first / (1 - 0.9 ** (number + 1)) / (np.sqrt(second / (1 - 0.999 ** (number + 1))) + 1e-8)
        rate = 1e-2 * 0.1 ** (number / 4)
        np.testing.assert_allclose(flat(after.potential), weights - rate * (unbiased + 0.3 * weights), rtol=1e-7)
        np.testing.assert_array_equal(flat(after.noise), flat(before.noise))


def test_a_smaller_rate_makes_smaller_steps() -> None:
    state = start(member(), optimiser_for(NLL, PLAIN))
    slow, _ = compiled(eqx.tree_at(lambda s: s.rate, state, jnp.asarray(0.3)), *problem(), NLL, PLAIN)
    fast, _ = compiled(state, *problem(), NLL, PLAIN)
    for a, b in zip(parts(slow), parts(fast), strict=True):
        np.testing.assert_allclose(a, 0.3 * b, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("reduction", ["structure", "averages"])
def test_the_loss_is_reduced_as_the_stage_says(reduction: str) -> None:
    stage = SquaredErrorStage(steps=2, reduction=reduction, energy_weight=2.0, force_weight=3.0)
    graph, labels = problem()
    distribution = member()(graph)
    mean = distribution.mean
    energy, forces = (np.asarray(a - b) for a, b in ((labels.energy, mean.energy), (labels.forces, mean.forces)))
    if reduction == "averages":
        expected = 2.0 * 0.5 * np.mean(energy**2) + 3.0 * 0.5 * np.mean(forces**2)
    else:
        expected = (2.0 * 0.5 * np.sum(energy**2) + 3.0 * 0.5 * np.sum(forces**2)) / POINTS
    assert float(stage.loss(distribution, labels, jnp.zeros(())).value) == pytest.approx(expected, rel=1e-12)
