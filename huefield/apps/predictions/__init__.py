"""Predictions of whole data sets: made with a model, read from files of any code, written."""

from huefield.apps.predictions.keys import PredictionKeys as PredictionKeys
from huefield.apps.predictions.predicting import Predicted as Predicted
from huefield.apps.predictions.predicting import Report as Report
from huefield.apps.predictions.predicting import predict_part as predict_part
from huefield.apps.predictions.reading import read_predictions as read_predictions
from huefield.apps.predictions.remarks import differing_structures as differing_structures
from huefield.apps.predictions.remarks import remarks_on as remarks_on
from huefield.apps.predictions.streaming import predict_blocks as predict_blocks
from huefield.apps.predictions.together import Together as Together
from huefield.apps.predictions.units import level_remark as level_remark
from huefield.apps.predictions.units import unit_remark as unit_remark
from huefield.apps.predictions.writer import write_predictions as write_predictions
from huefield.apps.predictions.writer import writing_predictions as writing_predictions
