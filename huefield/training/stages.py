"""The stages of training: what is minimised, for how many steps, with which learning rate.

[J23] arXiv:2312.04174v1, appendix "Model Hyperparameters and Training": squared error on the mean, then β-NLL with β
going from 1 to 0, then NLL.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Literal

from jaxtyping import Array, Float
from pydantic import Field

from huefield.core import Gaussian, Labels
from huefield.core.config import FrozenConfig
from huefield.training import likelihoods


class AbstractStage(FrozenConfig, ABC):
    """A number of steps with one objective."""

    steps: int = Field(ge=0, description="gradient steps")
    learning_rate: float = Field(1e-3, gt=0, description="of Adam, at the beginning of the stage")
    decay: float = Field(1.0, gt=0, le=1, description="learning rate at the end of the stage relative to its beginning")

    weight_decay: float = Field(0.0, ge=0, description="decoupled, on the weights of the potential")
    initialise_noise: bool = Field(False, description="first set each member's noise levels to its training errors")

    @property
    @abstractmethod
    def trains_noise(self) -> bool:
        """Whether the objective depends on the variances."""

    @abstractmethod
    def loss(self, distribution: Gaussian, labels: Labels, progress: Float[Array, ""]) -> Float[Array, ""]:
        """The objective; ``progress`` goes from 0 to 1 over the stage."""


class SquaredErrorStage(AbstractStage):
    """Trains the mean only."""

    kind: Literal["squared_error"] = "squared_error"
    energy_weight: float = Field(1.0, ge=0, description="of ½ (error of an energy)², [eV⁻²]")
    force_weight: float = Field(1.0, ge=0, description="of ½ (error of a force component)², [Å²/eV²]")

    @property
    def trains_noise(self) -> bool:
        """No."""
        return False

    def loss(self, distribution: Gaussian, labels: Labels, progress: Float[Array, ""]) -> Float[Array, ""]:
        """Weighted squared errors."""
        terms = likelihoods.squared_error(distribution, labels)
        terms = likelihoods.weighted(terms, self.energy_weight, self.force_weight)
        return likelihoods.structure_mean(terms, labels, distribution.partition)


class BetaNLLStage(AbstractStage):
    """From squared error to likelihood: β goes linearly from one value to the other."""

    kind: Literal["beta_nll"] = "beta_nll"
    beta_start: float = Field(1.0, ge=0, le=1, description="β of the first step")
    beta_end: float = Field(0.0, ge=0, le=1, description="β of the last step")

    @property
    def trains_noise(self) -> bool:
        """Yes."""
        return True

    def loss(self, distribution: Gaussian, labels: Labels, progress: Float[Array, ""]) -> Float[Array, ""]:
        """β-NLL of the marginals."""
        beta = self.beta_start + (self.beta_end - self.beta_start) * progress
        return likelihoods.structure_mean(
            likelihoods.beta_nll(distribution, labels, beta), labels, distribution.partition
        )


class NLLStage(AbstractStage):
    """Maximum likelihood: of the marginals as the paper has it, or of all observations jointly."""

    kind: Literal["nll"] = "nll"
    joint: bool = Field(False, description="the exact joint likelihood of energies and forces, not the marginals'")

    @property
    def trains_noise(self) -> bool:
        """Yes."""
        return True

    def loss(self, distribution: Gaussian, labels: Labels, progress: Float[Array, ""]) -> Float[Array, ""]:
        """NLL of a structure, averaged over structures."""
        if self.joint:
            return likelihoods.observed_mean(
                likelihoods.joint_nll(distribution, labels), labels, distribution.partition
            )
        return likelihoods.structure_mean(
            likelihoods.marginal_nll(distribution, labels), labels, distribution.partition
        )


Stage = Annotated[SquaredErrorStage | BetaNLLStage | NLLStage, Field(discriminator="kind")]
