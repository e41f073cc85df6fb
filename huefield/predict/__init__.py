"""Predictions of whole data sets: made with a model, read from files of any code, written."""

from huefield.predict.files import PredictionKeys as PredictionKeys
from huefield.predict.files import differing_structures as differing_structures
from huefield.predict.files import level_remark as level_remark
from huefield.predict.files import read_predictions as read_predictions
from huefield.predict.files import remarks_on as remarks_on
from huefield.predict.files import unit_remark as unit_remark
from huefield.predict.files import write_predictions as write_predictions
from huefield.predict.files import writing_predictions as writing_predictions
from huefield.predict.predicting import Predicted as Predicted
from huefield.predict.predicting import Report as Report
from huefield.predict.predicting import predict_part as predict_part
from huefield.predict.predictions import Marginals as Marginals
from huefield.predict.predictions import Predictions as Predictions
from huefield.predict.streaming import predict_blocks as predict_blocks
from huefield.predict.together import Together as Together
