"""Fit a calibration to a part of the data, and see on the rest what it is worth."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool

from huefield.apps.predictions import Report, predict_part
from huefield.data.dataset import Part
from huefield.evaluation.calibrated import EnergyForcesCalibration
from huefield.evaluation.calibration import (
    CalibrationConfig,
    ConformalCalibration,
    GammaCalibration,
    IsotonicCalibration,
    ScaleCalibration,
)
from huefield.evaluation.predictions import Observed, Predictions
from huefield.evaluation.slices import Evaluation, summarise
from huefield.forcefield import Ensemble
from huefield.noise import ColoredNoise

Method = Literal["isotonic", "scale", "gamma", "conformal"]
FEWEST_STRUCTURES = 4
"""Two to fit to, and two to look at."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What a calibration changes, on structures that it was not fitted to."""

    before: Predictions
    after: Predictions
    fitted_to: int
    """Structures."""
    remarks: tuple[str, ...]

    def evaluations(self) -> tuple[Evaluation, Evaluation]:
        """Metrics before and after."""
        return summarise(self.before), summarise(self.after)


def calibrate(
    ensemble: Ensemble,
    part: Part,
    method: Method = "isotonic",
    *,
    group_size: int | None = None,
    fit_fraction: float = 0.5,
    seed: int = 0,
    report: Report = lambda done, total: None,
) -> tuple[Ensemble, Calibrated]:
    """The ensemble with calibrated variances, whatever calibration it had before.

    Args:
        ensemble: the model.
        part: labelled structures that it was not trained on.
        method: how variances are mapped; ``gamma`` changes γ of the noise model instead.
        group_size: for isotonic regression, see :meth:`IsotonicCalibration.fit`.
        fit_fraction: how much of the structures, drawn at random, is fitted to; the others show what it is worth.
        seed: of the draw.
        report: is told how far the predictions are.
    """
    plain = ensemble.with_calibration(None)
    before = predict_part(plain, part, "before", report).predictions
    fitted = _drawn(len(before), fit_fraction, seed)
    if method == "gamma":
        changed = _with_fitted_gamma(plain, part, before, fitted)
        after = predict_part(changed, part, "after", report).predictions
        return changed, Calibrated(before.select(~fitted), after.select(~fitted), int(fitted.sum()), ())
    calibration = fit_calibration(before.select(fitted), method, group_size)
    changed = plain.with_calibration(calibration)
    after = predict_part(changed, part, "after", report).predictions
    done = Calibrated(before.select(~fitted), after.select(~fitted), int(fitted.sum()), remarks_on(calibration))
    return changed, done


def calibrate_predictions(
    predictions: Predictions,
    method: Method = "isotonic",
    *,
    group_size: int | None = None,
    fit_fraction: float = 0.5,
    seed: int = 0,
) -> tuple[EnergyForcesCalibration, Calibrated]:
    """A calibration of predictions that any code has made; arguments as of :func:`calibrate`."""
    if method == "gamma":
        raise ValueError("γ is a parameter of a noise model: it can be fitted to a model, not to predictions in a file")
    fitted = _drawn(len(predictions), fit_fraction, seed)
    calibration = fit_calibration(predictions.select(fitted), method, group_size)
    rest = predictions.select(~fitted)
    return calibration, Calibrated(rest, rest.calibrated(calibration), int(fitted.sum()), remarks_on(calibration))


def fit_calibration(
    predictions: Predictions, method: Literal["isotonic", "scale", "conformal"], group_size: int | None = None
) -> EnergyForcesCalibration:
    """Fit energies and forces separately; what was not predicted or not observed is left as it is."""
    energy, forces = predictions.observed_energies(), predictions.observed_forces()
    if energy is None and forces is None:
        raise ValueError("there is nothing to calibrate with: no energy and no force was both predicted and observed")
    return EnergyForcesCalibration(
        energy=None if energy is None else _fitted("energies", energy, method, group_size),
        forces=None if forces is None else _fitted("forces", forces, method, group_size),
    )


def remarks_on(calibration: EnergyForcesCalibration) -> tuple[str, ...]:
    """What to know about a fit."""
    fits = (("energies", calibration.energy), ("forces", calibration.forces))
    return tuple(f"{name}: {fit.remark}" for name, fit in fits if fit is not None and fit.remark)


def _fitted(name: str, found: Observed, method: str, group_size: int | None) -> CalibrationConfig:
    error = found.target - found.mean
    try:
        if method == "scale":
            return ScaleCalibration.fit(found.variance, error)
        if method == "conformal":
            return ConformalCalibration.fit(found.variance, error, found.structure)
        return IsotonicCalibration.fit(found.variance, error, group_size=group_size, outside="ratio")
    except ValueError as fault:
        raise ValueError(f"{name} cannot be calibrated: {fault}") from fault


def _drawn(count: int, fraction: float, seed: int) -> Bool[np.ndarray, " n"]:
    """Which structures to fit to."""
    if count < FEWEST_STRUCTURES:
        raise ValueError(f"{count} structures are too few to calibrate with: it takes {FEWEST_STRUCTURES} at least")
    if not 0 < fraction < 1:
        raise ValueError(f"the fraction to fit to lies between 0 and 1, but is {fraction:g}")
    size = int(np.clip(round(fraction * count), 2, count - 2))
    drawn = np.zeros(count, bool)
    drawn[np.random.default_rng(seed).permutation(count)[:size]] = True
    return drawn


def _with_fitted_gamma(ensemble: Ensemble, part: Part, before: Predictions, fitted: Bool[np.ndarray, " n"]) -> Ensemble:
    """γ times the factor of highest likelihood. Variances are linear in it: what a second γ adds, the first one is."""
    if not isinstance(ensemble.members.noise, ColoredNoise):
        kind = type(ensemble.members.noise).__name__
        raise ValueError(f"{kind} has no γ to fit: use the method isotonic, scale or conformal")
    doubled = predict_part(_times_gamma(ensemble, 2.0), part, "twice γ").predictions
    once, twice = (each.select(fitted).observed_forces() for each in (before, doubled))
    if once is None or twice is None:
        raise ValueError("γ is fitted to forces, but no structure has any")
    gamma_var = np.maximum(twice.variance - once.variance, 0.0)
    fit = GammaCalibration.fit(gamma_var, np.maximum(once.variance - gamma_var, 0.0), once.target - once.mean)
    return _times_gamma(ensemble, fit.factor)


def _times_gamma(ensemble: Ensemble, factor: float) -> Ensemble:
    return ensemble.map_noise(lambda noise: noise.with_gamma(factor * noise.gamma.gamma))  # type: ignore[attr-defined]
