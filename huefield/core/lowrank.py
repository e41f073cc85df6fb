"""Linear algebra of diag(d) + U Uᵀ for many structures at once, linear in the number of atoms.

The latent picture behind every formula: y = mean + sqrt(d) ε + U z with ε and z standard normal, and one z for each
structure. U has R columns, a row per observed quantity.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from huefield.core.types import Partition

LOG_2PI = 1.8378770664093453


def safe_divide(numerator: Float[Array, "*n"], denominator: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """``numerator / denominator``, and 0 (with zero derivative) where the denominator is 0."""
    usable = denominator != 0
    return jnp.where(usable, numerator / jnp.where(usable, denominator, 1.0), 0.0)


def log_density(residual: Float[Array, "*n"], variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Elementwise log N(residual; 0, variance)."""
    return -0.5 * (residual**2 / variance + jnp.log(variance) + LOG_2PI)


def observe_scalar(
    row: Float[Array, "R S"], noise_var: Float[Array, " S"]
) -> tuple[Float[Array, "R S"], Float[Array, "R R S"]]:
    """Posterior of the latent z ~ N(0, I) after seeing e = row·z + N(0, noise_var), for each structure.

    With v = |row|² + noise_var the posterior mean is ``gain`` e, gain = row / v, and the posterior covariance
    I − row rowᵀ / v has the symmetric square root I − row rowᵀ / (v (1 + sqrt(noise_var / v))). Exact for
    noise_var = 0, where it is a projection.

    Returns:
        The gain and the square root of the posterior covariance. Where row = 0: zero and the identity.
    """
    variance = jnp.sum(row**2, axis=0) + noise_var
    gain = safe_divide(row, jnp.broadcast_to(variance, row.shape))
    shrunk = gain / (1.0 + safe_sqrt(safe_divide(noise_var, variance)))
    return gain, jnp.eye(row.shape[0], dtype=row.dtype)[:, :, None] - row[:, None] * shrunk[None, :]


def safe_sqrt(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Square root with derivative 0 instead of infinity at 0; NaN of NaN and of negative numbers."""
    zero = x == 0
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, x)))


class DensityTerms(NamedTuple):
    """The terms of a log density of residuals r with the covariance Σ, for each structure."""

    quadratic: Float[Array, " S"]
    """rᵀ Σ⁻¹ r."""
    log_det: Float[Array, " S"]
    """log det Σ."""
    size: Float[Array, " S"]
    """Number of residuals."""


class StructureRows(NamedTuple):
    """Values that each structure has Q of, beside those of its atoms."""

    residual: Float[Array, "S Q"]
    diagonal: Float[Array, "S Q"]
    columns: Float[Array, "R S Q"]
    mask: Bool[Array, "S Q"]

    def weighed(self) -> tuple[Float[Array, "R_plus_1 Q S"], Float[Array, " S"], Float[Array, " S"]]:
        """Columns and residual over the root of the diagonal, the sum of its logarithms, and the number of values."""
        variance = jnp.where(self.mask, self.diagonal, 1.0)
        weight = jnp.where(self.mask, jax.lax.rsqrt(variance), 0.0)
        rows = jnp.concatenate([self.columns, self.residual[None]]) * weight
        count = jnp.sum(self.mask, axis=1, dtype=variance.dtype)
        return jnp.swapaxes(rows, 1, 2), jnp.sum(jnp.log(variance), axis=1), count


def atomwise_terms(
    residual: Float[Array, "A D"],
    diagonal: Float[Array, "A D"],
    columns: Float[Array, "R A D"],
    mask: Bool[Array, " A"],
    partition: Partition,
    of_structures: StructureRows | None = None,
) -> DensityTerms:
    """Terms of the log density of residuals with the covariance diag(diagonal) + columns columnsᵀ.

    Only atoms that the mask keeps count. Values of structures are further rows of the same columns.

    With W = D^(-1/2) U and b = D^(-1/2) r, the matrix determinant lemma gives log det D + log det(I + WᵀW) for the
    determinant, and Woodbury's identity the quadratic form, the minimum over z of |b − W z|² + |z|². Both come from the
    QR factors of W stacked on I, by modified Gram–Schmidt: forming WᵀW, as is usual, would square its condition number
    and lose all digits in float32 where U Uᵀ ≫ D.
    """
    kept = jnp.broadcast_to(mask[:, None], residual.shape)
    variance = jnp.where(kept, diagonal, 1.0)
    weight = jnp.where(kept, jax.lax.rsqrt(variance), 0.0)
    log_det = partition.sum(jnp.sum(jnp.log(variance), axis=1))
    count = partition.sum(jnp.sum(kept, axis=1, dtype=residual.dtype))

    upper = jnp.concatenate([columns, residual[None]]) * weight
    rank = columns.shape[0]
    lower = jnp.broadcast_to(jnp.eye(rank + 1, rank, dtype=residual.dtype)[:, :, None], (rank + 1, rank, count.size))
    if of_structures is not None:
        rows, own_log_det, own_count = of_structures.weighed()
        lower = jnp.concatenate([rows, lower], axis=1)
        log_det, count = log_det + own_log_det, count + own_count
    for _ in range(rank):
        length = jnp.sqrt(_inner(upper[:1], lower[:1], upper[0], lower[0], partition)[0])
        log_det = log_det + 2.0 * jnp.log(length)
        first_upper, first_lower = upper[0] / spread_rows(length, partition), lower[0] / length
        overlap = _inner(upper[1:], lower[1:], first_upper, first_lower, partition)
        upper = upper[1:] - jax.vmap(lambda o: spread_rows(o, partition))(overlap) * first_upper
        lower = lower[1:] - overlap[:, None] * first_lower
    quadratic = _inner(upper, lower, upper[0], lower[0], partition)[0]
    return DensityTerms(quadratic, log_det, count)


def spread_rows(per_structure: Float[Array, " S"], partition: Partition) -> Float[Array, "A 1"]:
    """The value of its structure for each atom, and 1 for padding atoms, to multiply or divide by."""
    return jnp.where(partition.atom_mask, partition.spread(per_structure), 1.0)[:, None]


def _inner(
    upper: Float[Array, "R A D"],
    lower: Float[Array, "R P S"],
    other_upper: Float[Array, "A D"],
    other_lower: Float[Array, "P S"],
    partition: Partition,
) -> Float[Array, "R S"]:
    """Inner products of stacked columns, rows on atoms and rows below them together, for each structure."""
    on_atoms = partition.sum(jnp.sum(upper * other_upper, axis=2).T).T
    return on_atoms + jnp.sum(lower * other_lower, axis=1)
