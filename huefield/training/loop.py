"""Train the members of an ensemble through stages."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from huefield.core import Graph, Labels
from huefield.core.lowrank import safe_sqrt
from huefield.model.forcefield import Ensemble, ForceField, Strategy, map_members
from huefield.support.errors import HuefieldError
from huefield.training.likelihoods import squared_error
from huefield.training.reports import Clock, StepReport
from huefield.training.stages import AbstractStage
from huefield.training.step import MemberState, OptimiserConfig, StepMetrics, optimiser_for, start, step

DEFAULT_OPTIMISER = OptimiserConfig()
SMALLEST_INITIAL_NOISE = 1e-4
"""Noise that training starts from at the least, [eV] and [eV/Å]."""


class TrainingDivergedError(HuefieldError):
    """The loss of a member is not a number; the message says which and when."""


def fit(
    ensemble: Ensemble,
    graph: Graph,
    labels: Labels,
    stages: Sequence[AbstractStage],
    *,
    config: OptimiserConfig = DEFAULT_OPTIMISER,
    chunk: int = 500,
    report: Callable[[StepReport], None] = lambda progress: None,
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
        raise HuefieldError(f"chunk must be at least 1, but is {chunk}")
    noise = ensemble.members.noise
    for index, stage in enumerate(stages):
        if stage.trains_noise and not noise.has_variance:
            raise HuefieldError(
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
    report: Callable[[StepReport], None],
) -> Ensemble:
    states = map_members(lambda member: start(member, optimiser_for(stage, config)), ensemble.members, "vmap")
    done, clock = 0, Clock()
    while done < stage.steps:
        length = min(chunk, stage.steps - done)
        states, metrics = _run_chunk(states, graph, labels, stage, config, length, ensemble.strategy)
        done += length
        noise = {name: np.asarray(value) for name, value in states.member.noise.watched().items()}
        progress = StepReport(
            index,
            stage.kind,
            done,
            stage.steps,
            clock.rate(done),
            np.asarray(metrics.loss),
            np.asarray(metrics.gradient_norm),
            np.asarray(states.health.skipped),
            noise,
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
    """The ensemble with each member's noise levels set to its own root mean squared errors."""
    energies = jnp.sum(labels.energy_mask)
    components = labels.forces.shape[1] * jnp.sum(labels.forces_mask)

    def initialise(member: ForceField) -> ForceField:
        terms = squared_error(member(graph), labels)
        energy_rmse, force_rmse = (
            jnp.where(count > 0, safe_sqrt(2.0 * jnp.sum(halves) / jnp.maximum(count, 1)), jnp.nan)
            for halves, count in ((terms.energy, energies), (terms.forces, components))
        )
        return with_noise_levels(member, energy_rmse, force_rmse)

    return eqx.tree_at(lambda e: e.members, ensemble, map_members(initialise, ensemble.members, ensemble.strategy))


def with_noise_levels(member: ForceField, energy_rmse: Float[Array, ""], force_rmse: Float[Array, ""]) -> ForceField:
    """A member whose noise has the size of these errors.

    Where there were no energies (or no forces) to compare with, which is said by NaN, the other number stands in, which
    makes γ = 1 Å⁻². Errors below ``SMALLEST_INITIAL_NOISE`` count as that.
    """
    pairs = ((energy_rmse, force_rmse), (force_rmse, energy_rmse))
    levels = [jnp.maximum(jnp.where(jnp.isnan(own), other, own), SMALLEST_INITIAL_NOISE) for own, other in pairs]
    return eqx.tree_at(lambda m: m.noise, member, member.noise.initialised(*levels))


def _require_sane(progress: StepReport) -> None:
    bad = np.flatnonzero(~np.isfinite(progress.loss))
    if bad.size:
        raise TrainingDivergedError(
            f"the loss of member{'s' if bad.size > 1 else ''} {', '.join(map(str, bad))} is not a number by step "
            f"{progress.step} of stage {progress.stage + 1} ({progress.stage_name}); try a smaller learning rate"
        )
