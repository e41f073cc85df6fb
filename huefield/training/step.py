"""One step of training: ``(state, batch) -> (state, metrics)``, for one member."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from huefield.core import Graph, Labels
from huefield.forcefield import ForceField
from huefield.training.stages import AbstractStage


class MemberState(eqx.Module):
    """What a step changes: the member, the optimiser's memory and the count of steps in this stage."""

    member: ForceField
    optimiser: optax.OptState
    step: Int[Array, ""]


class StepMetrics(eqx.Module):
    """What a step tells."""

    loss: Float[Array, ""]
    gradient_norm: Float[Array, ""]


def optimiser_for(stage: AbstractStage, clip_norm: float) -> optax.GradientTransformation:
    """Adam with the stage's learning rate, which decays exponentially, clipped gradients and decoupled weight decay."""
    schedule = optax.exponential_decay(stage.learning_rate, max(stage.steps, 1), stage.decay)
    adam = optax.adamw(schedule, weight_decay=stage.weight_decay, mask=_decays)
    return optax.chain(optax.clip_by_global_norm(clip_norm), adam)


def _decays(parameters: ForceField) -> ForceField:
    """Weights of the potential decay; offsets and γ of the noise model are not drawn to anything."""
    parts = jax.tree.map(lambda _: True, parameters.potential), jax.tree.map(lambda _: False, parameters.noise)
    return eqx.tree_at(lambda f: (f.potential, f.noise), parameters, parts)


def start(member: ForceField, optimiser: optax.GradientTransformation) -> MemberState:
    """The state before the first step of a stage."""
    return MemberState(member, optimiser.init(eqx.filter(member, eqx.is_inexact_array)), jnp.zeros((), int))


def step(
    state: MemberState, graph: Graph, labels: Labels, stage: AbstractStage, optimiser: optax.GradientTransformation
) -> tuple[MemberState, StepMetrics]:
    """One gradient step."""

    def objective(member: ForceField) -> Float[Array, ""]:
        progress = state.step / max(stage.steps - 1, 1)
        return stage.loss(member(graph), labels, progress)

    loss, gradient = eqx.filter_value_and_grad(objective)(state.member)
    parameters = eqx.filter(state.member, eqx.is_inexact_array)
    updates, memory = optimiser.update(gradient, state.optimiser, parameters)
    member = eqx.apply_updates(state.member, updates)
    metrics = StepMetrics(jax.lax.stop_gradient(loss), optax.tree.norm(gradient))
    return MemberState(member, memory, state.step + 1), metrics
