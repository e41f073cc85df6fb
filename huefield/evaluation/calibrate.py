"""Calibrate a model: fit to some structures, check on the others, then fit to all of them.

The check is that of the first fit, since a fit must not be judged by the structures it has seen. The calibration that
is kept is the second one, which has seen more.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from huefield.baselines import BaselineLike
from huefield.core.structure import Block
from huefield.core.tails import interval_width
from huefield.data.dataset import Part
from huefield.data.opening import DataSource, of_dataset, open_data
from huefield.data.readers.detect import ReaderConfig
from huefield.evaluation.fits import (
    fit_calibration,
    require_comparable,
    require_gamma,
    typical_of,
    worse_remarks,
)
from huefield.evaluation.modelfit import Method, ModelFits
from huefield.evaluation.pairs import EnergyPairs, energy_pairs
from huefield.evaluation.slices import Evaluation, summarise
from huefield.model.ensemble import Ensemble
from huefield.model.joint_calibration import AbstractJointCalibration, CoherentCalibration, EnergyForcesCalibration
from huefield.model.modelfile import ModelSource, open_model, save
from huefield.predict import OnProgress, predict_part, remarks_on, with_results
from huefield.predict.predictions import Observed, Predictions
from huefield.support.defaults import FIT_FRACTION
from huefield.support.errors import HuefieldError

PRINTED_COVERAGES = (0.5, 0.68, 0.9, 0.95)
FEWEST_STRUCTURES = 4
"""Two to fit to, and two to compare on."""
FAR = 5.0
"""Ratio of two factors of variances that are far apart."""
LITTLE = 0.05
"""Factors below this leave little of a part of the variance, whatever their ratio."""
CONFORMAL_REMARK = (
    "the coverage of conformal intervals is guaranteed only if these structures were used neither for training nor for "
    "model selection; with validation data that selected the model it is approximate"
)
COHERENCE_REMARK = (
    "this method scales the variances of energies and forces separately: joint samples of energy and forces no longer "
    "belong to one energy surface (the method coherent keeps them so)"
)

FOR = "intervals are for new structures of molecules, and at conditions, like those of these data"
GROWS = f"{FOR}; for others, noise grows with the distance to the training data (docs/reproduction/new-structures.md)"
DOES_NOT_GROW = (
    f"{FOR}; for others expect them to be too narrow: noise of this model does not grow away from the training data, "
    "as that of newly trained models with local noise does"
)


@dataclass(frozen=True)
class CoverageChange:
    """Observed coverage of the intervals with one nominal coverage."""

    nominal: float
    before: float
    after: float


@dataclass(frozen=True, eq=False, repr=False)
class CalibrationCheck:
    """Predictions before and after calibration, for structures that it was not fitted to.

    The calibration that is kept was fitted to these structures, too.
    """

    method: Method
    before: Predictions
    after: Predictions
    fitted_to: int
    """Number of structures of the fit that is checked."""
    remarks: tuple[str, ...]
    calibration: AbstractJointCalibration | None
    """The one that is checked; None after a fit of γ."""
    pairs: tuple[EnergyPairs, EnergyPairs] | None = None
    """Energy differences between these structures, before and after; None if there are none."""

    @cached_property
    def evaluations(self) -> tuple[Evaluation, Evaluation]:
        """Metrics before and after."""
        return summarise(self.before), summarise(self.after)

    def coverage(self) -> dict[str, list[CoverageChange]]:
        """Observed coverage of intervals before and after calibration, by quantity."""
        calibration = self.calibration or EnergyForcesCalibration()
        given = [nominal for nominal in PRINTED_COVERAGES if nominal <= calibration.largest_coverage]
        found = {
            "energies": (self.before.observed_energies(), self.after.observed_energies()),
            "forces": (self.before.observed_forces(), self.after.observed_forces()),
            "stresses": (self.before.observed_stress(), self.after.observed_stress()),
        }
        changes = {
            name: [
                CoverageChange(c, _held(old, interval_width(c, old.dof)), _held(new, _width(calibration, name, c, new)))
                for c in given
            ]
            for name, (old, new) in found.items()
            if old is not None and new is not None
        }
        if self.pairs is not None:
            old, new = self.pairs
            changes["energy differences"] = [
                CoverageChange(c, old.held(interval_width(c)), new.held(calibration.difference_width(c))) for c in given
            ]
        return changes

    def __str__(self) -> str:
        """The method, metrics and coverage before and after, and remarks."""
        return "\n".join([self.text(), *(f"note: {remark}" for remark in self.remarks)])

    __repr__ = __str__

    def text(self) -> str:
        """The method, and metrics and coverage before and after, without remarks."""
        from huefield.evaluation.report.tables import narrow_table

        fitted = f"Calibration ({self.method}) fitted to {self.fitted_to} structures"
        lines = [f"{fitted}; metrics of the {len(self.after)} others:", narrow_table(self.evaluations)]
        for name, changes in self.coverage().items():
            shares = ", ".join(f"{100 * c.nominal:g} %: {100 * c.before:.0f} → {100 * c.after:.0f} %" for c in changes)
            count = f" ({len(self.pairs[0])} pairs)" if name == "energy differences" and self.pairs is not None else ""
            lines.append(f"Coverage of intervals of {name}{count}, before → after: {shares}")
        return "\n".join([*lines, self.kept_text()])

    def kept_text(self) -> str:
        """Which calibration is kept."""
        return (
            f"The calibration that is kept was fitted to all {self.fitted_to + len(self.after)} structures afterwards."
        )

    def _repr_html_(self) -> str:
        from huefield.evaluation.report.notebook import calibration_html

        return calibration_html(self)


@dataclass(frozen=True, eq=False, repr=False)
class CalibratedModel:
    """A calibrated ensemble, with a comparison of its uncertainties before and after.

    ``huefield.Calculator``, ``huefield.evaluate`` and all other functions that take a model accept it.
    """

    ensemble: Ensemble
    check: CalibrationCheck

    def save(self, path: str | Path) -> None:
        """Write the ensemble with its calibration to a model file."""
        save(self.ensemble, path)

    def __str__(self) -> str:
        return str(self.check)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.check._repr_html_()


def calibrate(
    model: ModelSource,
    data: DataSource | None = None,
    method: Method = "coherent",
    *,
    part: str | None = None,
    reader: ReaderConfig | None = None,
    group_size: int | None = None,
    fit_fraction: float = FIT_FRACTION,
    seed: int = 0,
    dataset: str | None = None,
    baseline: BaselineLike | None = None,
    report: OnProgress = lambda done, total: None,
) -> CalibratedModel:
    """Calibrate the uncertainties of a model; a calibration that it has is replaced.

    A first fit, to a share of the structures, is checked on the others. The model then gets a fit to all of them.

    Args:
        model: an ensemble, a model file, or the result of ``huefield.train``.
        data: labelled structures that the model was not trained on: ASE atoms, files, a store, or the folder of a run;
            None for the validation data of the result of ``huefield.train``.
        method: ``coherent`` keeps the force noise the derivative of the energy noise; ``isotonic``, ``scale`` and
            ``conformal`` map the variances of energies and forces separately; ``gamma`` changes γ of the noise model.
        part: name of the part, if ``data`` is the folder of a run; None for ``validation``.
        reader: how to read ``data``; None to find out.
        group_size: for isotonic regression, see :meth:`IsotonicCalibration.fit`.
        fit_fraction: share of the structures, drawn at random, for the first fit; the others are for the check.
        seed: seed of the draw.
        dataset: data set of the structures, for a model of several; None for its main one. Structures of a run have
            data sets of their own: those of this one are used, or all for None.
        baseline: the ASE calculator that the model corrects; None for a built-in one, or for results in the data.
        report: receives the number of predicted structures and the number of all.
    """
    ensemble = open_model(model, dataset=dataset)
    if method == "gamma":
        require_gamma(ensemble)
    structures = open_data(
        _validation(model) if data is None else data, part=part, usual_part="validation", reader=reader
    )
    structures = with_results(ensemble, of_dataset(structures, dataset), baseline, report)
    plain = ensemble.with_calibration(None)
    before = predict_part(plain, structures, "before", report)
    require_comparable(before)
    fitted = _drawn(len(before), fit_fraction, seed)
    fits = ModelFits(plain, structures, before, method, group_size, report)
    trial, final = fits.fit(fitted), fits.fit(np.ones(len(before), bool))
    kept = final.ensemble.with_typical(typical_of(final.predictions, "data of its calibration"))
    remarks = _of_both_fits(trial.remarks, final.remarks, int(fitted.sum()))
    remarks += fits_disagree(trial.ensemble.calibration, final.ensemble.calibration)
    remarks.append(DOES_NOT_GROW if ensemble.members.novelty is None else GROWS)
    if ensemble.calibration is not None:
        remarks.append("the old calibration of the model is replaced; metrics before are without it")
    rest = before.select(~fitted), trial.predictions.select(~fitted)
    told = _remarks(before, remarks, rest, method)
    pairs = _pairs(plain, trial.ensemble, rest[0].structures, report)
    check = CalibrationCheck(method, *rest, int(fitted.sum()), told, trial.ensemble.calibration, pairs)
    return CalibratedModel(kept, check)


def calibrate_predictions(
    predictions: Predictions,
    method: Method = "isotonic",
    *,
    group_size: int | None = None,
    fit_fraction: float = FIT_FRACTION,
    seed: int = 0,
) -> tuple[EnergyForcesCalibration, CalibrationCheck]:
    """Calibrate predictions of any code; arguments as for :func:`calibrate`.

    Returns:
        The calibration, fitted to all structures, and a check with a fit to some of them.
    """
    if method == "coherent" or method == "gamma":
        raise HuefieldError(
            f"the method {method} changes the noise of a model: it can be fitted to a model, not to predictions in a "
            "file; use isotonic, scale or conformal"
        )
    require_comparable(predictions)
    fitted = _drawn(len(predictions), fit_fraction, seed)
    trial = fit_calibration(predictions.select(fitted), method, group_size)
    final = fit_calibration(predictions, method, group_size)
    rest = replace(predictions.select(~fitted), name="before")
    after = replace(rest.calibrated(trial.calibration), name="after")
    remarks = _of_both_fits(trial.remarks, final.remarks, int(fitted.sum()))
    told = _remarks(predictions, remarks, (rest, after), method)
    return final.calibration, CalibrationCheck(method, rest, after, int(fitted.sum()), told, trial.calibration)


def _validation(model: object) -> Part:
    found = getattr(model, "validation", None)
    if not isinstance(found, Part):
        raise HuefieldError(
            "there are no data to calibrate with: give labelled structures that the model was not trained on, as in "
            "calibrate(model, 'validation.xyz')"
        )
    return found


def _of_both_fits(trial: tuple[str, ...], final: tuple[str, ...], count: int) -> list[str]:
    """Remarks on the fit that is kept, then those that hold only for the fit of the check.

    Args:
        trial: remarks on the fit of the check.
        final: remarks on the fit to all structures.
        count: number of structures of the fit of the check.
    """
    known = {_subject(remark) for remark in final}
    only = [remark for remark in trial if remark and _subject(remark) not in known]
    return [*final, *(f"in the check, with its fit to {count} structures, {remark}" for remark in only)]


def fits_disagree(trial: AbstractJointCalibration | None, final: AbstractJointCalibration | None) -> tuple[str, ...]:
    """A warning if a coherent fit to all structures is far from that to some, which the check is about."""
    if not isinstance(trial, CoherentCalibration) or not isinstance(final, CoherentCalibration):
        return ()
    names = {"noise": "noise", "force_diagonal": "rest of forces", "spread": "members"}
    pairs = {words: (getattr(trial, name), getattr(final, name)) for name, words in names.items()}
    far = [
        f"{words} {some:.3g} and {whole:.3g}"
        for words, (some, whole) in pairs.items()
        if not 1 / FAR < whole / some < FAR and max(some, whole) > LITTLE
    ]
    if not far:
        return ()
    return (
        f"warning: factors of the check and of the fit that is kept are far apart ({'; '.join(far)}), so that the "
        "check says little about the latter: calibrate with more structures, or use --method scale",
    )


def _subject(remark: str) -> str:
    """The words before the numbers, which differ between two fits."""
    return remark.partition(":")[0]


def _remarks(
    predictions: Predictions,
    fit_remarks: list[str] | tuple[str, ...],
    rest: tuple[Predictions, Predictions],
    method: Method,
) -> tuple[str, ...]:
    """All remarks on a calibration. A conformal one does not aim at the likelihood."""
    told = [*remarks_on(predictions), *fit_remarks]
    told += [CONFORMAL_REMARK] if method == "conformal" else worse_remarks(*rest)
    told += [] if method in ("coherent", "gamma") else [COHERENCE_REMARK]
    return tuple(remark for remark in told if remark)


def _pairs(
    plain: Ensemble, changed: Ensemble, block: Block, report: OnProgress
) -> tuple[EnergyPairs, EnergyPairs] | None:
    """Energy differences between structures of a group before and after calibration; None if there are none."""
    if changed.calibration is None:
        return None
    after = energy_pairs(changed, block, report=report)
    return (energy_pairs(plain, block), after) if len(after) else None


def _width(calibration: AbstractJointCalibration, name: str, coverage: float, found: Observed) -> float:
    """Half-width of the intervals of a quantity in units of its calibrated σ; stresses have quantiles of their own."""
    of_energies, of_forces = calibration.interval_widths(coverage)
    return {"energies": of_energies, "forces": of_forces}.get(name) or interval_width(coverage, found.dof)


def _held(found: Observed, width: float) -> float:
    noisy = found.variance > 0
    if not noisy.any():
        return float("nan")
    return float(np.mean(np.abs(found.error[noisy]) <= width * np.sqrt(found.variance[noisy])))


def _drawn(count: int, fraction: float, seed: int) -> Bool[np.ndarray, " n"]:
    """Mask of the structures for the fit."""
    if count < FEWEST_STRUCTURES:
        raise HuefieldError(f"{count} structures are too few for a calibration, which needs {FEWEST_STRUCTURES}")
    if not 0 < fraction < 1:
        raise HuefieldError(f"the fraction of structures for the fit must lie between 0 and 1, but is {fraction:g}")
    size = int(np.clip(round(fraction * count), 2, count - 2))
    drawn = np.zeros(count, bool)
    drawn[np.random.default_rng(seed).permutation(count)[:size]] = True
    return drawn
