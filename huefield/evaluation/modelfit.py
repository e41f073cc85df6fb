"""Fits of the calibration of a model to some of its predictions."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Bool

from huefield.core.structure import Block
from huefield.data.dataset import Part
from huefield.evaluation.coherent import fit_predictions, with_joint_tails
from huefield.evaluation.fits import fit_calibration, fit_gamma, with_gamma_times
from huefield.evaluation.pairs import energy_pairs, fit_differences
from huefield.evaluation.stressfit import with_stress
from huefield.model.ensemble import Ensemble
from huefield.predict import OnProgress, predict_part
from huefield.predict.predictions import Predictions

Method = Literal["coherent", "isotonic", "scale", "gamma", "conformal"]


@dataclass(frozen=True, eq=False)
class ModelFit:
    """A model with a calibration that was fitted to some structures."""

    ensemble: Ensemble
    predictions: Predictions
    """Calibrated predictions of all structures, also of those that were not fitted to."""
    remarks: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ModelFits:
    """Calibrations of one model with one method, fitted to any of the structures."""

    plain: Ensemble
    """The model without a calibration."""
    structures: Part
    before: Predictions
    """Predictions of all structures, uncalibrated."""
    method: Method
    group_size: int | None
    report: OnProgress

    def fit(self, chosen: Bool[np.ndarray, " n"]) -> ModelFit:
        """Fit to the structures that a mask chooses."""
        if self.method == "coherent":
            return self._coherent(chosen)
        if self.method == "gamma":
            return self._gamma(chosen)
        found = fit_calibration(self.before.select(chosen), self.method, self.group_size)
        ensemble = self.plain.with_calibration(found.calibration)
        ensemble = self._with_differences(ensemble, self.before.select(chosen).structures)
        return ModelFit(ensemble, self._predicted(ensemble), found.remarks)

    def _coherent(self, chosen: Bool[np.ndarray, " n"]) -> ModelFit:
        """Factors and tails of single quantities first; predictions with them show the tails of whole structures."""
        grows = self.plain.members.novelty is not None
        factors, remarks = fit_predictions(self.before.select(chosen), grows=grows)
        factors, of_stress = with_stress(factors, self.before.select(chosen))
        factors = factors.model_copy(update={"fitted_for": self.plain.noise_kind})
        after = self._predicted(self.plain.with_calibration(factors))
        whole = with_joint_tails(factors, after.select(chosen))
        after = after.with_joint_dof(whole.tails.joint)
        return ModelFit(self.plain.with_calibration(whole), after, (whole.in_words(), *remarks, *of_stress))

    def _gamma(self, chosen: Bool[np.ndarray, " n"]) -> ModelFit:
        gamma = fit_gamma(self.before.select(chosen), self._doubled.select(chosen))
        ensemble = with_gamma_times(self.plain, gamma.factor)
        remarks = (f"factor of γ: {gamma.factor:.4g}", gamma.remark)
        return ModelFit(ensemble, self._predicted(ensemble), remarks)

    @cached_property
    def _doubled(self) -> Predictions:
        """Predictions with twice the γ."""
        return predict_part(with_gamma_times(self.plain, 2.0), self.structures, "twice γ")

    def _predicted(self, ensemble: Ensemble) -> Predictions:
        return predict_part(ensemble, self.structures, "after", self.report)

    def _with_differences(self, ensemble: Ensemble, block: Block) -> Ensemble:
        """The calibrated ensemble with a calibration of energy differences, if there are enough pairs."""
        assert ensemble.calibration is not None  # noqa: S101 - the caller has just fitted one
        differences = fit_differences(energy_pairs(ensemble, block, report=self.report))
        return ensemble.with_calibration(ensemble.calibration.model_copy(update={"differences": differences}))
