"""One step of training: ``(state, batch) -> (state, metrics)``, for one member.

What is known to go wrong when mean and variance are learnt together ([S22] Seitzer et al., ICLR 2022; Skafte et al.,
NeurIPS 2019) is met here: gradients are clipped, parameters are averaged over steps, noise outputs learn at rates of
their own, and a step that would do harm is not taken.
"""

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
"""How much of the running mean of the loss is kept in a step."""
EXPLOSION = 100.0
"""A loss so many mean deviations above its running mean is not followed."""
SMALLEST_DEVIATION = 1e-3
"""Mean deviation that is assumed at the least, relative to the running mean."""
LEARNT_FROM = 20
"""Losses that are seen before any counts as an explosion."""


class OptimiserConfig(FrozenConfig):
    """How gradients become changes of parameters, in all stages."""

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
    """What losses have been like, and which steps were not taken."""

    skipped: Int[Array, ""]
    """Steps of the stage that were not taken."""
    in_a_row: Int[Array, ""]
    """How many of the last steps."""
    seen: Int[Array, ""]
    mean: Float[Array, ""]
    deviation: Float[Array, ""]

    @classmethod
    def unknown(cls) -> "Health":
        """Before the first step."""
        zero, nothing = jnp.zeros((), int), jnp.zeros(())
        return cls(zero, zero, zero, nothing, nothing)

    def accepts(self, loss: Float[Array, ""], gradient_norm: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether a step may be taken: it has numbers, and its loss is not out of all proportion."""
        deviation = jnp.maximum(self.deviation, SMALLEST_DEVIATION * jnp.abs(self.mean))
        usual = (self.seen < LEARNT_FROM) | (loss - self.mean <= EXPLOSION * deviation)
        return jnp.isfinite(loss) & jnp.isfinite(gradient_norm) & usual

    def after(self, loss: Float[Array, ""], accepted: Bool[Array, ""]) -> "Health":
        """With one loss more."""
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
    """What a step changes."""

    member: ForceField
    averaged: ForceField
    """The moving average of the member's parameters."""
    optimiser: optax.OptState
    step: Int[Array, ""]
    """Steps of this stage, those included that were not taken."""
    rate: Float[Array, ""]
    """Factor on the learning rate, which falls when training has to go back."""
    health: Health


class StepMetrics(eqx.Module):
    """What a step tells."""

    loss: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    accepted: Bool[Array, ""]


def optimiser_for(stage: AbstractStage, config: OptimiserConfig) -> optax.GradientTransformation:
    """Adam with the stage's learning rate, which decays exponentially, clipped gradients and decoupled weight decay."""
    schedule = optax.exponential_decay(stage.learning_rate, max(stage.steps, 1), stage.decay)
    adam = optax.adamw(schedule, weight_decay=stage.weight_decay, mask=_decays)
    clip = optax.identity() if config.clip_norm is None else optax.clip_by_global_norm(config.clip_norm)
    return optax.chain(clip, adam)


def _decays(parameters: ForceField) -> ForceField:
    """Weights of the potential decay; offsets and γ of the noise model are not drawn to anything."""
    parts = jax.tree.map(lambda _: True, parameters.potential), jax.tree.map(lambda _: False, parameters.noise)
    return eqx.tree_at(lambda f: (f.potential, f.noise), parameters, parts)


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
        state: of the member.
        graph: structures of the batch, or of the part of it that this device has.
        labels: of these structures.
        stage: what is minimised.
        config: of the optimiser.
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
    """Learning rate of each parameter relative to the stage's."""
    mean_rate = 0.0 if config.freeze_mean else 1.0
    potential = jax.tree.map(
        lambda noisy: mean_rate + (config.noise_rate - mean_rate) * noisy, member.potential.serves_noise()
    )
    noise = jax.tree.map(
        lambda leaf: jnp.full_like(leaf, config.offset_rate), eqx.filter(member.noise, eqx.is_inexact_array)
    )
    parameters = eqx.filter(member, eqx.is_inexact_array)
    return eqx.tree_at(lambda f: (f.potential, f.noise), parameters, (potential, noise))


def _averaged(average: ForceField, member: ForceField, step: Int[Array, ""], decay: float) -> ForceField:
    """The moving average with one more term; in the first steps it forgets faster, or it would hold on to the start."""
    if not decay:
        return member
    kept = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(
        lambda a, p: (kept * a + (1 - kept) * p).astype(p.dtype) if eqx.is_inexact_array(p) else p, average, member
    )
