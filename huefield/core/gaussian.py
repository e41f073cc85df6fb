r"""The joint Gaussian over the energy and the forces of a structure: covariance diagonal plus low rank.

Every prediction of huefield is y = (E, F_1x, ..., F_Nz) ~ N(mean, diag(d) + U Uᵀ). In the colored noise model of
[J23] arXiv:2312.04174v1, U has one column u = (ρ, −∂ρ/∂r) and d = (0, γρ²): the diagonal of the sum is [J23]
Eq. force_var_colored_simplified, the rest of it follows from the derivatives of [J23] Eq. e_cov with respect to one
argument (energy and forces) and to both (Eq. force_cov, forces among each other). An ensemble of M members adds the
columns (mean_m − mean)/√M, its epistemic part.

======================  =====================================================
symbol                  code
======================  =====================================================
d                       ``diagonal`` [eV², eV²/Å²]
U, members' noise       ``aleatoric`` [eV, eV/Å]
U, members' deviations  ``epistemic`` [eV, eV/Å]
======================  =====================================================
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from huefield.core.balance import RigidMotions
from huefield.core.lowrank import (
    DensityTerms,
    StructureRows,
    atomwise_terms,
    observe_scalar,
    safe_divide,
    safe_sqrt,
)
from huefield.core.observable import Observable, ObservableDistribution
from huefield.core.strain import UPPER, independent, upper_mirrored
from huefield.core.tails import joint_log_density
from huefield.core.types import EnergyForces, EnergyForcesStack, Labels, Partition, Scaling
from huefield.support.checks import is_concrete, require_finite, require_non_negative, require_shape


class Gaussian(eqx.Module):
    """y ~ N(mean, diag(diagonal) + U Uᵀ) for each structure of a batch, U = (aleatoric columns, epistemic columns)."""

    mean: EnergyForces
    diagonal: EnergyForces
    aleatoric: EnergyForcesStack
    epistemic: EnergyForcesStack
    partition: Partition

    def __check_init__(self) -> None:
        structures, atoms = self.partition.num_structures, self.partition.num_atoms
        require_shape("mean.forces", self.mean.forces, (atoms, None))
        dimension = self.mean.forces.shape[1]
        for name in ("mean", "diagonal"):
            require_shape(f"{name}.energy", getattr(self, name).energy, (structures,))
            require_shape(f"{name}.forces", getattr(self, name).forces, (atoms, dimension))
            require_finite(f"{name}.energy", getattr(self, name).energy)
            require_finite(f"{name}.forces", getattr(self, name).forces)
        for name in ("aleatoric", "epistemic"):
            columns = getattr(self, name)
            require_shape(f"{name}.energy", columns.energy, (None, structures))
            require_shape(f"{name}.forces", columns.forces, (len(columns), atoms, dimension))
            require_finite(f"{name}.energy", columns.energy)
            require_finite(f"{name}.forces", columns.forces)
        parts = (self.mean, self.diagonal, self.aleatoric, self.epistemic)
        if len({part.strain is None for part in parts}) > 1:
            raise ValueError("either all parts of a distribution have a strain derivative or none has")
        require_non_negative("the energy variance on the diagonal", self.diagonal.energy)
        require_non_negative("the force variances on the diagonal", self.diagonal.forces)

    @property
    def columns(self) -> EnergyForcesStack:
        """All columns of U, aleatoric first."""
        return EnergyForcesStack.concatenate(self.aleatoric, self.epistemic)

    def aleatoric_variance(self) -> EnergyForces:
        """Marginal variances of the noise: [J23] Eqs. energy_mean_var_full, force_var_colored_full, first part."""
        return jax.tree.map(jnp.add, self.diagonal, _sum_of_squares(self.aleatoric))

    def epistemic_variance(self) -> EnergyForces:
        """Marginal variances between members: [J23] Eqs. energy_mean_var_full, force_var_colored_full, last part."""
        return _sum_of_squares(self.epistemic)

    def variance(self) -> EnergyForces:
        """Marginal variances, the diagonal of the covariance."""
        return jax.tree.map(jnp.add, self.aleatoric_variance(), self.epistemic_variance())

    def scaled(self, scaling: Scaling) -> "Gaussian":
        """The same mean with each part of the covariance S Σ S, where S² = diag(factors of this part)."""
        noise, spread = (jax.tree.map(safe_sqrt, part) for part in (scaling.columns, scaling.spread))
        diagonal = jax.tree.map(jnp.multiply, self.diagonal, scaling.diagonal)
        return Gaussian(self.mean, diagonal, self.aleatoric.times(noise), self.epistemic.times(spread), self.partition)

    def covariance(self, structure: int) -> Float[np.ndarray, "n n"]:
        """The dense covariance of one structure, rows ordered (E, F_1x, F_1y, ...). For inspection and tests."""
        rows = self.partition.atoms_of(structure)
        diagonal = np.append(np.asarray(self.diagonal.energy)[structure], np.asarray(self.diagonal.forces)[rows])
        dense = np.diag(diagonal)
        for columns in (self.aleatoric, self.epistemic):
            energy, forces = np.asarray(columns.energy)[:, structure], np.asarray(columns.forces)[:, rows]
            factor = np.concatenate([energy[:, None], forces.reshape(len(columns), diagonal.size - 1)], axis=1)
            dense += factor.T @ factor
        return dense

    def sample(
        self, *, key: Key[Array, ""], rigid: RigidMotions | None = None, dof: float | None = None
    ) -> EnergyForces:
        """One draw of energies and forces that are consistent with each other; structures are drawn independently.

        Args:
            key: of the random numbers.
            rigid: the rigid motions of the structures. With them, forces differ from the mean by no net force and no
                net torque (:mod:`huefield.core.balance`).
            dof: degrees of freedom of the Student t distribution with this covariance: errors of a structure times a
                random number, the same for all of them (:mod:`huefield.core.tails`). None for the Gaussian.
        """
        return self._draw(key, rigid, dof)

    @eqx.filter_jit
    def _draw(self, key: Key[Array, ""], rigid: RigidMotions | None, dof: float | None) -> EnergyForces:
        keys, columns = _keys(key), self.columns
        latent = jax.random.normal(keys[2], columns.energy.shape, columns.energy.dtype)
        shared = EnergyForces(
            jnp.sum(columns.energy * latent, axis=0),
            self._combine(columns.forces, latent),
            _mixed(columns.strain, latent),
        )
        part_keys = [keys[0], keys[1], keys[3]][: len(jax.tree.leaves(self.mean))]
        own_keys = jax.tree.unflatten(jax.tree.structure(self.mean), part_keys)

        def draw(var: Array, common: Array, own: Key[Array, ""]) -> Array:
            return safe_sqrt(var) * jax.random.normal(own, var.shape, var.dtype) + common

        error = jax.tree.map(draw, self.diagonal, shared, own_keys)
        if rigid is not None:
            # All of it: factors of a calibration that differ between atoms give a net force to columns, too.
            error = replace(error, forces=rigid.removed_from(error.forces, self.diagonal.forces))
        if dof is not None:
            error = self._with_tails(error, jax.random.fold_in(key, 4), dof)
        drawn = jax.tree.map(jnp.add, self.mean, error)
        return drawn if drawn.strain is None else replace(drawn, strain=upper_mirrored(drawn.strain))

    def _with_tails(self, error: EnergyForces, key: Key[Array, ""], dof: float) -> EnergyForces:
        """Errors times √((ν − 2)/χ²_ν), one random number for each structure: variances stay the same."""
        chi_squared = 2.0 * jax.random.gamma(key, 0.5 * dof, error.energy.shape, error.energy.dtype)
        scale = jnp.sqrt((dof - 2.0) / chi_squared)
        return EnergyForces(
            scale * error.energy,
            self.partition.spread(scale)[:, None] * error.forces,
            None if error.strain is None else scale[:, None, None] * error.strain,
        )

    def samples(
        self, count: int, *, key: Key[Array, ""], rigid: RigidMotions | None = None, dof: float | None = None
    ) -> EnergyForcesStack:
        """``count`` independent draws; arguments as of :meth:`sample`."""
        return EnergyForcesStack.stacked(self._draws(jax.random.split(key, int(count)), rigid, dof))

    @eqx.filter_jit
    def _draws(self, keys: Key[Array, " n"], rigid: RigidMotions | None, dof: float | None) -> EnergyForces:
        return jax.vmap(lambda key: self._draw(key, rigid, dof))(keys)

    def condition_on_energy(self, energy: Float[Array, " S"], mask: Bool[Array, " S"] | None = None) -> "Gaussian":
        """The Gaussian conditional on energies, those of the structures that the mask keeps.

        The energy then has no variance left. For one member of the colored model this is
        F | E ~ N(F_θ − (∇ρ/ρ)(E − E_θ), γρ² I). The two parts follow from the law of total variance: the aleatoric
        part is the variance given E and the member, the epistemic part that of the mean given E and the member.
        """
        require_shape("energy", energy, (self.partition.num_structures,))
        known = jnp.ones(energy.shape, bool) if mask is None else mask
        require_shape("mask", known, energy.shape)
        if is_concrete(energy) and is_concrete(known):
            require_finite("energy", np.where(known, energy, 0.0))
        return self._given_energy(energy, known)

    @eqx.filter_jit
    def _given_energy(self, energy: Float[Array, " S"], known: Bool[Array, " S"]) -> "Gaussian":
        noise, spread = self.aleatoric, self.epistemic
        noise_var = self.diagonal.energy
        noise_gain, noise_root = observe_scalar(jnp.where(known, noise.energy, 0.0), noise_var)
        member_var = noise_var + jnp.sum(noise.energy**2, axis=0)
        _, member_root = observe_scalar(jnp.where(known, spread.energy, 0.0), member_var)

        response = self._combine(noise.forces, noise_gain)
        spread_forces = spread.forces - jnp.einsum("ad,ra->rad", response, self._spread(spread.energy))
        shift = safe_divide(jnp.where(known, energy - self.mean.energy, 0.0), self.variance().energy)
        left = jnp.where(known, 0.0, 1.0)
        weights = self.columns.energy * shift
        strain, noise_strain, spread_strain = self._strain_given_energy(weights, noise_gain, noise_root, member_root)
        return Gaussian(
            mean=EnergyForces(
                jnp.where(known, energy, self.mean.energy),
                self.mean.forces + self._combine(self.columns.forces, weights),
                strain,
            ),
            diagonal=EnergyForces(noise_var * left, self.diagonal.forces, self.diagonal.strain),
            aleatoric=EnergyForcesStack(noise.energy * left, self._rotate(noise.forces, noise_root), noise_strain),
            epistemic=EnergyForcesStack(spread.energy * left, self._rotate(spread_forces, member_root), spread_strain),
            partition=self.partition,
        )

    def log_prob(
        self, labels: Labels, dof: float | None = None, *, rigid: RigidMotions | None = None
    ) -> Float[Array, " S"]:
        """Exact log density of the observed values of each structure, linear in the number of atoms.

        Observed stresses count as strain derivatives ∂E/∂ε [eV], with their six independent components.
        A structure without observed values gives 0.

        Args:
            labels: the observed values.
            dof: degrees of freedom of the Student t distribution with this covariance; None for the Gaussian.
            rigid: the rigid motions of the structures. With them, the density is that of the other components, given
                the net force and the net torque of the labels, usually none: log p(E, F) − log p(Qᵀ F)
                (:mod:`huefield.core.balance`). Only for structures with the forces on all atoms observed, and only for
                the Gaussian.
        """
        density = joint_log_density(*self.density_terms(labels), dof)
        if rigid is None:
            return density
        if dof is not None:
            raise ValueError("the density without rigid motions is that of a Gaussian: give dof or rigid, not both")
        return density - self._rigid_density(labels, rigid)

    def density_terms(self, labels: Labels) -> DensityTerms:
        """The terms of the log density of each structure.

        p(E, F) = p(E) p(F | E): the first factor is a scalar density, the second has no zero on its diagonal even if
        the energy has one, as in the colored model. Observed strain derivatives are further rows beside the forces.
        """
        self._require_density(labels)
        return self._density(labels)

    @eqx.filter_jit
    def _rigid_density(self, labels: Labels, rigid: RigidMotions) -> Float[Array, " S"]:
        """Log density of the rigid components of forces; 0 where forces are missing."""
        residual = jnp.where(labels.forces_mask[:, None], labels.forces - self.mean.forces, 0.0)
        missing = self.partition.sum((~labels.forces_mask).astype(residual.dtype))
        return jnp.where(missing > 0, 0.0, rigid.log_prob(residual, self.diagonal.forces, self.columns.forces))

    @eqx.filter_jit
    def _density(self, labels: Labels) -> DensityTerms:
        energy = jnp.where(labels.energy_mask, labels.energy, self.mean.energy)
        variance = jnp.where(labels.energy_mask, self.variance().energy, 1.0)
        given = self._given_energy(energy, labels.energy_mask)
        forces = atomwise_terms(
            jnp.where(labels.forces_mask[:, None], labels.forces - given.mean.forces, 0.0),
            self.diagonal.forces,
            given.columns.forces,
            labels.forces_mask,
            self.partition,
            self._strain_rows(given, labels),
        )
        return DensityTerms(
            forces.quadratic + (energy - self.mean.energy) ** 2 / variance,
            forces.log_det + jnp.log(variance),
            forces.size + labels.energy_mask,
        )

    def _strain_rows(self, given: "Gaussian", labels: Labels) -> StructureRows | None:
        """The six independent components of the strain derivative, given the energy; None without such labels.

        A component without noise on the diagonal does not count: that of atoms that have no neighbours in its direction
        is exactly zero in every model with a cutoff, whatever its parameters are.
        """
        found, columns, diagonal = strain_residual(given.mean, labels), given.columns.strain, self.diagonal.strain
        if found is None or columns is None or diagonal is None:
            return None
        residual, observed, variance = (independent(each) for each in (*found, diagonal))
        mask = observed & (variance > 0)
        return StructureRows(jnp.where(mask, residual, 0.0), variance, independent(columns), mask)

    def linear(self, observable: Observable) -> ObservableDistribution:
        """The distribution of observables that are linear in energies and forces, A y, for each structure."""
        require_shape("observable.energy", observable.energy, (None, self.partition.num_structures))
        require_shape("observable.forces", observable.forces, (len(observable), *self.mean.forces.shape))

        def apply(columns: EnergyForcesStack) -> Float[Array, "S Q R"]:
            forces = self.partition.sum(jnp.einsum("qad,rad->aqr", observable.forces, columns.forces))
            return forces + jnp.einsum("qs,rs->sqr", observable.energy, columns.energy)

        weights_energy, weights_forces = observable.energy, observable.forces
        diagonal = self.partition.sum(
            jnp.einsum("qad,ad,pad->aqp", weights_forces, self.diagonal.forces, weights_forces)
        ) + jnp.einsum("qs,s,ps->sqp", weights_energy, self.diagonal.energy, weights_energy)
        noise, spread = apply(self.aleatoric), apply(self.epistemic)
        mean = apply(EnergyForcesStack(self.mean.energy[None], self.mean.forces[None]))[..., 0]
        return ObservableDistribution(
            mean, diagonal + jnp.einsum("sqr,spr->sqp", noise, noise), jnp.einsum("sqr,spr->sqp", spread, spread)
        )

    def _strain_given_energy(
        self,
        weights: Float[Array, "R S"],
        noise_gain: Float[Array, "Ra S"],
        noise_root: Float[Array, "Ra Ra S"],
        member_root: Float[Array, "Re Re S"],
    ) -> tuple[Array | None, Array | None, Array | None]:
        """Mean and both columns of the strain derivative conditional on energies, as for the forces."""
        mean, noise, spread = self.mean.strain, self.aleatoric.strain, self.epistemic.strain
        if mean is None or noise is None or spread is None:
            return None, None, None
        response = jnp.einsum("rsxy,rs->sxy", noise, noise_gain)
        spread = spread - jnp.einsum("sxy,rs->rsxy", response, self.epistemic.energy)
        columns = self.columns.strain
        return (
            mean + jnp.einsum("rsxy,rs->sxy", columns, weights),
            jnp.einsum("rsxy,rqs->qsxy", noise, noise_root),
            jnp.einsum("rsxy,rqs->qsxy", spread, member_root),
        )

    def _spread(self, latent: Float[Array, "R S"]) -> Float[Array, "R A"]:
        return self.partition.spread(latent.T).T

    def _combine(self, forces: Float[Array, "R A D"], latent: Float[Array, "R S"]) -> Float[Array, "A D"]:
        return jnp.einsum("rad,ra->ad", forces, self._spread(latent))

    def _rotate(self, forces: Float[Array, "R A D"], root: Float[Array, "R R S"]) -> Float[Array, "R A D"]:
        per_atom = self.partition.spread(jnp.moveaxis(root, -1, 0))
        return jnp.einsum("rad,arq->qad", forces, per_atom)

    def _require_density(self, labels: Labels) -> None:
        require_shape("labels.energy", labels.energy, self.mean.energy.shape)
        require_shape("labels.forces", labels.forces, self.mean.forces.shape)
        strain_residual(self.mean, labels)
        if not is_concrete(self.diagonal.forces) or not is_concrete(labels.forces_mask):
            return
        no_energy = labels.energy_mask & (self.variance().energy == 0)
        no_forces = labels.forces_mask[:, None] & (self.diagonal.forces == 0)
        if bool(no_energy.any()) or bool(no_forces.any()):
            raise ValueError(
                f"this distribution has no joint density: the variance of {int(no_energy.sum())} energies is zero, and "
                f"that of {int(no_forces.sum())} force components on the diagonal, as where there is no noise model. "
                "Train with a noise model, or score the marginal variances of an ensemble with marginal_nll"
            )


def strain_residual(mean: EnergyForces, labels: Labels) -> tuple[Float[Array, "S 3 3"], Bool[Array, "S 3 3"]] | None:
    """Observed less predicted strain derivatives, and their mask: independent components of observed stresses.

    None if no stress was observed. Stresses that were observed but not predicted are an error, since they must not be
    ignored by mistake.
    """
    if labels.strain is None or labels.strain_mask is None:
        return None
    if mean.strain is None:
        raise ValueError(
            "the labels have stresses, but the distribution has none: predict with strain=True, or use "
            "labels.without_strain()"
        )
    require_shape("labels.strain", labels.strain, mean.strain.shape)
    mask = labels.strain_mask[:, None, None] & UPPER
    return jnp.where(mask, labels.strain - mean.strain, 0.0), mask


def mixture(members: Gaussian) -> Gaussian:
    """The Gaussian with the mean and covariance of an equal mixture of M members (fields have a leading axis M).

    Law of total variance, [J23] Eqs. energy_mean_var_full and force_var_colored_full, for the whole covariance:
    the members' noise, averaged, and the covariance of their means (population, 1/M).
    """
    count = members.mean.energy.shape[0]
    mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), members.mean)

    def side_by_side(columns: EnergyForcesStack) -> EnergyForcesStack:
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]) / jnp.sqrt(count).astype(x.dtype), columns)

    deviations = jax.tree.map(lambda x, m: (x - m) / jnp.sqrt(count).astype(x.dtype), members.mean, mean)
    return Gaussian(
        mean=mean,
        diagonal=jax.tree.map(lambda x: jnp.mean(x, axis=0), members.diagonal),
        aleatoric=side_by_side(members.aleatoric),
        epistemic=EnergyForcesStack.concatenate(side_by_side(members.epistemic), EnergyForcesStack.stacked(deviations)),
        partition=Partition(members.partition.structure_index[0], members.partition.num_structures),
    )


def _sum_of_squares(columns: EnergyForcesStack) -> EnergyForces:
    squares = jax.tree.map(lambda x: jnp.sum(x**2, axis=0), columns)
    return EnergyForces(squares.energy, squares.forces, squares.strain)


def _mixed(strain: Float[Array, "R S 3 3"] | None, latent: Float[Array, "R S"]) -> Float[Array, "S 3 3"] | None:
    return None if strain is None else jnp.einsum("rsxy,rs->sxy", strain, latent)


def _keys(key: Key[Array, ""]) -> Key[Array, " 4"]:
    """Keys for energy, forces, columns and strain; the first three are the same with and without strain."""
    return jnp.concatenate([jax.random.split(key, 3), jax.random.fold_in(key, 3)[None]])
