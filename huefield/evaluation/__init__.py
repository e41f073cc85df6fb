"""How good predictions and their error bars are, and how to make error bars better: functions of arrays.

Figures and the page are in modules of their own (:mod:`~huefield.evaluation.report.figures`,
:mod:`~huefield.evaluation.report.page`), so that importing this does not load what draws.
"""

from huefield.evaluation.entries import UndefinedMetricError as UndefinedMetricError
from huefield.evaluation.metrics import gaussian_nll as gaussian_nll
from huefield.evaluation.metrics import rmse as rmse
from huefield.evaluation.scores import Scores as Scores
from huefield.evaluation.slices import Evaluation as Evaluation
from huefield.evaluation.slices import Slice as Slice
from huefield.evaluation.slices import breakdown as breakdown
from huefield.evaluation.slices import summarise as summarise
from huefield.evaluation.summaries import Summary as Summary
from huefield.evaluation.summaries import summary as summary
