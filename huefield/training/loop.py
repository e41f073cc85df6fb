"""Train the members of an ensemble through stages."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from huefield.core import Graph, Labels
from huefield.core.lowrank import safe_sqrt
from huefield.forcefield import Ensemble, ForceField, Strategy, map_members
from huefield.training.likelihoods import squared_error
from huefield.training.stages import AbstractStage
from huefield.training.step import MemberState, OptimiserConfig, StepMetrics, optimiser_for, start, step

DEFAULT_OPTIMISER = OptimiserConfig()
SMALLEST_INITIAL_NOISE = 1e-4
"""Noise that training starts from at the least, [eV] and [eV/Å]."""


class Progress(eqx.Module):
    """How far training is, after a chunk of steps."""

    stage: int
    stage_name: str
    step: int
    stage_steps: int
    loss: Float[np.ndarray, " M"]
    gradient_norm: Float[np.ndarray, " M"]


class TrainingDivergedError(RuntimeError):
    """The loss of a member is not a number; the message says which and when."""


def fit(
    ensemble: Ensemble,
    graph: Graph,
    labels: Labels,
    stages: Sequence[AbstractStage],
    *,
    config: OptimiserConfig = DEFAULT_OPTIMISER,
    chunk: int = 500,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Ensemble:
    """Train all members on one batch, stage after stage.

    Args:
        ensemble: what to start from.
        graph: the structures.
        labels: their energies and forces.
        stages: what to minimise, in order.
        config: of the optimiser; what comes out are the parameters themselves, not their moving average.
        chunk: steps in one call of the compiled program, and between two reports.
        report: called after each chunk.
    """
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, but is {chunk}")
    noise = ensemble.members.noise
    for index, stage in enumerate(stages):
        if stage.trains_noise and not noise.has_variance:
            raise ValueError(
                f"stage {index + 1} ({type(stage).__name__}) trains the noise, but {type(noise).__name__} has none"
            )
        if stage.initialise_noise:
            ensemble = with_noise_from_errors(ensemble, graph, labels)
        ensemble = _run_stage(ensemble, graph, labels, stage, index, config, chunk, report)
    return ensemble


def _run_stage(
    ensemble: Ensemble,
    graph: Graph,
    labels: Labels,
    stage: AbstractStage,
    index: int,
    config: OptimiserConfig,
    chunk: int,
    report: Callable[[Progress], None],
) -> Ensemble:
    states = map_members(lambda member: start(member, optimiser_for(stage, config)), ensemble.members, "vmap")
    done = 0
    while done < stage.steps:
        length = min(chunk, stage.steps - done)
        states, metrics = _run_chunk(states, graph, labels, stage, config, length, ensemble.strategy)
        done += length
        progress = Progress(
            index,
            type(stage).__name__,
            done,
            stage.steps,
            np.asarray(metrics.loss),
            np.asarray(metrics.gradient_norm),
        )
        _require_sane(progress)
        report(progress)
    return eqx.tree_at(lambda e: e.members, ensemble, states.member)


@eqx.filter_jit
def _run_chunk(
    states: MemberState,
    graph: Graph,
    labels: Labels,
    stage: AbstractStage,
    config: OptimiserConfig,
    length: int,
    strategy: Strategy,
) -> tuple[MemberState, StepMetrics]:
    def run(state: MemberState) -> tuple[MemberState, StepMetrics]:
        arrays, static = eqx.partition(state, eqx.is_array)

        def body(carry: MemberState, _: None) -> tuple[MemberState, StepMetrics]:
            after, metrics = step(eqx.combine(carry, static), graph, labels, stage, config)
            return eqx.filter(after, eqx.is_array), metrics

        arrays, metrics = jax.lax.scan(body, arrays, None, length=length)
        return eqx.combine(arrays, static), jax.tree.map(lambda x: x[-1], metrics)

    return map_members(run, states, strategy)


@eqx.filter_jit
def with_noise_from_errors(ensemble: Ensemble, graph: Graph, labels: Labels) -> Ensemble:
    """The ensemble with each member's noise levels set to its own root mean squared errors.

    Where there are no energies (or no forces) to compare with, the other number stands in, which makes γ = 1 Å⁻².
    Errors below ``SMALLEST_INITIAL_NOISE`` count as that.
    """
    energies = jnp.sum(labels.energy_mask)
    components = labels.forces.shape[1] * jnp.sum(labels.forces_mask)

    def initialise(member: ForceField) -> ForceField:
        terms = squared_error(member(graph), labels)
        energy_rmse = safe_sqrt(2.0 * jnp.sum(terms.energy) / jnp.maximum(energies, 1))
        force_rmse = safe_sqrt(2.0 * jnp.sum(terms.forces) / jnp.maximum(components, 1))
        levels = (
            jnp.maximum(jnp.where(energies > 0, energy_rmse, force_rmse), SMALLEST_INITIAL_NOISE),
            jnp.maximum(jnp.where(components > 0, force_rmse, energy_rmse), SMALLEST_INITIAL_NOISE),
        )
        return eqx.tree_at(lambda m: m.noise, member, member.noise.initialised(*levels))

    return eqx.tree_at(lambda e: e.members, ensemble, map_members(initialise, ensemble.members, ensemble.strategy))


def _require_sane(progress: Progress) -> None:
    bad = np.flatnonzero(~np.isfinite(progress.loss))
    if bad.size:
        raise TrainingDivergedError(
            f"the loss of member{'s' if bad.size > 1 else ''} {', '.join(map(str, bad))} is not a number by step "
            f"{progress.step} of stage {progress.stage + 1} ({progress.stage_name}); try a smaller learning rate"
        )
