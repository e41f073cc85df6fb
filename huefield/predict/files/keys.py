"""Names of predictions, uncertainties and reference values in files."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from huefield.data.readers.ase_files import GROUP_KEYS
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

Quantity: TypeAlias = Literal["energy", "forces"]
ALEATORIC, EPISTEMIC = "_aleatoric", "_epistemic"
"""Ends of the names of the parts of an uncertainty."""
DOF = "_dof"
"""End of the names of degrees of freedom."""
JOINT_NLL = "joint_nll"
MODEL = "model"
OWN = (JOINT_NLL, MODEL)
"""Entries of ``info`` in files that huefield wrote."""


def _as_names(given: object) -> object:
    return (given,) if isinstance(given, str) else given


Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_as_names)]


class PredictionKeys(FrozenConfig):
    """Names to look for in ``info``, ``arrays`` and calculator; the first that exists is used.

    Names that a user states must exist; an empty tuple turns a quantity off. Standard deviations are preferred to
    variances, unless only the variance is stated. The name of a standard deviation followed by ``_aleatoric`` or
    ``_epistemic`` is one of its parts.
    """

    energy: Names = Field(("MACE_energy", "energy"), description="predicted energies, eV")
    energy_uncertainty: Names = Field(
        ("energy_uncertainty", "MACE_energy_uncertainty"), description="standard deviations of energies, eV"
    )
    energy_var: Names = Field(
        ("energy_var", "MACE_energy_var", "mtt::aux::energy_uncertainty"), description="variances of energies, eV²"
    )
    forces: Names = Field(("MACE_forces", "forces"), description="predicted forces, eV/Å")
    forces_uncertainty: Names = Field(
        ("forces_uncertainty", "MACE_forces_uncertainty", "stds"),
        description="standard deviations of force components, eV/Å",
    )
    forces_var: Names = Field(("forces_var", "MACE_forces_var"), description="variances of force components, eV²/Å²")
    energy_dof: Names = Field(("energy_dof",), description="degrees of freedom of the Student t of energies")
    forces_dof: Names = Field(("forces_dof",), description="degrees of freedom of the Student t of force components")
    reference_energy: Names = Field(("REF_energy", "energy"), description="energies to compare with, eV")
    reference_forces: Names = Field(("REF_forces", "forces"), description="forces to compare with, eV/Å")
    reference_stress: Names = Field(("REF_stress",), description="stresses that are kept with the structures, eV/Å³")
    group: Names = Field(GROUP_KEYS, description="entries of info that are the group")

    def all_names(self) -> frozenset[str]:
        """Every name that is looked for."""
        names = {name for field in type(self).model_fields for name in self._of(field)}
        deviations = (*self.energy_uncertainty, *self.forces_uncertainty)
        parts = {name + part for name in deviations for part in (ALEATORIC, EPISTEMIC)}
        return frozenset(names | parts | set(OWN))

    def choose(self, quantity: Quantity, present: Collection[str]) -> "ChosenKeys":
        """The names of a quantity among those present. A name is a prediction or a reference, not both."""
        predicted, reference = self._of(quantity), self._of(f"reference_{quantity}")
        if f"reference_{quantity}" in self.model_fields_set:
            reference_key = _first(reference, present)
            mean = _first(predicted, set(present) - {reference_key or ""})
        else:
            mean = _first(predicted, present)
            reference_key = _first(reference, set(present) - {mean or ""})
        deviation = _first(self._of(f"{quantity}_uncertainty"), present)
        variance = _first(self._of(f"{quantity}_var"), present)
        dof = _first(self._of(f"{quantity}_dof"), present)
        if {f"{quantity}_uncertainty", f"{quantity}_var"} & self.model_fields_set == {f"{quantity}_var"}:
            return ChosenKeys(quantity, mean, None, variance, reference_key, dof)
        return ChosenKeys(quantity, mean, deviation, variance if deviation is None else None, reference_key, dof)

    def require_stated(self, present: Collection[str], source: str, *, reference_elsewhere: bool) -> None:
        """Raise if a name that the user has stated is not in the file."""
        for field in sorted(self.model_fields_set):
            if not self._of(field) or (reference_elsewhere and field.startswith("reference_")):
                continue
            if _first(self._of(field), present) is None:
                wanted = " or ".join(self._of(field))
                raise HuefieldError(f"{source} has no {wanted}, which --keys has as {field}; it has {listed(present)}")

    def _of(self, field: str) -> tuple[str, ...]:
        names: tuple[str, ...] = getattr(self, field)
        return names


@dataclass(frozen=True)
class ChosenKeys:
    """The names that a file uses for one quantity; None for those that it does not have."""

    quantity: Quantity
    mean: str | None
    deviation: str | None
    variance: str | None
    reference: str | None
    dof: str | None = None

    @property
    def uncertainty(self) -> str | None:
        """The name of the uncertainty, standard deviation or variance."""
        return self.variance if self.deviation is None else self.deviation


def require_complete(
    chosen: tuple[ChosenKeys, ...], present: Collection[str], source: str, *, reference_elsewhere: bool
) -> None:
    """Raise unless the file has predictions with uncertainties and reference values."""
    predicted = [keys for keys in chosen if keys.mean is not None]
    advice = (
        """name them, for instance --keys '{"energy": "my_energy", "energy_uncertainty": "my_std", """
        """"reference_energy": "dft_energy"}'; docs/predictions.md lists the names that are known"""
    )
    if not predicted:
        raise HuefieldError(f"{source} has no predictions under a known name; it has {listed(present)}; {advice}")
    if all(keys.uncertainty is None for keys in predicted):
        raise HuefieldError(f"{source} has predictions but no uncertainties; it has {listed(present)}; {advice}")
    if not reference_elsewhere and all(keys.reference is None for keys in predicted):
        means = " and ".join(str(keys.mean) for keys in predicted)
        raise HuefieldError(
            f"{source} has no reference values beside {means}: write them as REF_energy and REF_forces, give the file "
            f"that has them with --reference, or {advice}. It has {listed(present)}"
        )


def listed(present: Collection[str]) -> str:
    """Names for a message."""
    return ", ".join(sorted(present)) or "nothing but atoms"


def _first(names: tuple[str, ...], present: Collection[str]) -> str | None:
    return next((name for name in names if name in present), None)
