"""The stages of training: objective, number of steps and learning rate.

[J23] arXiv:2312.04174v1, appendix "Model Hyperparameters and Training": squared error on the mean, then β-NLL with β
going from 1 to 0, then NLL.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field, model_validator

from huefield.core import EnergyForces, Gaussian, Graph, Labels
from huefield.core.strain import UPPER
from huefield.core.tails import FEWEST_DOF
from huefield.model.forcefield import ForceField
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError
from huefield.training import likelihoods
from huefield.training.likelihoods import Averages

Fall = Literal["exponential", "cosine"]
"""How the learning rate falls."""
LevelLearns = Literal["likelihood", "evenly", "energies"]
"""The terms that colored noise learns its ρ from; see :class:`AbstractNoiseStage`."""


class AbstractStage(FrozenConfig, ABC):
    """A number of steps with one objective."""

    kind: str
    steps: int = Field(ge=0, le=10**9, description="gradient steps")
    learning_rate: float = Field(1e-3, gt=0, le=10, description="learning rate of Adam at the start of the stage")
    decay: float = Field(1.0, gt=0, le=1, description="learning rate at the end of the stage, relative to its start")
    fall: Fall = Field(
        "exponential",
        description="how the learning rate falls to its end: by the same factor in each step, or like half a cosine, "
        "which stays high for longer",
    )
    weight_decay: float = Field(0.0, ge=0, le=100, description="decoupled weight decay of the potential")
    initialise_noise: bool = Field(False, description="set each member's noise levels to its errors first")
    energy_weight: float = Field(1.0, ge=0, le=1e9, description="weight of the energy terms")
    force_weight: float = Field(1.0, ge=0, le=1e9, description="weight of the force terms")
    stress_weight: float = Field(1.0, ge=0, le=1e9, description="weight of the stress terms; 0 ignores stress labels")
    reduction: Literal["structure", "averages"] = Field(
        "structure",
        description="structure: sum over the energy and all force and stress components of a structure, averaged over "
        "structures (the likelihood itself); averages: average over energies plus average over force components plus "
        "average over stress components",
    )

    @model_validator(mode="after")
    def _falls(self) -> "AbstractStage":
        if self.fall == "cosine" and self.decay == 1.0:
            raise HuefieldError("fall: cosine has no effect while decay is 1: set decay, such as 0.003")
        return self

    @property
    @abstractmethod
    def trains_noise(self) -> bool:
        """Whether the objective depends on the variances."""

    def distribution(self, member: ForceField, graph: Graph, labels: Labels) -> Gaussian:
        """The prediction of a member for :meth:`loss`; a stage may stop gradients of some of its parts."""
        return member(graph, strain=self.needs_strain(labels))

    def needs_strain(self, labels: Labels) -> bool:
        """Whether the objective has stress terms; without them no strain derivative is computed."""
        return labels.strain is not None and self.stress_weight > 0

    def used(self, labels: Labels) -> Labels:
        """The labels of the objective: those of stress only if they have a weight."""
        return labels if self.needs_strain(labels) else labels.without_strain()

    @abstractmethod
    def loss(self, distribution: Gaussian, labels: Labels, progress: Float[Array, ""]) -> Averages:
        """The objective; ``progress`` goes from 0 to 1 over the stage."""

    def criterion(self, distribution: Gaussian, labels: Labels) -> Averages:
        """The criterion that selects parameters: the objective at the end of the stage."""
        return self.loss(distribution, labels, jnp.ones(()))

    def _reduced(self, terms: EnergyForces, labels: Labels, distribution: Gaussian) -> Averages:
        terms = likelihoods.weighted(terms, self.energy_weight, self.force_weight, self.stress_weight)
        terms = likelihoods.weighted_by_dataset(terms, labels, distribution.partition)
        if self.reduction == "averages":
            return likelihoods.average_of_averages(terms, labels)
        return likelihoods.structure_mean(terms, labels, distribution.partition)


class SquaredErrorStage(AbstractStage):
    """Trains the mean only.

    Terms: ½ (error of an energy)² [eV²], ½ (error of a force component)² [eV²/Å²], and ½ (error of a component of the
    strain derivative, which is the stress times the volume)² [eV²].
    """

    kind: Literal["squared_error"] = "squared_error"
    stress_weight: float = Field(
        1e-3,
        ge=0,
        le=1e9,
        description="weight of the stress terms, which are large since errors add up over a cell; 0 ignores the labels",
    )

    @property
    def trains_noise(self) -> bool:
        """False: variances are not part of the objective."""
        return False

    def loss(self, distribution: Gaussian, labels: Labels, progress: Float[Array, ""]) -> Averages:
        """Weighted squared errors."""
        labels = self.used(labels)
        return self._reduced(likelihoods.squared_error(distribution, labels), labels, distribution)


class AbstractNoiseStage(AbstractStage):
    """Trains the noise, and the mean with it."""

    level_learns: LevelLearns = Field(
        "likelihood",
        description="terms that colored noise learns its ρ from: likelihood, all terms; evenly, the energy term and "
        "the mean of the force and stress terms; energies, the energy term only. All other parameters learn from all "
        "terms",
    )

    @model_validator(mode="after")
    def _shares_are_of_sums(self) -> "AbstractNoiseStage":
        if self.level_learns == "evenly" and self.reduction == "averages":
            raise HuefieldError(
                "with reduction: averages, level_learns: evenly would average over force components twice"
            )
        return self

    @property
    def trains_noise(self) -> bool:
        """True: variances are part of the objective."""
        return True

    def distribution(self, member: ForceField, graph: Graph, labels: Labels) -> Gaussian:
        """The prediction of a member, with the gradient of ρ from the force terms scaled by ``level_learns``."""
        if self.level_learns == "likelihood":
            return super().distribution(member, graph, labels)
        strain = self.needs_strain(labels)
        if self.level_learns == "energies":
            return member.as_taught(graph, jnp.zeros_like(labels.energy), strain=strain)
        atoms = graph.partition.sum(labels.forces_mask.astype(labels.energy.dtype))
        count = labels.forces.shape[1] * atoms
        if strain and labels.strain_mask is not None:
            count = count + int(UPPER.sum()) * labels.strain_mask
        return member.as_taught(graph, 1 / jnp.maximum(count, 1), strain=strain)


class BetaNLLStage(AbstractNoiseStage):
    """From squared error to likelihood: β changes linearly over the stage."""

    kind: Literal["beta_nll"] = "beta_nll"
    beta_start: float = Field(1.0, ge=0, le=1, description="β of the first step")
    beta_end: float = Field(0.0, ge=0, le=1, description="β of the last step")

    def loss(self, distribution: Gaussian, labels: Labels, progress: Float[Array, ""]) -> Averages:
        """β-NLL of the marginals."""
        labels = self.used(labels)
        beta = self.beta_start + (self.beta_end - self.beta_start) * progress
        return self._reduced(likelihoods.beta_nll(distribution, labels, beta), labels, distribution)

    def criterion(self, distribution: Gaussian, labels: Labels) -> Averages:
        """The likelihood, for any β: β-NLL would prefer variances that are too large."""
        labels = self.used(labels)
        return self._reduced(likelihoods.marginal_nll(distribution, labels), labels, distribution)


class NLLStage(AbstractNoiseStage):
    """Maximum likelihood, of the marginals (as in the paper) or of all observations jointly.

    With degrees of freedom, the likelihood is that of a Student t distribution with the predicted variances: large
    errors change mean and noise less than with a Gaussian.
    """

    kind: Literal["nll"] = "nll"
    joint: bool = Field(
        False, description="use the exact joint likelihood of energy, forces and stress instead of the marginal ones"
    )
    degrees_of_freedom: float | None = Field(
        None,
        ge=FEWEST_DOF,
        le=1e6,
        description="ν of the Student t distribution of the errors, which has heavier tails the smaller ν is; null for "
        "a normal distribution. Variances are those of the distribution in either case",
    )

    @model_validator(mode="after")
    def _joint_is_one_term(self) -> "NLLStage":
        if self.joint and (self.energy_weight, self.force_weight, self.reduction) != (1.0, 1.0, "structure"):
            raise HuefieldError(
                "the joint likelihood has no separate terms: remove energy_weight, force_weight and reduction"
            )
        if self.joint and self.stress_weight not in (0.0, 1.0):
            raise HuefieldError(
                f"the joint likelihood has no separate stress terms, but stress_weight is {self.stress_weight:g}: "
                "remove it, or set it to 0 to ignore stress labels"
            )
        if self.joint and self.level_learns != "likelihood":
            raise HuefieldError(
                f"with joint: true, level_learns must be likelihood, but is {self.level_learns}: a joint likelihood "
                "has no separate force terms"
            )
        return self

    def loss(self, distribution: Gaussian, labels: Labels, progress: Float[Array, ""]) -> Averages:
        """NLL of a structure, averaged over structures."""
        labels = self.used(labels)
        if self.joint:
            joint = likelihoods.joint_nll(distribution, labels, self.degrees_of_freedom)
            joint = joint if labels.weight is None else labels.weight * joint
            return likelihoods.observed_mean(joint, labels, distribution.partition)
        terms = likelihoods.marginal_nll(distribution, labels, self.degrees_of_freedom)
        return self._reduced(terms, labels, distribution)


Stage = Annotated[SquaredErrorStage | BetaNLLStage | NLLStage, Field(discriminator="kind")]
