"""Potentials: a batch of structures in, energies and raw noise outputs with their gradients out."""

from typing import Annotated

from pydantic import Field

from huefield.potentials.base import AbstractPotential as AbstractPotential
from huefield.potentials.base import AtomOutputs as AtomOutputs
from huefield.potentials.base import differentiate as differentiate
from huefield.potentials.mace import MACE as MACE
from huefield.potentials.mlp import MLPPotential as MLPPotential
from huefield.potentials.painn import PaiNN as PaiNN

PotentialConfig = Annotated[MACE.Config | MLPPotential.Config | PaiNN.Config, Field(discriminator="kind")]
