"""Means and variances of single quantities: the marginals of a prediction.

Shapes: n structures, A atoms, M members; a quantity has one row for each structure or for each atom.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from huefield.core.structure import BaselineColumns, BaselineResult
from huefield.model.joint_calibration import AbstractJointCalibration
from huefield.support.checks import require_non_negative, require_shape
from huefield.support.errors import HuefieldError

QUANTITIES = ("energy", "forces", "stress")
JOINT = ("joint_nll", "joint_quadratic", "joint_count")
QuantityScaling = Callable[[Float[np.ndarray, "*n"]], tuple[Float[np.ndarray, "*n"], ...]]
"""From variances to factors of the noise, of the diagonal and of the members."""
ROUNDING = 1e-5
"""Rounding of a force component in single precision, relative to the largest force of its structure."""


class PartFactors(NamedTuple):
    """Factors by which calibration has multiplied the parts of variances."""

    noise: Float[np.ndarray, "*n"]
    """Of the noise processes, without the diagonal."""
    diagonal: Float[np.ndarray, "*n"]
    spread: Float[np.ndarray, "*n"]
    """Of the variance between members."""

    def changed(self, change: Callable[[Float[np.ndarray, "*n"]], Float[np.ndarray, "*m"]]) -> "PartFactors":
        """The same function of each part."""
        return PartFactors(*map(change, self))


@dataclass(frozen=True, eq=False)
class Marginals:
    """One quantity: means and variances of energies, of force components or of stress components."""

    mean: Float[np.ndarray, "*n"]
    variance: Float[np.ndarray, "*n"]
    """Total variance: noise plus members."""
    aleatoric_var: Float[np.ndarray, "*n"] | None = None
    """Variance of the noise; None where only the total is known."""
    epistemic_var: Float[np.ndarray, "*n"] | None = None
    """Variance between members; None where only the total is known."""
    members: Float[np.ndarray, " M *n"] | None = None
    """Mean of each member, calibrated; None unless asked for."""
    diagonal_var: Float[np.ndarray, "*n"] | None = None
    """Part of the noise that is independent of all other quantities; None where it is not known."""
    factors: PartFactors | None = None
    """Factors by which calibration has multiplied the variances; None without a calibration."""
    dof: float | None = None
    """Degrees of freedom of the Student t distribution of the errors; None for a normal distribution."""

    def __post_init__(self) -> None:
        for name in ("variance", "aleatoric_var", "epistemic_var", "diagonal_var"):
            found = getattr(self, name)
            if found is not None:
                require_shape(name, found, self.mean.shape)
        for factor in self.factors or ():
            require_shape("factor", factor, self.mean.shape)
        if self.members is not None:
            require_shape("members", self.members, (None, *self.mean.shape))

    def require_variances(self, quantity: str) -> None:
        """Raise if a variance is negative or NaN."""
        for name in ("variance", "aleatoric_var", "epistemic_var"):
            if getattr(self, name) is not None:
                require_non_negative(f"{name} of {quantity}", getattr(self, name))

    @classmethod
    def joined(cls, parts: "Sequence[Marginals]") -> "Marginals":
        """The rows of some marginals one after the other; optional fields only where all parts have them."""

        def column(name: str) -> Float[np.ndarray, "*n"] | None:
            found = [getattr(part, name) for part in parts]
            known = all(values is not None for values in found)
            return np.concatenate(found, axis=int(name == "members")) if known else None

        mean, variance = (np.concatenate([getattr(part, name) for part in parts]) for name in ("mean", "variance"))
        optional: dict[str, Any] = {
            name: column(name) for name in ("aleatoric_var", "epistemic_var", "members", "diagonal_var")
        }
        known = [part.factors for part in parts if part.factors is not None]
        factors = PartFactors(*map(np.concatenate, zip(*known, strict=True))) if len(known) == len(parts) else None
        return cls(mean, variance, **optional, factors=factors, dof=parts[0].dof)

    @property
    def deviation(self) -> Float[np.ndarray, "*n"]:
        """Total standard deviation."""
        return np.sqrt(self.variance)

    def rows(self, which: Bool[np.ndarray, " m"] | Int[np.ndarray, " m"]) -> "Marginals":
        """Some rows, by a mask or by their numbers."""

        def of(column: Float[np.ndarray, "*n"] | None) -> Float[np.ndarray, "*k"] | None:
            return None if column is None else column[which]

        members = None if self.members is None else self.members[:, which]
        noise, spread, diagonal = of(self.aleatoric_var), of(self.epistemic_var), of(self.diagonal_var)
        factors = None if self.factors is None else self.factors.changed(lambda factor: factor[which])
        return Marginals(self.mean[which], self.variance[which], noise, spread, members, diagonal, factors, self.dof)

    def calibrated(self, scaling: QuantityScaling, dof: float | None) -> "Marginals":
        """With calibrated variances.

        Args:
            scaling: from variances to the factors of their parts.
            dof: degrees of freedom of the calibrated distribution.
        """
        return replace(self.scaled(PartFactors(*scaling(self.variance))), dof=dof)

    def uncalibrated(self) -> "Marginals":
        """The marginals before calibration."""
        if self.factors is None:
            return self
        return replace(self.scaled(self.factors.changed(lambda factor: 1.0 / factor)), factors=None, dof=None)

    def scaled(self, factors: PartFactors) -> "Marginals":
        """With the parts of variances times factors, and members accordingly farther from their mean."""
        whole = factors if self.factors is None else PartFactors(*map(np.multiply, factors, self.factors))
        members = None if self.members is None else self.mean + np.sqrt(factors.spread) * (self.members - self.mean)
        if self.aleatoric_var is None or self.epistemic_var is None:
            _require_one(factors)
            return replace(self, variance=factors.noise * self.variance, members=members, factors=whole)
        if self.diagonal_var is None:
            _require_one(factors)
            noise, diagonal = factors.noise * self.aleatoric_var, None
        else:
            diagonal = factors.diagonal * self.diagonal_var
            noise = factors.noise * np.maximum(self.aleatoric_var - self.diagonal_var, 0.0) + diagonal
        spread = factors.spread * self.epistemic_var
        return Marginals(self.mean, noise + spread, noise, spread, members, diagonal, whole, self.dof)

    def plus(self, values: Float[np.ndarray, "*n"]) -> "Marginals":
        """With known values added to means and members."""
        members = None if self.members is None else self.members + values
        return replace(self, mean=self.mean + values, members=members)

    def finite(self) -> Bool[np.ndarray, " n"]:
        """Rows in which every number is finite."""
        good = np.ones(len(self.mean), bool)
        for column in (self.mean, self.variance, self.aleatoric_var, self.epistemic_var, *(self.factors or ())):
            if column is not None:
                good &= np.isfinite(column).reshape(len(good), -1).all(1)
        return good


def _require_one(factors: PartFactors) -> None:
    """Raise if parts have different factors."""
    if not all(np.array_equal(factors.noise, other) for other in factors[1:]):
        raise HuefieldError(
            "a coherent calibration multiplies the parts of a variance by different factors, but these predictions do "
            "not have them: calibrate the model, or use the method isotonic or scale"
        )


class Means(NamedTuple):
    """Means of energy, forces and stress of some structures, where no variances were asked for."""

    energy: Float[np.ndarray, " n"]
    forces: Float[np.ndarray, "A 3"]
    stress: Float[np.ndarray, "n 3 3"] | None

    def plus(self, baseline: BaselineResult) -> "Means":
        """Means of a correction of one structure, with the result of the baseline added."""
        base = np.full((3, 3), np.nan) if baseline.stress is None else baseline.stress
        stress = None if self.stress is None else self.stress + base
        return Means(self.energy + baseline.energy, self.forces + baseline.forces, stress)


@dataclass(frozen=True, eq=False)
class EnergyForcesMarginals:
    """Marginals of energy, forces and stress of one structure or of many.

    Models of huefield predict energies and forces; those of other codes may lack one of them.
    """

    energy: Marginals | None
    """[n], in eV; None for a model that predicts no energies."""
    forces: Marginals | None
    """[A, 3], in eV/Å; None for a model that predicts no forces."""
    stress: Marginals | None = None
    """[n, 3, 3], in eV/Å³, NaN for structures that have none; None unless asked for."""
    joint_nll: Float[np.ndarray, " n"] | None = None
    """Negative log-likelihood of energy and forces together, with the stress where it was observed and predicted.

    NaN where energy or forces are not known, None without noise model.
    """
    joint_quadratic: Float[np.ndarray, " n"] | None = None
    """rᵀ Σ⁻¹ r of the errors of energy and forces together; defined as ``joint_nll`` is."""
    joint_count: Float[np.ndarray, " n"] | None = None
    """Number of these errors; defined as ``joint_nll`` is."""

    @classmethod
    def joined(cls, parts: "Sequence[EnergyForcesMarginals]") -> "EnergyForcesMarginals":
        """The structures of some marginals one after the other; only the quantities that all parts have.

        Stresses count as known where they do not exist: a part without cells has NaN.
        """

        def column(name: str, join: Callable[[list[Any]], Any]) -> Any:
            found = [getattr(part, name) for part in parts]
            return None if any(each is None for each in found) else join(found)

        parts = _all_with_stress(parts)
        quantities = {name: column(name, Marginals.joined) for name in QUANTITIES}
        return cls(**quantities, **{name: column(name, np.concatenate) for name in JOINT})

    def rows(
        self,
        structures: Bool[np.ndarray, " m"] | Int[np.ndarray, " m"],
        atoms: Bool[np.ndarray, " k"] | Int[np.ndarray, " k"],
    ) -> "EnergyForcesMarginals":
        """Some structures and their atoms, by masks or by numbers."""
        energy, forces, stress = (
            None if found is None else found.rows(which)
            for found, which in ((self.energy, structures), (self.forces, atoms), (self.stress, structures))
        )
        joint = (None if found is None else found[structures] for found in (getattr(self, name) for name in JOINT))
        return EnergyForcesMarginals(energy, forces, stress, *joint)

    def calibrated(self, calibration: AbstractJointCalibration) -> "EnergyForcesMarginals":
        """With calibrated variances. Joint likelihood and stresses are dropped: their calibration needs the model."""
        return EnergyForcesMarginals(
            None
            if self.energy is None
            else self.energy.calibrated(calibration.energy_scaling, calibration.tails.energy),
            None
            if self.forces is None
            else self.forces.calibrated(calibration.force_scaling, calibration.tails.forces),
        )

    def plus(self, baseline: BaselineColumns) -> "EnergyForcesMarginals":
        """Predictions of a correction, with the results of the baseline added; no stress where it has none."""
        stress = np.where(baseline.has_stress[:, None, None], baseline.stress, np.nan)
        return replace(
            self,
            energy=None if self.energy is None else self.energy.plus(baseline.energy),
            forces=None if self.forces is None else self.forces.plus(baseline.forces),
            stress=None if self.stress is None else self.stress.plus(stress),
        )

    def uncalibrated(self) -> "EnergyForcesMarginals | None":
        """The marginals before calibration, without joint likelihood; None without a calibration."""
        if all(each is None or each.factors is None for each in (self.energy, self.forces)):
            return None
        energy, forces, stress = (
            None if each is None else each.uncalibrated() for each in (self.energy, self.forces, self.stress)
        )
        return EnergyForcesMarginals(energy, forces, stress)

    def finite(self, owners: Int[np.ndarray, " A"], has_stress: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Structures for which every number is finite, apart from stresses that do not exist."""
        good = np.ones(len(has_stress), bool)
        if self.energy is not None:
            good &= self.energy.finite()
        if self.forces is not None:
            good &= np.bincount(owners, ~self.forces.finite(), len(good)) == 0
        return good if self.stress is None else good & (self.stress.finite() | ~has_stress)

    def without_rounding(self, owners: Int[np.ndarray, " A"]) -> "EnergyForcesMarginals":
        """With zero variance for force components that vanish by symmetry, where members differ by rounding alone."""
        forces = self.forces
        if forces is None or forces.aleatoric_var is None or forces.epistemic_var is None:
            raise HuefieldError("rounding is removed from both parts of the variance, but the parts are not known")
        largest = np.zeros(owners.max(initial=-1) + 1)
        np.maximum.at(largest, owners, np.abs(forces.mean).max(1))
        vanishing = np.sqrt(forces.uncalibrated().variance) < ROUNDING * largest[owners, None]
        kept = ~((forces.aleatoric_var == 0) & vanishing)
        variances = {"variance": forces.variance * kept, "epistemic_var": forces.epistemic_var * kept}
        return replace(self, forces=replace(forces, **variances))


def _all_with_stress(parts: Sequence[EnergyForcesMarginals]) -> Sequence[EnergyForcesMarginals]:
    """The same, with stresses of NaN for parts that have none beside others that have some."""
    if all(part.stress is None for part in parts) or any(part.energy is None for part in parts):
        return parts
    return [part if part.stress is not None else replace(part, stress=_no_stress(part.energy)) for part in parts]


def _no_stress(energy: Marginals | None) -> Marginals:
    """Stresses of structures that have none: NaN with zero variances."""
    assert energy is not None  # noqa: S101 - the caller has checked it
    shape = (len(energy.mean), 3, 3)
    zero, one = np.zeros(shape), np.ones(shape)
    factors = None if energy.factors is None else PartFactors(one, one, one)
    return Marginals(np.full(shape, np.nan), zero, zero, zero, None, zero, factors)
