"""The prediction of an ensemble for a batch: totals, standard deviations, stress."""

from contextlib import AbstractContextManager
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from huefield.core import EnergyForces, EnergyForcesStack, Gaussian, RigidMotions
from huefield.core.lowrank import safe_sqrt
from huefield.core.structure import BaselineResult
from huefield.core.tails import interval_width
from huefield.model.joint_calibration import AbstractJointCalibration, EnergyForcesCalibration
from huefield.support.errors import HuefieldError


class Prediction(eqx.Module):
    """The joint distribution of a batch, and the mean of each member.

    If the ensemble is calibrated, both are: members spread about their mean with the calibrated epistemic variance.
    A coherent calibration keeps force noise the derivative of energy noise; others scale the variances of energies and
    forces separately (:class:`~huefield.model.joint_calibration.EnergyForcesCalibration`).
    Everything called ``*_uncertainty*`` is a standard deviation, in eV, eV/Å or eV/Å³.
    """

    distribution: Gaussian
    """Energies in it are relative to those of the isolated atoms."""
    members: EnergyForcesStack
    """Mean of each member, energies as in the distribution."""
    energy_ensemble: Float[np.ndarray, "M S"]
    """Total energy of each member [eV], in double precision."""
    volumes: Float[np.ndarray, " S"]
    """Volume of each cell [Å³]; zero for a structure that has no stress."""
    positions: Float[Array, "A D"]
    periodic: Bool[np.ndarray, " S"]
    """Whether a structure is periodic in some direction."""
    calibration: AbstractJointCalibration = eqx.field(static=True, default=EnergyForcesCalibration())
    """The calibration that uncertainties contain already."""

    def plus(self, baseline: BaselineResult) -> "Prediction":
        """The prediction of a correction of one structure, with the energy and forces of the baseline added."""
        with self._precision():
            forces = jnp.asarray(baseline.forces, self.forces.dtype)
            distribution, members = (
                eqx.tree_at(place, tree, replace_fn=lambda known: known + forces)
                for place, tree in ((lambda d: d.mean.forces, self.distribution), (lambda m: m.forces, self.members))
            )
        energies = self.energy_ensemble + baseline.energy
        return replace(self, distribution=distribution, members=members, energy_ensemble=energies)

    @property
    def energy(self) -> Float[np.ndarray, " S"]:
        """Mean total energy, in double precision."""
        return self.energy_ensemble.mean(0)

    @property
    def energy_offset(self) -> Float[np.ndarray, " S"]:
        """Mean total energy less the mean of the distribution: isolated atoms, and the rounding of the mean."""
        return self.energy - np.asarray(self.distribution.mean.energy, np.float64)

    @property
    def forces(self) -> Float[Array, "A D"]:
        """Mean forces."""
        return self.distribution.mean.forces

    @property
    def stress(self) -> Float[np.ndarray, "S 3 3"]:
        """Mean stress, with the sign and unit of ASE; :func:`huefield.core.voigt` gives its six components."""
        return self._per_volume(self.distribution.mean.strain)

    @property
    def forces_ensemble(self) -> Float[Array, "M A D"]:
        """Forces of each member."""
        return self.members.forces

    @property
    def stress_ensemble(self) -> Float[np.ndarray, "M S 3 3"]:
        """Stress of each member."""
        return self._per_volume(self.members.strain)

    @property
    def energy_uncertainty(self) -> Float[Array, " S"]:
        """Total: noise plus members."""
        return safe_sqrt(self.distribution.variance().energy)

    @property
    def forces_uncertainty(self) -> Float[Array, "A D"]:
        """Total: noise plus members."""
        return safe_sqrt(self.distribution.variance().forces)

    @property
    def energy_uncertainty_aleatoric(self) -> Float[Array, " S"]:
        """Aleatoric part: noise."""
        return safe_sqrt(self.distribution.aleatoric_variance().energy)

    @property
    def forces_uncertainty_aleatoric(self) -> Float[Array, "A D"]:
        """Aleatoric part: noise."""
        return safe_sqrt(self.distribution.aleatoric_variance().forces)

    @property
    def energy_uncertainty_epistemic(self) -> Float[Array, " S"]:
        """Epistemic part: disagreement of members."""
        return safe_sqrt(self.distribution.epistemic_variance().energy)

    @property
    def forces_uncertainty_epistemic(self) -> Float[Array, "A D"]:
        """Epistemic part: disagreement of members."""
        return safe_sqrt(self.distribution.epistemic_variance().forces)

    def rigid_motions(self) -> RigidMotions:
        """Motions of each structure as a whole, along which true forces have no component."""
        with self._precision():
            return RigidMotions.of(self.positions, self.distribution.partition, self.periodic)

    def samples(self, count: int, *, key: Key[Array, ""], balanced: bool = True) -> EnergyForcesStack:
        """Draw energies and forces jointly; energies as in the distribution.

        After a coherent calibration they follow a Student t with ν of a whole structure, whose quantiles differ from
        the intervals of single energies and forces.

        Args:
            count: number of draws.
            key: of the random numbers.
            balanced: whether forces have no net force and, without periodic directions, no net torque, as true forces;
                otherwise they have the variances of the distribution also in these directions.
        """
        with self._precision():
            rigid, dof = self.rigid_motions() if balanced else None, self.calibration.tails.joint
            return self.distribution.samples(count, key=key, rigid=rigid, dof=dof)

    def energy_half_width(self, coverage: float) -> Float[Array, " S"]:
        """Half-widths of intervals that contain this share of energies."""
        return self.calibration.interval_widths(coverage)[0] * self.energy_uncertainty

    def forces_half_width(self, coverage: float) -> Float[Array, "A D"]:
        """Half-widths of intervals that contain this share of force components."""
        return self.calibration.interval_widths(coverage)[1] * self.forces_uncertainty

    def stress_half_width(self, coverage: float) -> Float[np.ndarray, "S 3 3"]:
        """Half-widths of intervals for stress components, with quantiles of forces unless it has some of stresses."""
        tails = self.calibration.tails
        if tails.observed_stress is None:
            return self.calibration.interval_widths(coverage)[1] * self.stress_uncertainty
        return interval_width(coverage, tails.observed_stress) * self.stress_uncertainty

    @property
    def stress_uncertainty(self) -> Float[np.ndarray, "S 3 3"]:
        """Total: noise plus members."""
        return self._root_per_volume(self.distribution.variance())

    @property
    def stress_uncertainty_aleatoric(self) -> Float[np.ndarray, "S 3 3"]:
        """Aleatoric part: noise."""
        return self._root_per_volume(self.distribution.aleatoric_variance())

    @property
    def stress_uncertainty_epistemic(self) -> Float[np.ndarray, "S 3 3"]:
        """Epistemic part: disagreement of members."""
        return self._root_per_volume(self.distribution.epistemic_variance())

    def _precision(self) -> AbstractContextManager[None]:
        """Use the precision of the distribution, whatever JAX is set to."""
        return jax.enable_x64(self.distribution.mean.energy.dtype == np.float64)

    def _root_per_volume(self, variance: EnergyForces) -> Float[np.ndarray, "S 3 3"]:
        return self._per_volume(None if variance.strain is None else safe_sqrt(variance.strain))

    def _per_volume(self, strain: Float[Array, "*n S 3 3"] | None) -> Float[np.ndarray, "*n S 3 3"]:
        if strain is None:
            raise HuefieldError("this prediction has no stress: ask for it with predict(graph, stress=True)")
        return np.asarray(strain) / np.where(self.volumes > 0, self.volumes, np.nan)[:, None, None]
