"""Metrics, calibration and figures."""

from huefield.evaluation.metrics import gaussian_nll as gaussian_nll
from huefield.evaluation.metrics import rmse as rmse
