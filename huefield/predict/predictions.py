"""Predictions of many structures beside the observed values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from huefield.core.lowrank import LOG_2PI
from huefield.core.strain import voigt
from huefield.core.structure import Block, joined, strain_labels, stress_volumes
from huefield.core.tails import joint_log_density
from huefield.model.joint_calibration import AbstractJointCalibration
from huefield.predict.marginals import EnergyForcesMarginals, Marginals
from huefield.support.checks import require_shape


@dataclass(frozen=True, eq=False)
class Observed:
    """Entries of one quantity that were both observed and predicted, in one row: the input of metrics."""

    mean: Float[np.ndarray, " n"]
    variance: Float[np.ndarray, " n"]
    target: Float[np.ndarray, " n"]
    structure: Int[np.ndarray, " n"]
    """The structure of each entry."""
    dof: float | None = None
    """Degrees of freedom of the Student t distribution of the errors; None for a normal distribution."""

    @property
    def error(self) -> Float[np.ndarray, " n"]:
        """Observed less predicted values."""
        return self.target - self.mean


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of one model beside the observed labels. Units: eV, eV/Å, eV/Å³; variances are their squares."""

    name: str
    """Name of the model in tables and figures."""
    structures: Block
    """Structures with the observed labels."""
    marginals: EnergyForcesMarginals
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of structures that are missing here, by the reason."""
    baseline: str | None = None
    """Name of the baseline that the model corrects; None if there is none."""

    def __post_init__(self) -> None:
        for name, shape in (
            ("energy", (len(self.structures),)),
            ("forces", self.structures.forces.shape),
            ("stress", self.structures.stress.shape),
        ):
            marginals: Marginals | None = getattr(self.marginals, name)
            if marginals is not None:
                require_shape(f"mean of {name}", marginals.mean, shape)
                marginals.require_variances(name)

    @classmethod
    def joined(cls, parts: "Sequence[Predictions]") -> "Predictions":
        """Predictions of one model for several blocks, one after the other."""
        if len(parts) == 1:
            return parts[0]
        structures = joined([part.structures for part in parts], parts[0].structures.source)
        marginals = EnergyForcesMarginals.joined([part.marginals for part in parts])
        return replace(parts[0], structures=structures, marginals=marginals)

    def __len__(self) -> int:
        return len(self.structures)

    @property
    def energy(self) -> Marginals | None:
        """[n]; None for a model that predicts no energies."""
        return self.marginals.energy

    @property
    def forces(self) -> Marginals | None:
        """[A, 3]; None for a model that predicts no forces."""
        return self.marginals.forces

    @property
    def stress(self) -> Marginals | None:
        """[n, 3, 3], NaN for structures that have none; None unless asked for."""
        return self.marginals.stress

    @property
    def joint_nll(self) -> Float[np.ndarray, " n"] | None:
        """NaN for structures whose energy or forces were not observed; None if it is known for no structure."""
        found = self.marginals.joint_nll
        return None if found is None or np.isnan(found).all() else found

    def select(self, keep: Bool[np.ndarray, " n"]) -> "Predictions":
        """The structures that a mask keeps."""
        marginals = self.marginals.rows(keep, keep[self.structures.owners])
        return replace(self, structures=self.structures.select(keep), marginals=marginals)

    def calibrated(self, calibration: AbstractJointCalibration) -> "Predictions":
        """With calibrated variances, without joint likelihood and stresses, whose calibration needs the model."""
        return replace(self, marginals=self.marginals.calibrated(calibration))

    def uncalibrated(self) -> "Predictions | None":
        """Predictions before calibration, without joint likelihood; None if the model has none."""
        before = self.marginals.uncalibrated()
        return None if before is None else replace(self, marginals=before)

    def with_joint_dof(self, dof: float | None) -> "Predictions":
        """With the joint likelihood of another number of degrees of freedom, instead of that of a Gaussian."""
        nll, quadratic = self.marginals.joint_nll, self.marginals.joint_quadratic
        if nll is None or quadratic is None:
            return self
        count = self.marginals.joint_count
        count = 1.0 + 3.0 * self.structures.sizes if count is None else count
        log_det = 2.0 * nll - quadratic - count * LOG_2PI
        with jax.enable_x64(True):
            density = joint_log_density(jnp.asarray(quadratic), jnp.asarray(log_det), jnp.asarray(count), dof)
            changed = -np.asarray(density)
        return replace(self, marginals=replace(self.marginals, joint_nll=changed))

    @property
    def atoms_observed(self) -> Bool[np.ndarray, " A"]:
        """Atoms whose forces were observed, and also predicted if forces are predicted at all."""
        observed = np.repeat(self.structures.has_forces, self.structures.sizes)
        return observed if self.forces is None else observed & np.isfinite(self.forces.mean).all(1)

    def observed_energies(self) -> Observed | None:
        """Energies that were observed and predicted; None if there are none."""
        if self.energy is None:
            return None
        kept = self.structures.has_energy & np.isfinite(self.energy.mean)
        if not kept.any():
            return None
        columns = (self.energy.mean, self.energy.variance, self.structures.energy)
        mean, variance, target = (column[kept] for column in columns)
        return Observed(mean, variance, target, np.flatnonzero(kept), self.energy.dof)

    def observed_energies_per_atom(self) -> Observed | None:
        """Energies over the numbers of atoms; None without periodic structures, whose cells have any size."""
        found, block = self.observed_energies(), self.structures
        if found is None or not stress_volumes(block.cells, block.pbc).any():
            return None
        sizes = block.sizes[found.structure]
        return replace(found, mean=found.mean / sizes, target=found.target / sizes, variance=found.variance / sizes**2)

    def observed_forces(self) -> Observed | None:
        """Force components that were observed and predicted; None if there are none."""
        kept = self.atoms_observed
        if self.forces is None or not kept.any():
            return None
        columns = (self.forces.mean, self.forces.variance, self.structures.forces)
        mean, variance, target = (column[kept].ravel() for column in columns)
        return Observed(mean, variance, target, np.repeat(self.structures.owners[kept], 3), self.forces.dof)

    def observed(self, quantity: str) -> Observed | None:
        """Observed entries of ``energy``, ``forces`` or ``stress``."""
        found = {"energy": self.observed_energies, "forces": self.observed_forces, "stress": self.observed_stress}
        return found[quantity]()

    @property
    def stress_observed(self) -> Bool[np.ndarray, " n"]:
        """Structures whose stress was observed, and also predicted if stresses are predicted at all.

        A molecule in a box has none, whatever its label says (:func:`huefield.core.structure.stress_volumes`).
        """
        observed = strain_labels(self.structures)[1]
        return observed if self.stress is None else observed & np.isfinite(self.stress.mean).all((1, 2))

    def observed_stress(self) -> Observed | None:
        """The six independent components of stresses that were observed and predicted; None if there are none."""
        kept = self.stress_observed
        if self.stress is None or not kept.any():
            return None
        target = 0.5 * (self.structures.stress + np.swapaxes(self.structures.stress, 1, 2))
        columns = (self.stress.mean, self.stress.variance, target)
        mean, variance, target = (voigt(column[kept]).ravel() for column in columns)
        return Observed(mean, variance, target, np.repeat(np.flatnonzero(kept), 6), self.stress.dof)


def linear_in_composition(structures: Block, energy: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Energies fitted with one energy for each element, by least squares."""
    elements, column = np.unique(structures.atomic_numbers, return_inverse=True)
    cell = structures.owners * len(elements) + column
    counts = np.bincount(cell, minlength=len(structures) * len(elements)).reshape(len(structures), -1).astype(float)
    fitted: Float[np.ndarray, " n"] = counts @ np.linalg.lstsq(counts, energy)[0]
    return fitted
