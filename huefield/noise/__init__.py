"""Noise models: raw outputs of a potential and their gradients in, the covariance of energies and forces out."""

from typing import Annotated

from pydantic import Field

from huefield.noise.base import AbstractNoise as AbstractNoise
from huefield.noise.base import Covariance as Covariance
from huefield.noise.colored import ColoredNoise as ColoredNoise
from huefield.noise.local import LocalNoise as LocalNoise
from huefield.noise.local_white import LocalWhiteNoise as LocalWhiteNoise
from huefield.noise.vanilla import VanillaNoise as VanillaNoise
from huefield.noise.white import WhiteNoise as WhiteNoise

NoiseConfig = Annotated[
    VanillaNoise.Config | WhiteNoise.Config | ColoredNoise.Config | LocalNoise.Config | LocalWhiteNoise.Config,
    Field(discriminator="kind"),
]
