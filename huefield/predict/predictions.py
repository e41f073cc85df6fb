"""Predicted energies and forces of many structures, beside what was observed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from huefield.core.structure import Block
from huefield.model.calibration import AbstractCalibration
from huefield.model.joint_calibration import EnergyForcesCalibration, isotropic_var
from huefield.support.checks import require_non_negative, require_shape


@dataclass(frozen=True, eq=False)
class Marginals:
    """Means and variances, one of each for every energy, force or stress component."""

    mean: Float[np.ndarray, "*n"]
    variance: Float[np.ndarray, "*n"]
    """Of noise and members together."""
    aleatoric_var: Float[np.ndarray, "*n"] | None = None
    """Of the noise; None where the parts are not known."""
    epistemic_var: Float[np.ndarray, "*n"] | None = None
    """Of the disagreement of members; None where the parts are not known."""

    def __post_init__(self) -> None:
        for name in ("variance", "aleatoric_var", "epistemic_var"):
            found = getattr(self, name)
            if found is not None:
                require_shape(name, found, self.mean.shape)
                require_non_negative(name, found)

    def rows(self, keep: Bool[np.ndarray, " m"]) -> "Marginals":
        """Those that the mask keeps."""
        return Marginals(self.mean[keep], *(None if v is None else v[keep] for v in self._variances))  # type: ignore[arg-type]

    def calibrated(self, calibration: AbstractCalibration | None) -> "Marginals":
        """With calibrated variances; both parts of a variance have the same factor."""
        if calibration is None:
            return self
        level = isotropic_var(self.variance)
        factor = np.divide(calibration(level), level, out=np.ones(level.shape), where=level > 0)
        return Marginals(self.mean, *(None if v is None else v * factor for v in self._variances))  # type: ignore[arg-type]

    @property
    def _variances(self) -> tuple[Float[np.ndarray, "*n"] | None, ...]:
        return self.variance, self.aleatoric_var, self.epistemic_var


@dataclass(frozen=True, eq=False)
class MemberMeans:
    """What each member of an ensemble says."""

    energy: Float[np.ndarray, "M n"]
    forces: Float[np.ndarray, "M A 3"]


@dataclass(frozen=True, eq=False)
class Observed:
    """All that was both observed and predicted of one quantity, in one row: what metrics are made of."""

    mean: Float[np.ndarray, " n"]
    variance: Float[np.ndarray, " n"]
    target: Float[np.ndarray, " n"]
    structure: Int[np.ndarray, " n"]
    """Which structure each entry belongs to."""

    @property
    def error(self) -> Float[np.ndarray, " n"]:
        """What was observed less what was predicted."""
        return self.target - self.mean


@dataclass(frozen=True, eq=False)
class Predictions:
    """What one model says about some structures. Units: eV, eV/Å, eV/Å³; variances are their squares."""

    name: str
    """Of the model, for tables and figures."""
    structures: Block
    """With the labels that were observed."""
    energy: Marginals | None
    """[n]; None for a model that says nothing about energies."""
    forces: Marginals | None
    """[A, 3]; None for a model that says nothing about forces."""
    joint_nll: Float[np.ndarray, " n"] | None = None
    """Of the energy and all forces of each structure together; NaN where something was not observed."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many structures are missing here, by the reason."""
    stress: Marginals | None = None
    """[n, 3, 3], NaN for structures that have none; None unless asked for."""
    members: MemberMeans | None = None
    """None unless asked for."""

    def __post_init__(self) -> None:
        if self.energy is not None:
            require_shape("energies", self.energy.mean, (len(self.structures),))
        if self.forces is not None:
            require_shape("forces", self.forces.mean, self.structures.forces.shape)
        if self.stress is not None:
            require_shape("stresses", self.stress.mean, self.structures.stress.shape)

    def __len__(self) -> int:
        return len(self.structures)

    def select(self, keep: Bool[np.ndarray, " n"]) -> "Predictions":
        """The structures that the mask keeps."""
        atoms = np.repeat(keep, self.structures.sizes)
        return replace(
            self,
            structures=self.structures.select(keep),
            energy=None if self.energy is None else self.energy.rows(keep),
            forces=None if self.forces is None else self.forces.rows(atoms),
            joint_nll=None if self.joint_nll is None else self.joint_nll[keep],
            stress=None if self.stress is None else self.stress.rows(keep),
            members=None
            if self.members is None
            else MemberMeans(self.members.energy[:, keep], self.members.forces[:, atoms]),
        )

    def calibrated(self, calibration: EnergyForcesCalibration) -> "Predictions":
        """With calibrated variances. Joint likelihood, stresses and members are not known then: they take the model."""
        return replace(
            self,
            energy=None if self.energy is None else self.energy.calibrated(calibration.energy),
            forces=None if self.forces is None else self.forces.calibrated(calibration.forces),
            joint_nll=None,
            stress=None,
            members=None,
        )

    @property
    def atoms_observed(self) -> Bool[np.ndarray, " A"]:
        """Atoms whose forces were observed, and predicted where any are."""
        observed = np.repeat(self.structures.has_forces, self.structures.sizes)
        return observed if self.forces is None else observed & np.isfinite(self.forces.mean).all(1)

    def observed_energies(self) -> Observed | None:
        """Energies of the structures that have one, observed and predicted; None where there are none."""
        if self.energy is None:
            return None
        kept = self.structures.has_energy & np.isfinite(self.energy.mean)
        if not kept.any():
            return None
        return Observed(
            self.energy.mean[kept], self.energy.variance[kept], self.structures.energy[kept], np.flatnonzero(kept)
        )

    def observed_forces(self) -> Observed | None:
        """Force components of the atoms that have them, observed and predicted; None where there are none."""
        kept = self.atoms_observed
        if self.forces is None or not kept.any():
            return None
        columns = (self.forces.mean, self.forces.variance, self.structures.forces)
        mean, variance, target = (column[kept].ravel() for column in columns)
        return Observed(mean, variance, target, np.repeat(self.structures.owners[kept], 3))


def linear_in_composition(structures: Block, energy: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The part of energies that one energy for each element explains, by least squares."""
    elements, column = np.unique(structures.atomic_numbers, return_inverse=True)
    cell = structures.owners * len(elements) + column
    counts = np.bincount(cell, minlength=len(structures) * len(elements)).reshape(len(structures), -1).astype(float)
    fitted: Float[np.ndarray, " n"] = counts @ np.linalg.lstsq(counts, energy)[0]
    return fitted
