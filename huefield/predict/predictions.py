"""Predictions of many structures beside the observed values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from huefield.core.structure import Block, joined
from huefield.model.joint_calibration import EnergyForcesCalibration
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
    energy: Marginals | None
    """[n]; None for a model that predicts no energies."""
    forces: Marginals | None
    """[A, 3]; None for a model that predicts no forces."""
    joint_nll: Float[np.ndarray, " n"] | None = None
    """Negative log-likelihood of energy and forces together; NaN where one of them was not observed."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of structures that are missing here, by the reason."""
    stress: Marginals | None = None
    """[n, 3, 3], NaN for structures that have none; None unless asked for."""

    def __post_init__(self) -> None:
        shapes = {
            "energy": (len(self.structures),),
            "forces": self.structures.forces.shape,
            "stress": self.structures.stress.shape,
        }
        for name, shape in shapes.items():
            marginals: Marginals | None = getattr(self, name)
            if marginals is not None:
                require_shape(f"mean of {name}", marginals.mean, shape)
                marginals.require_variances(name)

    @classmethod
    def of(cls, name: str, block: Block, found: EnergyForcesMarginals) -> "Predictions":
        """Marginals beside the labels of a block."""
        known = np.nan if found.joint_nll is None else np.asarray(found.joint_nll)
        joint = np.where(block.has_energy & block.has_forces, known, np.nan)
        stress = found.stress if found.stress is not None and np.isfinite(found.stress.mean).any() else None
        joint_nll = joint if np.isfinite(joint).any() else None
        return cls(name, block, found.energy, found.forces, joint_nll, stress=stress)

    @classmethod
    def joined(cls, parts: "Sequence[Predictions]") -> "Predictions":
        """Predictions of one model for several blocks, one after the other."""
        first = parts[0]
        if len(parts) == 1:
            return first

        def column(name: str) -> Marginals | None:
            found = [getattr(part, name) for part in parts]
            return None if any(each is None for each in found) else Marginals.joined(found)

        joint = [np.full(len(part), np.nan) if part.joint_nll is None else part.joint_nll for part in parts]
        return cls(
            first.name,
            joined([part.structures for part in parts], first.structures.source),
            column("energy"),
            column("forces"),
            np.concatenate(joint) if any(part.joint_nll is not None for part in parts) else None,
            first.left_out,
            column("stress"),
        )

    def __len__(self) -> int:
        return len(self.structures)

    def select(self, keep: Bool[np.ndarray, " n"]) -> "Predictions":
        """The structures that a mask keeps."""
        atoms = np.repeat(keep, self.structures.sizes)
        return replace(
            self,
            structures=self.structures.select(keep),
            energy=None if self.energy is None else self.energy.rows(keep),
            forces=None if self.forces is None else self.forces.rows(atoms),
            joint_nll=None if self.joint_nll is None else self.joint_nll[keep],
            stress=None if self.stress is None else self.stress.rows(keep),
        )

    def calibrated(self, calibration: EnergyForcesCalibration) -> "Predictions":
        """With calibrated variances. Joint likelihood and stresses are dropped: their calibration needs the model."""
        return replace(
            self,
            energy=None if self.energy is None else self.energy.calibrated(calibration.energy),
            forces=None if self.forces is None else self.forces.calibrated(calibration.forces),
            joint_nll=None,
            stress=None,
        )

    def uncalibrated(self) -> "Predictions | None":
        """Predictions before calibration, without joint likelihood and stresses; None if the model has none."""
        if all(each is None or each.factor is None for each in (self.energy, self.forces)):
            return None
        return replace(
            self,
            energy=None if self.energy is None else self.energy.uncalibrated(),
            forces=None if self.forces is None else self.forces.uncalibrated(),
            joint_nll=None,
            stress=None,
        )

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
        return Observed(
            self.energy.mean[kept], self.energy.variance[kept], self.structures.energy[kept], np.flatnonzero(kept)
        )

    def observed_forces(self) -> Observed | None:
        """Force components that were observed and predicted; None if there are none."""
        kept = self.atoms_observed
        if self.forces is None or not kept.any():
            return None
        columns = (self.forces.mean, self.forces.variance, self.structures.forces)
        mean, variance, target = (column[kept].ravel() for column in columns)
        return Observed(mean, variance, target, np.repeat(self.structures.owners[kept], 3))


def linear_in_composition(structures: Block, energy: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Energies fitted with one energy for each element, by least squares."""
    elements, column = np.unique(structures.atomic_numbers, return_inverse=True)
    cell = structures.owners * len(elements) + column
    counts = np.bincount(cell, minlength=len(structures) * len(elements)).reshape(len(structures), -1).astype(float)
    fitted: Float[np.ndarray, " n"] = counts @ np.linalg.lstsq(counts, energy)[0]
    return fitted
