"""Baselines: calculators whose errors a model learns."""

from huefield.baselines.ase_calculator import AseBaseline as AseBaseline
from huefield.baselines.base import AbstractBaseline as AbstractBaseline
from huefield.baselines.base import BaselineError as BaselineError
from huefield.baselines.columns import ColumnsBaseline as ColumnsBaseline
from huefield.baselines.computing import BaselineComputer as BaselineComputer
from huefield.baselines.kinds import BaselineConfig as BaselineConfig
from huefield.baselines.kinds import BaselineLike as BaselineLike
from huefield.baselines.kinds import as_baseline as as_baseline
from huefield.baselines.process import ProcessBaseline as ProcessBaseline
from huefield.baselines.records import BaselineRecord as BaselineRecord
from huefield.baselines.records import open_baseline as open_baseline
from huefield.baselines.records import record_of as record_of
from huefield.baselines.resultlog import ResultLog as ResultLog
from huefield.baselines.tblite import TbliteBaseline as TbliteBaseline
