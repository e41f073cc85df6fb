"""Predictions under the names and in the form of ASE."""

from typing import Any

import numpy as np
from ase.stress import full_3x3_to_voigt_6_stress

from huefield.predict.marginals import QUANTITIES, EnergyForcesMarginals, Marginals, Means

KINDS = ("_uncertainty", "_uncertainty_aleatoric", "_uncertainty_epistemic", "_ensemble")
UNCERTAIN = tuple(quantity + kind for quantity in QUANTITIES for kind in KINDS)
"""Results that cost more than the means."""


def mean_results(means: Means) -> dict[str, Any]:
    """Means under the names and in the form of ASE."""
    energy = float(means.energy[0])
    results = {"energy": energy, "free_energy": energy, "forces": means.forces}
    return results if means.stress is None else {**results, "stress": full_3x3_to_voigt_6_stress(means.stress[0])}


def uncertain_results(found: EnergyForcesMarginals) -> dict[str, Any]:
    """Means, standard deviations and members, under the names of ASE and other codes."""
    results = {**_results("energy", found.energy), **_results("forces", found.forces)}
    results["free_energy"] = results["energy"]
    return results if found.stress is None else {**results, **_results("stress", found.stress)}


def _results(quantity: str, found: Marginals | None) -> dict[str, Any]:
    assert found is not None and found.members is not None  # noqa: S101, PT018 - the evaluator gives them
    assert found.aleatoric_var is not None and found.epistemic_var is not None  # noqa: S101, PT018 - of a model
    variances = (found.variance, found.aleatoric_var, found.epistemic_var)
    values = (found.mean, *(np.sqrt(each) for each in variances), found.members)
    return {quantity + kind: _as_ase(quantity, value) for kind, value in zip(("", *KINDS), values, strict=True)}


def _as_ase(quantity: str, value: np.ndarray) -> Any:
    """Energy, forces or the six components of the stress of the structure; with a leading axis for members."""
    if quantity == "energy":
        return float(value[0]) if value.ndim == 1 else value[:, 0]
    if quantity == "stress":
        return full_3x3_to_voigt_6_stress(value[..., 0, :, :])
    return value
