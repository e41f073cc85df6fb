"""Models in ASE: the calculator, joint distributions, molecular dynamics, reaction paths and frequencies."""

from huefield.ase.calculator import Calculator as Calculator
from huefield.ase.harmonic import harmonic as harmonic
from huefield.ase.joint import JointDistribution as JointDistribution
from huefield.ase.thresholds import UncertaintyWarning as UncertaintyWarning
