"""Generation of reactive data with quantum chemistry: molecules, reactions, sampling and labels."""

from huefield.make_data.job import make as make
from huefield.make_data.plan import SPLITS as SPLITS
from huefield.make_data.plan import SamplingPlan as SamplingPlan
from huefield.make_data.pool import MakeProgress as MakeProgress
from huefield.make_data.relax import SamplingError as SamplingError
