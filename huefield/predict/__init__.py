"""Predictions: of one structure after another, of batches and files of any size; prediction files of any code."""

from huefield.predict.batches import OnProgress as OnProgress
from huefield.predict.batches import predict_blocks as predict_blocks
from huefield.predict.batches import predict_part as predict_part
from huefield.predict.batches import predict_parts as predict_parts
from huefield.predict.batches import predictions_by_part as predictions_by_part
from huefield.predict.batches import with_results as with_results
from huefield.predict.file import PredictedFile as PredictedFile
from huefield.predict.file import predict_file as predict_file
from huefield.predict.files import PredictionKeys as PredictionKeys
from huefield.predict.files import differing_structures as differing_structures
from huefield.predict.files import read_predictions as read_predictions
from huefield.predict.files import remarks_on as remarks_on
from huefield.predict.files import theory_remark as theory_remark
from huefield.predict.files import unit_remark as unit_remark
from huefield.predict.files import write_predictions as write_predictions
from huefield.predict.files import writing_predictions as writing_predictions
from huefield.predict.marginals import EnergyForcesMarginals as EnergyForcesMarginals
from huefield.predict.marginals import Marginals as Marginals
from huefield.predict.predictions import Predictions as Predictions
