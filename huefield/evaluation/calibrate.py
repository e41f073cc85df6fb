"""Fit a calibration to a part of the data, and see on the rest what it is worth."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool

from huefield.core.structure import Block
from huefield.data.dataset import Part
from huefield.evaluation.metrics import gaussian_nll
from huefield.evaluation.pairs import EnergyPairs, energy_pairs, fit_differences
from huefield.evaluation.slices import Evaluation, summarise
from huefield.model.calibration import (
    CalibrationConfig,
    ConformalCalibration,
    GammaCalibration,
    IsotonicCalibration,
    ScaleCalibration,
)
from huefield.model.ensemble import Ensemble
from huefield.model.joint_calibration import EnergyForcesCalibration, isotropic_var
from huefield.model.typical import TypicalUncertainty
from huefield.noise import ColoredNoise
from huefield.predict import OnProgress, predict_part, remarks_on, theory_remark, unit_remark
from huefield.predict.predictions import Observed, Predictions
from huefield.support.errors import HuefieldError

Method = Literal["isotonic", "scale", "gamma", "conformal"]
PRINTED_COVERAGES = (0.5, 0.68, 0.9, 0.95)
WORSE = 0.01
"""By which a negative log likelihood must be larger to be told of."""
FEWEST_STRUCTURES = 4
"""Two to fit to, and two to look at."""


@dataclass(frozen=True, eq=False)
class CalibrationResult:
    """What a calibration changes, on structures that it was not fitted to."""

    before: Predictions
    after: Predictions
    fitted_to: int
    """Structures."""
    remarks: tuple[str, ...]
    calibration: EnergyForcesCalibration | None
    """None after a fit of γ."""
    pairs: EnergyPairs | None = None
    """Of those structures, where differences of energies were calibrated."""

    def coverage(self) -> dict[str, list[tuple[float, float]]]:
        """By quantity: promised shares of observations, and the shares that calibrated intervals hold."""
        found = {"energies": self.after.observed_energies(), "forces": self.after.observed_forces()}
        calibration = self.calibration or EnergyForcesCalibration()
        given = [share for share in PRINTED_COVERAGES if share <= calibration.largest_coverage]
        widths = {share: calibration.interval_widths(share) for share in given}
        held = {
            name: [(share, _held(each, width[number])) for share, width in widths.items()]
            for number, (name, each) in enumerate(found.items())
            if each is not None
        }
        if self.pairs is not None and len(self.pairs):
            differences = [(share, self.pairs.held(calibration.difference_width(share))) for share in widths]
            held["differences of energies"] = differences
        return held

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
    report: OnProgress = lambda done, total: None,
) -> tuple[Ensemble, CalibrationResult]:
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
    if method == "gamma":
        require_gamma(ensemble)
    plain = ensemble.with_calibration(None)
    before = predict_part(plain, part, "before", report)
    require_comparable(before)
    fitted = _drawn(len(before), fit_fraction, seed)
    if method == "gamma":
        gamma = _fitted_gamma(plain, part, before, fitted)
        changed, remarks = with_gamma_times(plain, gamma.factor), [f"γ times {gamma.factor:.4g}", gamma.remark]
    else:
        fit = fit_calibration(before.select(fitted), method, group_size)
        changed, remarks = plain.with_calibration(fit.calibration), list(fit.remarks)
        changed = _with_differences(changed, before.select(fitted).structures, report)
    after = predict_part(changed, part, "after", report)
    changed = changed.with_typical(typical_of(after, "data of its calibration"))
    if ensemble.calibration is not None:
        remarks.append("the calibration that the model had is replaced; before is without it")
    rest = (before.select(~fitted), after.select(~fitted))
    told = tuple(remark for remark in (*remarks_on(before), *remarks, *_worse(*rest, method)) if remark)
    has_pairs = changed.calibration is not None and changed.calibration.differences is not None
    pairs = energy_pairs(changed, rest[0].structures, report=report) if has_pairs else None
    return changed, CalibrationResult(*rest, int(fitted.sum()), told, changed.calibration, pairs)


def _with_differences(ensemble: Ensemble, block: Block, report: OnProgress) -> Ensemble:
    """The calibrated ensemble with what is left to calibrate of differences, where there are enough pairs to know."""
    assert ensemble.calibration is not None  # noqa: S101 - the caller has just fitted one
    differences = fit_differences(energy_pairs(ensemble, block, report=report))
    return ensemble.with_calibration(ensemble.calibration.model_copy(update={"differences": differences}))


def calibrate_predictions(
    predictions: Predictions,
    method: Method = "isotonic",
    *,
    group_size: int | None = None,
    fit_fraction: float = 0.5,
    seed: int = 0,
) -> tuple[EnergyForcesCalibration, CalibrationResult]:
    """A calibration of predictions that any code has made; arguments as of :func:`calibrate`."""
    if method == "gamma":
        raise HuefieldError(
            "γ is a parameter of a noise model: it can be fitted to a model, not to predictions in a file"
        )
    require_comparable(predictions)
    fitted = _drawn(len(predictions), fit_fraction, seed)
    fit = fit_calibration(predictions.select(fitted), method, group_size)
    rest = replace(predictions.select(~fitted), name="before")
    after = replace(rest.calibrated(fit.calibration), name="after")
    told = (*remarks_on(predictions), *fit.remarks, *_worse(rest, after, method))
    return fit.calibration, CalibrationResult(rest, after, int(fitted.sum()), told, fit.calibration)


def typical_of(predictions: Predictions, source: str) -> TypicalUncertainty | None:
    """What the uncertainty of these predictions of a model is like; None where it does not know its parts."""
    energy, forces = predictions.energy, predictions.forces
    if energy is None or forces is None or energy.aleatoric_var is None or forces.aleatoric_var is None:
        return None
    if energy.epistemic_var is None or forces.epistemic_var is None:
        return None
    return TypicalUncertainty.of(
        {"total": energy.variance, "aleatoric": energy.aleatoric_var, "epistemic": energy.epistemic_var},
        {"total": forces.variance, "aleatoric": forces.aleatoric_var, "epistemic": forces.epistemic_var},
        predictions.structures.owners,
        source,
    )


def _held(found: Observed, width: float) -> float:
    noisy = found.variance > 0
    return float(np.mean(np.abs(found.error[noisy]) <= width * np.sqrt(found.variance[noisy])))


@dataclass(frozen=True)
class Fit:
    """A calibration, and what to know about it."""

    calibration: EnergyForcesCalibration
    remarks: tuple[str, ...]


def fit_calibration(
    predictions: Predictions, method: Literal["isotonic", "scale", "conformal"], group_size: int | None = None
) -> Fit:
    """Fit energies and forces separately; what there is too little of is left as it is, with a remark.

    Args:
        predictions: of structures that the model was not trained on.
        method: how variances are mapped.
        group_size: for isotonic regression, see :meth:`IsotonicCalibration.fit`.
    """
    found = {"energies": predictions.observed_energies(), "forces": predictions.observed_forces()}
    if not any(found.values()):
        raise HuefieldError(
            "there is nothing to calibrate with: no energy and no force was both predicted and observed"
        )
    fits: dict[str, CalibrationConfig | None] = {}
    remarks = []
    for name, observed in found.items():
        try:
            fits[name] = None if observed is None else _fitted(observed, method, group_size, of_atoms=name == "forces")
        except ValueError as fault:
            fits[name] = None
            remarks.append(f"{name} are not calibrated: {fault}")
    if not any(fits.values()):
        raise HuefieldError("; ".join(remarks))
    remarks += [f"{name}: {fit.remark}" for name, fit in fits.items() if fit is not None and fit.remark]
    return Fit(EnergyForcesCalibration(energy=fits["energies"], forces=fits["forces"]), tuple(remarks))


def require_comparable(predictions: Predictions) -> None:
    """Raise if units or levels of theory of predictions and reference seem to differ: error bars would cover that."""
    remark = unit_remark(predictions)
    if remark:
        raise HuefieldError(f"{remark} Calibrate with data in the units of the predictions, eV and eV/Å")
    shifted = theory_remark(predictions)
    if shifted:
        raise HuefieldError(f"{shifted}. Calibrate with data of the model's own level")


def _worse(before: Predictions, after: Predictions, method: Method) -> list[str]:
    """Where the calibration did harm to what it was not fitted to. Conformal ones are not after the likelihood."""
    pairs = {
        "energies": (before.observed_energies(), after.observed_energies()),
        "forces": (before.observed_forces(), after.observed_forces()),
    }
    return [
        f"{name}: on the others the likelihood got worse (NLL {old:.3g} → {new:.3g}): too few data to calibrate with?"
        for name, (first, last) in pairs.items()
        if first is not None and last is not None and method != "conformal"
        for old, new in [(_nll(first), _nll(last))]
        if new > old + WORSE
    ]


def _nll(found: Observed) -> float:
    noisy = found.variance > 0
    return gaussian_nll(found.error[noisy], found.variance[noisy]) if noisy.any() else np.nan


def _fitted(found: Observed, method: str, group_size: int | None, *, of_atoms: bool) -> CalibrationConfig:
    if method == "scale":
        return ScaleCalibration.fit(found.variance, found.error)
    if method == "conformal":
        return ConformalCalibration.fit(found.variance, found.error, found.structure)
    level = isotropic_var(found.variance.reshape(-1, 3)).ravel() if of_atoms else found.variance
    noisy = found.variance > 0
    # Of an atom whose three variances differ, errors in units of its level: they have the factor that is looked for.
    error = found.error[noisy] * np.sqrt(level[noisy] / found.variance[noisy])
    return IsotonicCalibration.fit(level[noisy], error, group_size=group_size, structure=found.structure[noisy])


def _drawn(count: int, fraction: float, seed: int) -> Bool[np.ndarray, " n"]:
    """Which structures to fit to."""
    if count < FEWEST_STRUCTURES:
        raise HuefieldError(f"{count} structures are too few to calibrate with: it takes {FEWEST_STRUCTURES} at least")
    if not 0 < fraction < 1:
        raise HuefieldError(f"the fraction to fit to lies between 0 and 1, but is {fraction:g}")
    size = int(np.clip(round(fraction * count), 2, count - 2))
    drawn = np.zeros(count, bool)
    drawn[np.random.default_rng(seed).permutation(count)[:size]] = True
    return drawn


def require_gamma(ensemble: Ensemble) -> None:
    """Raise unless the noise model has a γ."""
    if not isinstance(ensemble.members.noise, ColoredNoise):
        kind = getattr(ensemble.members.noise.config, "kind", "another")
        raise HuefieldError(
            f"the noise model is {kind}, which has no γ to fit: use --method isotonic, scale or conformal"
        )


def _fitted_gamma(
    ensemble: Ensemble, part: Part, before: Predictions, fitted: Bool[np.ndarray, " n"]
) -> GammaCalibration:
    doubled = predict_part(with_gamma_times(ensemble, 2.0), part, "twice γ")
    return fit_gamma(before.select(fitted), doubled.select(fitted))


def fit_gamma(before: Predictions, doubled: Predictions) -> GammaCalibration:
    """The factor of γ. Variances are linear in it: what a second γ adds, the first one is.

    Args:
        before: predictions of a model.
        doubled: the same with twice its γ, as :func:`with_gamma_times` makes it.
    """
    once, twice = before.observed_forces(), doubled.observed_forces()
    if once is None or twice is None:
        raise HuefieldError("γ is fitted to forces, but no structure has any")
    gamma_var = np.maximum(twice.variance - once.variance, 0.0)
    return GammaCalibration.fit(gamma_var, np.maximum(once.variance - gamma_var, 0.0), once.error)


def with_gamma_times(ensemble: Ensemble, factor: float) -> Ensemble:
    """The ensemble, of colored noise, with another γ."""
    return ensemble.map_noise(lambda noise: noise.with_gamma_times(factor))  # type: ignore[attr-defined]
