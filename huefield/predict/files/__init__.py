"""Prediction files: read from any code, and written."""

from huefield.predict.files.keys import PredictionKeys as PredictionKeys
from huefield.predict.files.reading import read_predictions as read_predictions
from huefield.predict.files.remarks import differing_structures as differing_structures
from huefield.predict.files.remarks import remarks_on as remarks_on
from huefield.predict.files.units import theory_remark as theory_remark
from huefield.predict.files.units import unit_remark as unit_remark
from huefield.predict.files.writer import write_predictions as write_predictions
from huefield.predict.files.writer import writing_predictions as writing_predictions
