"""Force fields, ensembles with their calibration, their joint predictions, and model files."""

from huefield.model.calibration import ConformalCalibration as ConformalCalibration
from huefield.model.calibration import GammaCalibration as GammaCalibration
from huefield.model.calibration import IsotonicCalibration as IsotonicCalibration
from huefield.model.calibration import ScaleCalibration as ScaleCalibration
from huefield.model.differences import EnergyCovariance as EnergyCovariance
from huefield.model.differences import EnergyDifference as EnergyDifference
from huefield.model.ensemble import Ensemble as Ensemble
from huefield.model.forcefield import ForceField as ForceField
from huefield.model.joint_calibration import CoherentCalibration as CoherentCalibration
from huefield.model.joint_calibration import EnergyForcesCalibration as EnergyForcesCalibration
from huefield.model.joint_calibration import Tails as Tails
from huefield.model.modelfile import ModelFileError as ModelFileError
from huefield.model.modelfile import ModelSource as ModelSource
from huefield.model.modelfile import load as load
from huefield.model.modelfile import open_model as open_model
from huefield.model.modelfile import save as save
from huefield.model.prediction import Prediction as Prediction
from huefield.model.typical import TypicalUncertainty as TypicalUncertainty
