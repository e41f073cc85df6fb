"""Value objects and the joint energy–force Gaussian; no other part of huefield is needed."""

from huefield.core.balance import RigidMotions as RigidMotions
from huefield.core.gaussian import Gaussian as Gaussian
from huefield.core.gaussian import mixture as mixture
from huefield.core.neighbours import Neighbours as Neighbours
from huefield.core.observable import Observable as Observable
from huefield.core.observable import ObservableDistribution as ObservableDistribution
from huefield.core.strain import voigt as voigt
from huefield.core.structure import Block as Block
from huefield.core.structure import Structure as Structure
from huefield.core.structure import pack as pack
from huefield.core.types import EnergyForces as EnergyForces
from huefield.core.types import EnergyForcesStack as EnergyForcesStack
from huefield.core.types import Graph as Graph
from huefield.core.types import Labels as Labels
from huefield.core.types import Outputs as Outputs
from huefield.core.types import Partition as Partition
from huefield.core.types import Scaling as Scaling
