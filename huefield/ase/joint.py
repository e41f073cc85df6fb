"""The joint distribution of the energy and the forces of one structure."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from huefield.core import Gaussian, RigidMotions
from huefield.core.observable import Observable
from huefield.core.rigid import rotations
from huefield.core.structure import Structure
from huefield.support.errors import HuefieldError


@dataclass(frozen=True, eq=False, repr=False)
class LinearEstimate:
    """Gaussian distribution of observables that are linear in energy and forces."""

    mean: Float[np.ndarray, " Q"]
    aleatoric_cov: Float[np.ndarray, "Q Q"]
    epistemic_cov: Float[np.ndarray, "Q Q"]
    unit: str = ""
    """Unit of the observables; empty if it is unknown."""

    def __repr__(self) -> str:
        return f"LinearEstimate({self})"

    def __str__(self) -> str:
        pairs = [f"{m:.3f} ± {u:.3f}" for m, u in zip(self.mean, self.uncertainty, strict=True)]
        text = pairs[0] if len(pairs) == 1 else f"[{', '.join(pairs)}]"
        return f"{text} {self.unit}".rstrip()

    @property
    def covariance(self) -> Float[np.ndarray, "Q Q"]:
        """Total covariance: noise plus members."""
        return self.aleatoric_cov + self.epistemic_cov

    @property
    def uncertainty(self) -> Float[np.ndarray, " Q"]:
        """Total standard deviations."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def uncertainty_aleatoric(self) -> Float[np.ndarray, " Q"]:
        """Standard deviations of the noise."""
        return np.sqrt(np.diag(self.aleatoric_cov))

    @property
    def uncertainty_epistemic(self) -> Float[np.ndarray, " Q"]:
        """Standard deviations between members."""
        return np.sqrt(np.diag(self.epistemic_cov))


@dataclass(frozen=True, eq=False, repr=False)
class JointDistribution:
    """The joint distribution of the energy [eV] and the forces [eV/Å] of a structure: Gaussian, or Student t (``dof``).

    With local or colored noise, uncalibrated or calibrated with the method ``coherent``, energies and forces of a
    sample belong to one energy surface. Other calibrations scale the variances of energies and forces separately: each
    entry then has its calibrated variance, but energies and forces of a sample no longer belong together.
    """

    gaussian: Gaussian
    """Energies in it are relative to isolated atoms."""
    structure: Structure
    energy_offset: float
    """Mean total energy less the mean of the Gaussian [eV]."""
    dof: float | None = None
    """Degrees of freedom of samples, which follow a Student t distribution with this covariance; None for normal."""

    def __repr__(self) -> str:
        variances = np.diag(self.covariance)
        force = float(np.sqrt(variances[1:].mean()))
        return (
            f"JointDistribution(energy {self.energy:.3f} ± {variances[0] ** 0.5:.3f} eV, forces on "
            f"{len(self.structure)} atoms ± {force:.3f} eV/Å per component)"
        )

    @property
    def energy(self) -> float:
        """Mean total energy."""
        return float(self.gaussian.mean.energy[0]) + self.energy_offset

    @property
    def forces(self) -> Float[np.ndarray, "N 3"]:
        """Mean forces."""
        return np.asarray(self.gaussian.mean.forces, float)

    @property
    def covariance(self) -> Float[np.ndarray, "n n"]:
        """Covariance of (E, F_1x, F_1y, ...), 1 + 3N rows and columns."""
        return self.gaussian.covariance(0)

    def samples(
        self, count: int, *, seed: int, balanced: bool = True
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n N 3"]]:
        """Draw energies and forces jointly.

        Args:
            count: number of draws.
            seed: of the random numbers.
            balanced: whether forces have no net force and, without periodic directions, no net torque, as true forces;
                otherwise they have the covariance of this distribution also in these directions.
        """
        if count < 1:
            raise HuefieldError(f"count must be at least 1, but is {count}")
        with self._precision():
            rigid = self._rigid_motions() if balanced else None
            drawn = self.gaussian.samples(count, key=jax.random.key(seed), rigid=rigid, dof=self.dof)
        return np.asarray(drawn.energy, float)[:, 0] + self.energy_offset, np.asarray(drawn.forces, float)

    def force_along(self, direction: ArrayLike) -> LinearEstimate:
        """Force along a direction in configuration space, such as that of a reaction path (N × 3, normalised here)."""
        with self._precision():
            along = Observable.along(jnp.asarray(np.asarray(direction, float)), self.gaussian.partition)
        return self._distribution(along, unit="eV/Å")

    def net_force(self) -> LinearEstimate:
        """Sum of all forces: three components."""
        with self._precision():
            total = Observable.net_force(self.gaussian.partition, 3)
        return self._distribution(total, unit="eV/Å")

    def net_torque(self) -> LinearEstimate:
        """Torque about the mean of the positions: Σ_i (r_i − r̄) × F_i, three components, [eV]."""
        return replace(self.linear(rotations(self.structure.positions, self.structure.positions.mean(0))), unit="eV")

    def linear(self, forces: ArrayLike, energy: ArrayLike | None = None) -> LinearEstimate:
        """Observables Σ_i w_i·F_i + v E.

        Args:
            forces: w, Q × N × 3.
            energy: v, one number for each observable; None for 0.
        """
        weights = np.asarray(forces, float)
        of_energy = np.zeros(len(weights)) if energy is None else np.asarray(energy, float)
        with self._precision():
            observable = Observable(jnp.asarray(of_energy[:, None]), jnp.asarray(weights))
        return self._distribution(observable, of_energy * self.energy_offset)

    def _distribution(
        self, observable: Observable, offset: Float[np.ndarray, " Q"] | float = 0.0, unit: str = ""
    ) -> LinearEstimate:
        """Distribution of observables; the offset is added to their means."""
        with self._precision():
            found = self.gaussian.linear(observable)
        mean, noise, spread = (np.asarray(e[0], float) for e in (found.mean, found.aleatoric_cov, found.epistemic_cov))
        return LinearEstimate(mean + offset, noise, spread, unit)

    def _rigid_motions(self) -> RigidMotions:
        periodic = np.array([self.structure.pbc.any()])
        return RigidMotions.of(self.structure.positions, self.gaussian.partition, periodic)

    def _precision(self) -> AbstractContextManager[None]:
        """Use the precision of the Gaussian, whatever JAX is set to."""
        return jax.enable_x64(self.gaussian.mean.energy.dtype == np.float64)
