"""Metrics of predictions and their uncertainties, calibration, and reports.

Figures and the report page are in :mod:`huefield.evaluation.report`, so that importing this package does not import
matplotlib.
"""

from huefield.evaluation.entries import UndefinedMetricError as UndefinedMetricError
from huefield.evaluation.metrics import gaussian_nll as gaussian_nll
from huefield.evaluation.metrics import rmse as rmse
from huefield.evaluation.paper_metrics import PaperMetrics as PaperMetrics
from huefield.evaluation.slices import Evaluation as Evaluation
from huefield.evaluation.slices import Slice as Slice
from huefield.evaluation.slices import breakdown as breakdown
from huefield.evaluation.slices import summarise as summarise
from huefield.evaluation.summaries import MetricSummary as MetricSummary
from huefield.evaluation.summaries import summary as summary
