"""Metrics of each member on the validation data: [J23] arXiv:2312.04174v1, appendix "Reliability Diagrams".

Devices sum over structures and force components, batch by batch, as batches may be divided over many devices. The sums
are divided at the end, in double precision. :mod:`huefield.evaluation` evaluates whole ensembles.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from huefield.core import Gaussian, Labels
from huefield.core.gaussian import strain_residual
from huefield.core.lowrank import log_density
from huefield.data.batches.batching import Batch
from huefield.model.ensemble import Strategy, map_members
from huefield.model.forcefield import ForceField
from huefield.training.mesh import DATA, KEPT_PROGRAMS, SHARED, STATES, Layout, compiled
from huefield.training.stages import AbstractStage


class ValidationSums(eqx.Module):
    """Sums over the labels of a batch."""

    criterion: Float[Array, " T"]
    """Terms of the criterion that selects parameters."""
    criterion_counts: Float[Array, " T"]
    counts: Float[Array, " Q"]
    """Numbers of energies, of force components and, where stresses are known, of stress components.

    The fields below have the same entries.
    """
    absolute: Float[Array, " Q"]
    squared: Float[Array, " Q"]
    nll: Float[Array, " Q"]
    z: Float[Array, " Q"]
    squared_z: Float[Array, " Q"]
    variance: Float[Array, " Q"]


class MemberMetrics(eqx.Module):
    """Metrics of each member."""

    criterion: Float[np.ndarray, " M"]
    """The criterion that selects parameters: :meth:`AbstractStage.criterion`."""
    energy_mae: Float[np.ndarray, " M"]
    energy_rmse: Float[np.ndarray, " M"]
    energy_nll: Float[np.ndarray, " M"]
    energy_rzv: Float[np.ndarray, " M"]
    """Standard deviation of the z-scores: 1 if variances are right on average, more if they are too small."""
    energy_rmv: Float[np.ndarray, " M"]
    force_mae: Float[np.ndarray, " M"]
    force_rmse: Float[np.ndarray, " M"]
    force_nll: Float[np.ndarray, " M"]
    force_rzv: Float[np.ndarray, " M"]
    force_rmv: Float[np.ndarray, " M"]
    stress_mae: Float[np.ndarray, " M"] | None = None
    """[eV/Å³], as all metrics of the stress; None without stress labels."""
    stress_rmse: Float[np.ndarray, " M"] | None = None
    stress_nll: Float[np.ndarray, " M"] | None = None
    stress_rzv: Float[np.ndarray, " M"] | None = None
    stress_rmv: Float[np.ndarray, " M"] | None = None

    def known(self) -> dict[str, Float[np.ndarray, " M"]]:
        """All metrics by name, without those of stresses that are not known."""
        return {name: values for name, values in vars(self).items() if values is not None}


def sums_of(
    distribution: Gaussian, labels: Labels, stage: AbstractStage, volumes: Float[Array, " S"]
) -> ValidationSums:
    """Sums for one member and one batch; terms that need a variance are zero where it is zero."""
    objective = stage.criterion(distribution, labels)
    variance, mean = distribution.variance(), distribution.mean
    forces_mask = jnp.broadcast_to(labels.forces_mask[:, None], labels.forces.shape)
    columns = [
        _kind_sums(labels.energy - mean.energy, variance.energy, labels.energy_mask),
        _kind_sums(labels.forces - mean.forces, variance.forces, forces_mask),
    ]
    if (found := strain_residual(mean, labels)) is not None and variance.strain is not None:
        residual, mask = found
        volume = jnp.where(volumes > 0, volumes, 1.0)[:, None, None]  # metrics are those of the stress
        columns.append(_kind_sums(residual / volume, variance.strain / volume**2, mask))
    return ValidationSums(objective.sums, objective.counts, *(jnp.stack(pair) for pair in zip(*columns, strict=True)))


def _kind_sums(
    error: Float[Array, "*n"], variance: Float[Array, "*n"], mask: Bool[Array, "*n"]
) -> tuple[Float[Array, ""], ...]:
    """Sums of ones, absolute and squared errors, NLL, z-scores, squared z-scores and variances."""
    noisy = mask & (variance > 0)
    safe = jnp.where(noisy, variance, 1.0)
    seen, z = jnp.where(mask, error, 0.0), jnp.where(noisy, error, 0.0) / jnp.sqrt(safe)
    nll = jnp.where(noisy, -log_density(error, safe), 0.0)
    terms = (mask.astype(variance.dtype), jnp.abs(seen), seen**2, nll, z, z**2, jnp.where(mask, variance, 0.0))
    return tuple(jnp.sum(term) for term in terms)


class Validator:
    """Computes metrics of members on a fixed list of batches."""

    def __init__(self, batches: Sequence[Batch], layout: Layout, strategy: Strategy, has_variance: bool) -> None:
        self.batches, self.layout, self.strategy, self.has_variance = batches, layout, strategy, has_variance

    def __call__(self, members: ForceField, stage: AbstractStage) -> MemberMetrics:
        """Metrics over all batches; arrays of ``members`` have a leading axis."""
        arrays, static = eqx.partition(members, eqx.is_array)
        program = _compiled_sums(self.layout.mesh, static, stage, self.strategy)
        found = [self.layout.fetch(program(arrays, batch)) for batch in self.batches]
        total = jax.tree.map(lambda *parts: np.sum([np.asarray(p, np.float64) for p in parts], axis=0), *found)
        return metrics_of(total, self.has_variance and stage.trains_noise)


@lru_cache(KEPT_PROGRAMS)
def _compiled_sums(mesh: Mesh, static: ForceField, stage: AbstractStage, strategy: Strategy) -> Callable[..., Any]:
    def local(arrays: ForceField, batch: Batch) -> ValidationSums:
        here = jax.tree.map(lambda x: x[0, 0], batch)

        def one(leaves: ForceField) -> ValidationSums:
            distribution = eqx.combine(leaves, static)(here.graph, strain=here.labels.strain is not None)
            sums = sums_of(distribution, here.labels, stage, here.graph.volumes())
            return jax.tree.map(lambda s: jax.lax.psum(s, DATA), sums)

        return map_members(one, arrays, strategy)

    return compiled(local, mesh, (STATES, SHARED))


def metrics_of(total: Any, with_noise: bool) -> MemberMetrics:
    """Metrics from :class:`ValidationSums` over all batches as NumPy arrays; NaN if there is no label or no noise."""
    counts = np.where(total.counts > 0, total.counts, np.nan)
    criterion = (total.criterion / np.maximum(total.criterion_counts, 1)).sum(-1)
    nothing = np.full_like(counts, np.nan)
    mae, rmse = total.absolute / counts, np.sqrt(total.squared / counts)
    nll = total.nll / counts if with_noise else nothing
    rzv = np.sqrt(np.maximum(total.squared_z / counts - (total.z / counts) ** 2, 0.0)) if with_noise else nothing
    rmv = np.sqrt(total.variance / counts) if with_noise else nothing
    kinds = range(counts.shape[-1])
    columns = [metric[..., kind] for kind in kinds for metric in (mae, rmse, nll, rzv, rmv)]
    return MemberMetrics(criterion, *columns)
