"""Fits of calibrations to predictions with observed values."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from huefield.core.tails import nll_terms
from huefield.model.calibration import (
    CalibrationConfig,
    ConformalCalibration,
    GammaCalibration,
    IsotonicCalibration,
    ScaleCalibration,
)
from huefield.model.ensemble import Ensemble
from huefield.model.joint_calibration import EnergyForcesCalibration, isotropic_var
from huefield.model.typical import Deviations, TypicalUncertainty, deviations
from huefield.noise import ColoredNoise
from huefield.predict import theory_remark, unit_remark
from huefield.predict.predictions import Observed, Predictions
from huefield.support.errors import HuefieldError

WORSE = 0.01
"""Increase of the negative log likelihood above which a remark is made."""


@dataclass(frozen=True)
class CalibrationFit:
    """A fitted calibration with remarks on the fit."""

    calibration: EnergyForcesCalibration
    remarks: tuple[str, ...]


def fit_calibration(
    predictions: Predictions, method: Literal["isotonic", "scale", "conformal"], group_size: int | None = None
) -> CalibrationFit:
    """Fit energies and forces separately. Quantities with too little data are left uncalibrated, with a remark.

    Args:
        predictions: predictions for structures that the model was not trained on.
        method: kind of the map of variances.
        group_size: for isotonic regression, see :meth:`IsotonicCalibration.fit`.
    """
    found = {"energies": predictions.observed_energies(), "forces": predictions.observed_forces()}
    if not any(found.values()):
        raise HuefieldError("no data for a calibration: no energy and no force was both predicted and observed")
    fits: dict[str, CalibrationConfig | None] = {}
    remarks = []
    for name, observed in found.items():
        try:
            fits[name] = None if observed is None else _fitted(observed, method, group_size, of_atoms=name == "forces")
        except HuefieldError as fault:
            fits[name] = None
            remarks.append(f"{name} are not calibrated: {fault}")
    if not any(fits.values()):
        raise HuefieldError("; ".join(remarks))
    remarks += [f"{name}: {fit.remark}" for name, fit in fits.items() if fit is not None and fit.remark]
    return CalibrationFit(EnergyForcesCalibration(energy=fits["energies"], forces=fits["forces"]), tuple(remarks))


def _fitted(found: Observed, method: str, group_size: int | None, *, of_atoms: bool) -> CalibrationConfig:
    if method == "scale":
        return ScaleCalibration.fit(found.variance, found.error)
    if method == "conformal":
        return ConformalCalibration.fit(found.variance, found.error, found.structure)
    variance = isotropic_var(found.variance.reshape(-1, 3)).ravel() if of_atoms else found.variance
    noisy = found.variance > 0
    # The three components of an atom share one factor: scale their errors to the mean variance of the atom.
    error = found.error[noisy] * np.sqrt(variance[noisy] / found.variance[noisy])
    return IsotonicCalibration.fit(variance[noisy], error, group_size=group_size, structure=found.structure[noisy])


def require_comparable(predictions: Predictions) -> None:
    """Raise if predictions and observed values seem to differ in units or level of theory."""
    remark = unit_remark(predictions)
    if remark:
        raise HuefieldError(f"{remark} Calibrate with data in the units of the predictions, eV and eV/Å")
    shifted = theory_remark(predictions)
    if shifted:
        raise HuefieldError(f"{shifted}. Calibrate with data of the model's own level of theory")


def worse_remarks(before: Predictions, after: Predictions) -> list[str]:
    """Remarks on quantities whose likelihood is worse after calibration."""
    pairs = {
        "energies": (before.observed_energies(), after.observed_energies()),
        "forces": (before.observed_forces(), after.observed_forces()),
        "stresses": (before.observed_stress(), after.observed_stress()),
    }
    return [
        f"{name}: the likelihood of the structures that were not fitted to got worse (NLL {old:.3g} → {new:.3g}): "
        "there may be too few data for a calibration"
        for name, (first, last) in pairs.items()
        if first is not None and last is not None
        for old, new in [(_nll(first), _nll(last))]
        if new > old + WORSE
    ]


def _nll(found: Observed) -> float:
    noisy = found.variance > 0
    if not noisy.any():
        return np.nan
    return float(np.mean(nll_terms(found.error[noisy], found.variance[noisy], found.dof)))


def require_gamma(ensemble: Ensemble) -> None:
    """Raise unless the noise model has a γ."""
    if not isinstance(ensemble.members.noise, ColoredNoise):
        kind = getattr(ensemble.members.noise.config, "kind", "another")
        raise HuefieldError(f"the method gamma is for colored noise, but the model has {kind} noise: use coherent")


def fit_gamma(before: Predictions, doubled: Predictions) -> GammaCalibration:
    """Fit the factor of γ. Variances are linear in γ: doubling it adds the part that is proportional to γ.

    Args:
        before: predictions of a model.
        doubled: predictions with twice its γ, see :func:`with_gamma_times`.
    """
    once, twice = before.observed_forces(), doubled.observed_forces()
    if once is None or twice is None:
        raise HuefieldError("γ is fitted to forces, but no structure has forces")
    gamma_var = np.maximum(twice.variance - once.variance, 0.0)
    return GammaCalibration.fit(gamma_var, np.maximum(once.variance - gamma_var, 0.0), once.error)


def with_gamma_times(ensemble: Ensemble, factor: float) -> Ensemble:
    """The ensemble, which has colored noise, with γ times a factor."""
    return ensemble.map_noise(lambda noise: noise.with_gamma_times(factor))  # type: ignore[attr-defined]


def typical_of(predictions: Predictions, source: str) -> TypicalUncertainty | None:
    """Quantiles of the uncertainties of predictions; None unless aleatoric and epistemic parts are known."""
    found = deviations_of(predictions)
    return None if found is None else TypicalUncertainty.of([found], source)


def deviations_of(predictions: Predictions) -> Deviations | None:
    """Standard deviations for :class:`TypicalUncertainty`; None unless aleatoric and epistemic parts are known."""
    energy, forces = predictions.energy, predictions.forces
    if energy is None or forces is None or energy.aleatoric_var is None or forces.aleatoric_var is None:
        return None
    if energy.epistemic_var is None or forces.epistemic_var is None:
        return None
    return deviations(
        {"total": energy.variance, "aleatoric": energy.aleatoric_var, "epistemic": energy.epistemic_var},
        {"total": forces.variance, "aleatoric": forces.aleatoric_var, "epistemic": forces.epistemic_var},
        predictions.structures.owners,
    )
