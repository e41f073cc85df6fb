r"""Losses as functions of a predicted distribution and of labels.

The mean and covariance of the distribution are those of a Gaussian; likelihoods with degrees of freedom ν are those of
the Student t distribution with the same mean and covariance (:mod:`huefield.core.tails`).

[J23] arXiv:2312.04174v1, appendix "Model Hyperparameters and Training". [S22] Seitzer et al., "On the Pitfalls of
Heteroscedastic Uncertainty Estimation with Probabilistic Neural Networks", ICLR 2022, the definition of β-NLL.

Stress labels are strain derivatives ∂E/∂ε [eV], the stress times the volume; their six independent components are on
and above the diagonal, and the terms below it are zero.

The first three have a term for each label (zero where there is none); a reduction makes a scalar of them. The joint
likelihood does not split into such terms: it is one number for each structure.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from huefield.core import EnergyForces, Gaussian, Labels, Partition
from huefield.core.gaussian import strain_residual
from huefield.core.lowrank import log_density
from huefield.core.strain import UPPER
from huefield.core.tails import log_density_with_tails
from huefield.support.checks import require_shape


def squared_error(distribution: Gaussian, labels: Labels) -> EnergyForces:
    """½ (y − mean)²: with the factor ½ its gradient is that of β-NLL at β = 1."""
    return jax.tree.map(lambda r: 0.5 * r**2, _residual(distribution, labels))


def beta_nll(distribution: Gaussian, labels: Labels, beta: float | Float[Array, ""]) -> EnergyForces:
    """[S22]: the negative log density of each marginal, times its variance to the power β.

    The weight is a constant for differentiation. β = 0 is the NLL; for β = 1 the gradient with respect to the mean is
    that of the squared error.
    """
    return _marginal_terms(
        distribution, labels, lambda residual, v: -jax.lax.stop_gradient(v**beta) * log_density(residual, v)
    )


def marginal_nll(distribution: Gaussian, labels: Labels, dof: float | None = None) -> EnergyForces:
    """Negative log density of each marginal. Ignores covariances.

    [J23] Eqs. nll_energy and nll_force, the loss of the paper, unless there are degrees of freedom.
    """
    return _marginal_terms(distribution, labels, lambda residual, v: -log_density_with_tails(residual, v, dof))


def joint_nll(distribution: Gaussian, labels: Labels, dof: float | None = None) -> Float[Array, " S"]:
    """The exact negative log density of all labels of each structure.

    With degrees of freedom, all labels of a structure share one random scale.
    """
    return -distribution.log_prob(labels, dof)


class Averages(eqx.Module):
    """A loss as a sum of averages: Σ_t (sum of terms t) / (count of terms t).

    Sums and counts are separate, so that those of several devices can be added.
    """

    sums: Float[Array, " T"]
    counts: Float[Array, " T"]

    @property
    def value(self) -> Float[Array, ""]:
        """The loss; an average over nothing is zero."""
        return jnp.sum(self.sums / jnp.maximum(self.counts, 1))


def structure_mean(terms: EnergyForces, labels: Labels, partition: Partition) -> Averages:
    """Sum over all labels of a structure, averaged over structures: the likelihood itself."""
    per_structure = terms.energy + partition.sum(jnp.sum(terms.forces, axis=1))
    if terms.strain is not None:
        per_structure = per_structure + jnp.sum(terms.strain, axis=(1, 2))
    return observed_mean(per_structure, labels, partition)


def observed_mean(per_structure: Float[Array, " S"], labels: Labels, partition: Partition) -> Averages:
    """Average over the structures with any label."""
    any_force = partition.sum(labels.forces_mask.astype(per_structure.dtype)) > 0
    observed = labels.energy_mask | any_force
    if labels.strain_mask is not None:
        observed = observed | labels.strain_mask
    total = jnp.sum(jnp.where(observed, per_structure, 0.0))
    return Averages(total[None], jnp.sum(observed).astype(per_structure.dtype)[None])


def average_of_averages(terms: EnergyForces, labels: Labels) -> Averages:
    """Averages over energies, force components and stress components, added up, whatever the number of atoms."""
    counts = [jnp.sum(labels.energy_mask), jnp.sum(labels.forces_mask) * labels.forces.shape[1]]
    sums = [jnp.sum(terms.energy), jnp.sum(terms.forces)]
    if terms.strain is not None and labels.strain_mask is not None:
        counts.append(jnp.sum(labels.strain_mask) * int(UPPER.sum()))
        sums.append(jnp.sum(terms.strain))
    added = jnp.stack(sums)
    return Averages(added, jnp.stack(counts).astype(added.dtype))


def weighted(
    terms: EnergyForces, energy_weight: float, force_weight: float, stress_weight: float = 1.0
) -> EnergyForces:
    """Terms with weights for energies, forces and stresses."""
    strain = None if terms.strain is None else stress_weight * terms.strain
    return EnergyForces(energy_weight * terms.energy, force_weight * terms.forces, strain)


def weighted_by_dataset(terms: EnergyForces, labels: Labels, partition: Partition) -> EnergyForces:
    """Terms times the weight of their structure, that of its data set; averages divide by numbers without weights."""
    weight = labels.weight
    if weight is None:
        return terms
    strain = None if terms.strain is None else weight[:, None, None] * terms.strain
    return EnergyForces(weight * terms.energy, partition.spread(weight)[:, None] * terms.forces, strain)


def _marginal_terms(
    distribution: Gaussian, labels: Labels, nll: Callable[[Float[Array, "*n"], Float[Array, "*n"]], Array]
) -> EnergyForces:
    """A function of residuals and variances for each label, zero where there is none."""
    residual, variance = _residual(distribution, labels), distribution.variance()

    def term(r: Float[Array, "*n"], v: Float[Array, "*n"], mask: Bool[Array, "*n"]) -> Float[Array, "*n"]:
        return jnp.where(mask, nll(r, jnp.where(mask, v, 1.0)), 0.0)

    forces_mask = jnp.broadcast_to(labels.forces_mask[:, None], residual.forces.shape)
    strain = None
    if residual.strain is not None and variance.strain is not None and labels.strain_mask is not None:
        # A component without noise is exactly zero in every model with a cutoff, see Gaussian._strain_rows.
        noisy = labels.strain_mask[:, None, None] & UPPER & (variance.strain > 0)
        strain = term(residual.strain, variance.strain, noisy)
    return EnergyForces(
        term(residual.energy, variance.energy, labels.energy_mask),
        term(residual.forces, variance.forces, forces_mask),
        strain,
    )


def _residual(distribution: Gaussian, labels: Labels) -> EnergyForces:
    require_shape("labels.energy", labels.energy, distribution.mean.energy.shape)
    require_shape("labels.forces", labels.forces, distribution.mean.forces.shape)
    energy = jnp.where(labels.energy_mask, labels.energy - distribution.mean.energy, 0.0)
    forces = jnp.where(labels.forces_mask[:, None], labels.forces - distribution.mean.forces, 0.0)
    found = strain_residual(distribution.mean, labels)
    return EnergyForces(energy, forces, None if found is None else found[0])
