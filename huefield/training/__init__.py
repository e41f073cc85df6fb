"""From labelled structures to a trained ensemble."""

from huefield.training.assembly import assemble as assemble
from huefield.training.checkpoint import CheckpointError as CheckpointError
from huefield.training.config import TrainConfig as TrainConfig
from huefield.training.config import parse_config as parse_config
from huefield.training.fit import fit as fit
from huefield.training.job import train as train
from huefield.training.likelihoods import Averages as Averages
from huefield.training.likelihoods import beta_nll as beta_nll
from huefield.training.likelihoods import joint_nll as joint_nll
from huefield.training.likelihoods import marginal_nll as marginal_nll
from huefield.training.likelihoods import squared_error as squared_error
from huefield.training.outcome import Trained as Trained
from huefield.training.reports import StepReport as StepReport
from huefield.training.reports import ValidationReport as ValidationReport
from huefield.training.run import TrainingDivergedError as TrainingDivergedError
from huefield.training.run import TrainingStoppedError as TrainingStoppedError
from huefield.training.stages import BetaNLLStage as BetaNLLStage
from huefield.training.stages import NLLStage as NLLStage
from huefield.training.stages import SquaredErrorStage as SquaredErrorStage
from huefield.training.stages import Stage as Stage
from huefield.training.step import OptimiserConfig as OptimiserConfig
