"""Compiled programs of a stage: one step of all members, each on its own batch, on all devices."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool

from huefield.data.batches.batching import Batch
from huefield.model.ensemble import Strategy, map_members
from huefield.model.forcefield import ForceField
from huefield.training.mesh import BATCHES, DATA, KEPT_PROGRAMS, STATES, Layout, compiled
from huefield.training.stages import AbstractStage
from huefield.training.step import MemberState, OptimiserConfig, StepMetrics, optimiser_for, start, step


class StageProgram:
    """Steps of one stage. States and members have a leading axis of members."""

    def __init__(
        self,
        members: ForceField,
        stage: AbstractStage,
        config: OptimiserConfig,
        layout: Layout,
        strategy: Strategy = "auto",
    ) -> None:
        self.stage, self.layout = stage, layout
        self._start = _compiled_start(stage, config)
        self.begun: MemberState = eqx.filter_eval_shape(self._start, members)
        """Shapes of the states."""
        self.static = eqx.partition(self.begun, _is_shape)[1]
        axis = DATA if layout.data_parts > 1 else None
        self._step = _compiled_step(layout.mesh, self.static, stage, config, axis, strategy)

    def start(self, members: ForceField) -> MemberState:
        """The states before the first step."""
        return self.layout.put(self._start(self.layout.fetch(members)), self.layout.states)

    def step(self, states: MemberState, batch: Batch) -> tuple[MemberState, StepMetrics]:
        """One step of each member. The memory of ``states`` is reused: do not use it afterwards."""
        arrays, metrics = self._step(eqx.filter(states, eqx.is_array), batch)
        return eqx.combine(arrays, self.static), metrics


@lru_cache(KEPT_PROGRAMS)
def _compiled_start(stage: AbstractStage, config: OptimiserConfig) -> Callable[[ForceField], MemberState]:
    optimiser = optimiser_for(stage, config)
    return eqx.filter_jit(eqx.filter_vmap(lambda member: start(member, optimiser)))


@lru_cache(KEPT_PROGRAMS)
def _compiled_step(
    mesh: Mesh,
    static: MemberState,
    stage: AbstractStage,
    config: OptimiserConfig,
    axis: str | None,
    strategy: Strategy,
) -> Callable[..., Any]:
    def one(given: tuple[MemberState, Batch]) -> tuple[MemberState, StepMetrics]:
        arrays, batch = given
        after, metrics = step(eqx.combine(arrays, static), batch.graph, batch.labels, stage, config, axis)
        return eqx.filter(after, eqx.is_array), metrics

    def local(arrays: MemberState, batch: Batch) -> tuple[MemberState, StepMetrics]:
        return map_members(one, (arrays, jax.tree.map(lambda x: x[:, 0], batch)), strategy)

    return compiled(local, mesh, (STATES, BATCHES), (0,))


@eqx.filter_jit
def chosen(old: ForceField, new: ForceField, which: Bool[Array, " M"]) -> ForceField:
    """The old members, with the selected ones replaced by new ones."""

    def choose(before: Any, after: Any) -> Any:
        if not eqx.is_array(after):
            return after
        return jnp.where(which.reshape(-1, *[1] * (after.ndim - 1)), after, before)

    return jax.tree.map(choose, old, new)


def _is_shape(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)
