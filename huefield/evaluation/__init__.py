"""How good predictions and their error bars are, and how to make error bars better: functions of arrays.

Figures and the page are in modules of their own (:mod:`~huefield.evaluation.figures`,
:mod:`~huefield.evaluation.report`), so that importing this does not load what draws.
"""

from huefield.evaluation.calibrated import EnergyForcesCalibration as EnergyForcesCalibration
from huefield.evaluation.calibration import ConformalCalibration as ConformalCalibration
from huefield.evaluation.calibration import GammaCalibration as GammaCalibration
from huefield.evaluation.calibration import IsotonicCalibration as IsotonicCalibration
from huefield.evaluation.calibration import ScaleCalibration as ScaleCalibration
from huefield.evaluation.entries import UndefinedMetricError as UndefinedMetricError
from huefield.evaluation.metrics import gaussian_nll as gaussian_nll
from huefield.evaluation.metrics import rmse as rmse
from huefield.evaluation.predictions import Marginals as Marginals
from huefield.evaluation.predictions import Predictions as Predictions
from huefield.evaluation.scores import Scores as Scores
from huefield.evaluation.slices import Evaluation as Evaluation
from huefield.evaluation.slices import Slice as Slice
from huefield.evaluation.slices import breakdown as breakdown
from huefield.evaluation.slices import summarise as summarise
from huefield.evaluation.summaries import Summary as Summary
from huefield.evaluation.summaries import summary as summary
