"""One step of training: ``(state, batch) -> (state, metrics)``, for one member.

Mean and variance that are learnt together can harm each other ([S22] Seitzer et al., ICLR 2022; Skafte et al., NeurIPS
2019). Precautions: gradients are clipped, parameters are averaged over steps, noise outputs have learning rates of
their own, and harmful steps are skipped.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int
from pydantic import Field

from huefield.core import Graph, Labels
from huefield.model.forcefield import ForceField
from huefield.support.config import FrozenConfig
from huefield.training.stages import AbstractStage

MEMORY = 0.98
"""Decay of the running mean of the loss."""
EXPLOSION = 100.0
"""Number of mean deviations above the running mean from which a step is skipped."""
SMALLEST_DEVIATION = 1e-3
"""Smallest mean deviation, relative to the running mean."""
LEARNT_FROM = 20
"""Number of losses before any counts as an explosion."""


class OptimiserConfig(FrozenConfig):
    """Settings of the optimiser for all stages."""

    clip_norm: float | None = Field(
        10.0, gt=0, le=1e12, description="clip gradients to this norm; null for no clipping"
    )
    average_decay: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="decay of the moving average of the parameters, which the model keeps; 0 for no average",
    )
    noise_rate: float = Field(
        1.0, gt=0, le=1e4, description="learning rate of the noise outputs, relative to the other parameters"
    )
    offset_rate: float = Field(
        1.0, gt=0, le=1e4, description="relative learning rate of the noise model's offsets and γ"
    )
    freeze_mean: bool = Field(False, description="train the noise only; energies and forces stay as they are")


class Health(eqx.Module):
    """Statistics of the loss, and the number of skipped steps."""

    skipped: Int[Array, ""]
    """Skipped steps of the stage."""
    in_a_row: Int[Array, ""]
    """Skipped steps since the last one that was taken."""
    seen: Int[Array, ""]
    mean: Float[Array, ""]
    deviation: Float[Array, ""]

    @classmethod
    def unknown(cls) -> "Health":
        """Statistics before the first step."""
        zero, nothing = jnp.zeros((), int), jnp.zeros(())
        return cls(zero, zero, zero, nothing, nothing)

    def accepts(self, loss: Float[Array, ""], gradient_norm: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether to take a step: loss and gradient are finite, and the loss has not exploded."""
        deviation = jnp.maximum(self.deviation, SMALLEST_DEVIATION * jnp.abs(self.mean))
        usual = (self.seen < LEARNT_FROM) | (loss - self.mean <= EXPLOSION * deviation)
        return jnp.isfinite(loss) & jnp.isfinite(gradient_norm) & usual

    def after(self, loss: Float[Array, ""], accepted: Bool[Array, ""]) -> "Health":
        """Statistics with one more loss."""
        kept = jnp.where(self.seen < LEARNT_FROM, self.seen / (self.seen + 1.0), MEMORY).astype(loss.dtype)
        mean = kept * self.mean + (1 - kept) * loss
        deviation = kept * self.deviation + (1 - kept) * jnp.abs(loss - mean)
        return Health(
            skipped=self.skipped + ~accepted,
            in_a_row=jnp.where(accepted, 0, self.in_a_row + 1),
            seen=self.seen + accepted,
            mean=jnp.where(accepted, mean, self.mean),
            deviation=jnp.where(accepted, deviation, self.deviation),
        )


class MemberState(eqx.Module):
    """State of a member, which a step changes."""

    member: ForceField
    averaged: ForceField
    """The moving average of the member's parameters."""
    optimiser: optax.OptState
    step: Int[Array, ""]
    """Steps of this stage, including skipped ones."""
    rate: Float[Array, ""]
    """Factor on the learning rate, reduced when training returns to a checkpoint."""
    health: Health


class StepMetrics(eqx.Module):
    """Metrics of a step."""

    loss: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    accepted: Bool[Array, ""]


def optimiser_for(stage: AbstractStage, config: OptimiserConfig) -> optax.GradientTransformation:
    """Adam with the stage's learning rate, which falls, clipped gradients and decoupled weight decay."""
    falls = {"exponential": optax.exponential_decay, "cosine": optax.cosine_decay_schedule}
    schedule = falls[stage.fall](stage.learning_rate, max(stage.steps, 1), stage.decay)
    adam = optax.adamw(schedule, weight_decay=stage.weight_decay, mask=_decays)
    clip = optax.identity() if config.clip_norm is None else optax.clip_by_global_norm(config.clip_norm)
    return optax.chain(clip, adam)


def _decays(parameters: ForceField) -> ForceField:
    """Weights of the potential decay; offsets and γ of the noise model do not."""
    nothing = jax.tree.map(lambda _: False, parameters)
    return replace(nothing, potential=jax.tree.map(lambda _: True, parameters.potential))


def start(member: ForceField, optimiser: optax.GradientTransformation) -> MemberState:
    """The state before the first step of a stage."""
    memory = optimiser.init(eqx.filter(member, eqx.is_inexact_array))
    return MemberState(member, member, memory, jnp.zeros((), int), jnp.ones(()), Health.unknown())


def step(
    state: MemberState,
    graph: Graph,
    labels: Labels,
    stage: AbstractStage,
    config: OptimiserConfig,
    axis: str | None = None,
) -> tuple[MemberState, StepMetrics]:
    """One gradient step.

    Args:
        state: state of the member.
        graph: structures of the batch, or of this device's part of it.
        labels: labels of these structures.
        stage: the objective.
        config: settings of the optimiser.
        axis: name of the device axis that batches are divided over; None for one device.
    """
    optimiser = optimiser_for(stage, config)

    def everywhere(local: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return local if axis is None else jax.lax.psum(local, axis)

    def objective(member: ForceField) -> Float[Array, ""]:
        progress = jnp.minimum(state.step / max(stage.steps - 1, 1), 1.0)
        parts = stage.loss(stage.distribution(member, graph, labels), labels, progress)
        return eqx.tree_at(lambda p: p.counts, parts, everywhere(parts.counts)).value

    loss, gradient = jax.tree.map(everywhere, eqx.filter_value_and_grad(objective)(state.member))
    shares = _rates(state.member, config)
    if config.freeze_mean:
        gradient = jax.tree.map(lambda g, share: jnp.where(share > 0, g, 0.0), gradient, shares)
    norm = optax.tree.norm(gradient)
    accepted = state.health.accepts(loss, norm)
    parameters = eqx.filter(state.member, eqx.is_inexact_array)
    updates, memory = optimiser.update(gradient, state.optimiser, parameters)
    updates = jax.tree.map(lambda u, share: u * (share * state.rate).astype(u.dtype), updates, shares)
    member = eqx.apply_updates(state.member, updates)
    averaged = _averaged(state.averaged, member, state.step, config.average_decay)
    old, new = (state.member, state.averaged, state.optimiser), (member, averaged, memory)
    member, averaged, memory = jax.tree.map(lambda o, n: jnp.where(accepted, n, o) if eqx.is_array(n) else n, old, new)
    health = state.health.after(loss, accepted)
    after = MemberState(member, averaged, memory, state.step + 1, state.rate, health)
    return after, StepMetrics(loss, norm, accepted)


def _rates(member: ForceField, config: OptimiserConfig) -> ForceField:
    """Learning rate of each parameter, relative to that of the stage."""
    mean_rate = 0.0 if config.freeze_mean else 1.0
    potential = jax.tree.map(
        lambda noisy: mean_rate + (config.noise_rate - mean_rate) * noisy, member.potential.serves_noise()
    )
    parameters = eqx.filter(member, eqx.is_inexact_array)
    rates = jax.tree.map(lambda leaf: jnp.full_like(leaf, config.offset_rate), parameters)
    return replace(rates, potential=potential)


def _averaged(average: ForceField, member: ForceField, step: Int[Array, ""], decay: float) -> ForceField:
    """The moving average with one more term; it decays faster in the first steps, to forget the initial parameters."""
    if not decay:
        return member
    kept = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(
        lambda a, p: (kept * a + (1 - kept) * p).astype(p.dtype) if eqx.is_inexact_array(p) else p, average, member
    )
