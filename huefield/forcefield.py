"""A force field is a potential with a noise model; an ensemble is M of them on one more array axis.

[J23] arXiv:2312.04174v1, appendix "Epistemic Uncertainty".
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from huefield.core import EnergyForces, EnergyForcesStack, Gaussian, Graph, Partition, mixture
from huefield.core.config import FrozenConfig
from huefield.core.lowrank import safe_sqrt
from huefield.noise import AbstractNoise, NoiseConfig
from huefield.potentials import AbstractPotential, PotentialConfig, differentiate

T = TypeVar("T")
Strategy = Literal["auto", "vmap", "loop"]
"""Members side by side (``vmap``), or one after the other (``loop``); ``auto`` is ``loop`` on CPUs, which is faster for
molecules there, and ``vmap`` elsewhere."""


class ForceField(eqx.Module):
    """One member: a batch of structures in, the joint Gaussian of energies and forces out."""

    class Config(FrozenConfig):
        """What to build a member from."""

        potential: PotentialConfig
        noise: NoiseConfig

        def build(self, *, key: Key[Array, ""]) -> "ForceField":
            """A member with random weights."""
            noise = self.noise.build()
            return ForceField(self.potential.build(len(noise.raw_outputs), key=key), noise)

    potential: AbstractPotential
    noise: AbstractNoise

    def __call__(self, graph: Graph) -> Gaussian:
        """The distribution that this member predicts: mean (E_θ, −∂E_θ/∂r) and the covariance of its noise model."""
        outputs = differentiate(self.potential, self._levels, graph)
        covariance = self.noise.covariance(outputs, graph)
        mean = EnergyForces(outputs.energy, -outputs.energy_gradient)
        return Gaussian(mean, covariance.diagonal, covariance.columns, EnergyForcesStack.empty(mean), graph.partition)

    def _levels(self, raw: Float[Array, "A O"], partition: Partition) -> Float[Array, "C S"]:
        needed = self.noise.raw_outputs
        if raw.shape[1] != len(needed):
            raise ValueError(
                f"{type(self.potential).__name__} gives {raw.shape[1]} raw outputs, but {type(self.noise).__name__} "
                f"needs {len(needed)}: {', '.join(needed)}"
            )
        return self.noise.levels(raw, partition)


class Prediction(eqx.Module):
    """What an ensemble says: the joint distribution, and the mean of each member.

    Everything called ``*_uncertainty*`` is a standard deviation, in eV or eV/Å.
    """

    distribution: Gaussian
    members: EnergyForcesStack

    @property
    def energy(self) -> Float[Array, " S"]:
        """Mean energy."""
        return self.distribution.mean.energy

    @property
    def forces(self) -> Float[Array, "A D"]:
        """Mean forces."""
        return self.distribution.mean.forces

    @property
    def energy_ensemble(self) -> Float[Array, "M S"]:
        """Energy of each member."""
        return self.members.energy

    @property
    def forces_ensemble(self) -> Float[Array, "M A D"]:
        """Forces of each member."""
        return self.members.forces

    @property
    def energy_uncertainty(self) -> Float[Array, " S"]:
        """Total, of noise and members together."""
        return safe_sqrt(self.distribution.variance().energy)

    @property
    def forces_uncertainty(self) -> Float[Array, "A D"]:
        """Total, of noise and members together."""
        return safe_sqrt(self.distribution.variance().forces)

    @property
    def energy_uncertainty_aleatoric(self) -> Float[Array, " S"]:
        """Of the noise."""
        return safe_sqrt(self.distribution.aleatoric_variance().energy)

    @property
    def forces_uncertainty_aleatoric(self) -> Float[Array, "A D"]:
        """Of the noise."""
        return safe_sqrt(self.distribution.aleatoric_variance().forces)

    @property
    def energy_uncertainty_epistemic(self) -> Float[Array, " S"]:
        """Of the disagreement of members."""
        return safe_sqrt(self.distribution.epistemic_variance().energy)

    @property
    def forces_uncertainty_epistemic(self) -> Float[Array, "A D"]:
        """Of the disagreement of members."""
        return safe_sqrt(self.distribution.epistemic_variance().forces)


class Ensemble(eqx.Module):
    """M members of one architecture; every array of ``members`` has a leading axis M."""

    members: ForceField
    strategy: Strategy = eqx.field(static=True, default="auto")

    def __check_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise ValueError(f"strategy must be one of {get_args(Strategy)}, but is {self.strategy!r}")

    @classmethod
    def from_members(cls, members: Sequence[ForceField], *, strategy: Strategy = "auto") -> "Ensemble":
        """Put members together that were trained apart."""
        if not members:
            raise ValueError("an ensemble needs at least one member, but got none")
        arrays = [eqx.filter(member, eqx.is_array) for member in members]
        layouts = [jax.tree.structure(member) for member in arrays]
        different = [index for index, layout in enumerate(layouts) if layout != layouts[0]]  # type: ignore[operator]
        if different:
            raise ValueError(f"members must be alike, but {different} differ from member 0 in their architecture")
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
        return cls(eqx.combine(stacked, members[0]), strategy)

    @classmethod
    def build(
        cls,
        config: ForceField.Config,
        num_members: int,
        *,
        key: Key[Array, ""],
        strategy: Strategy = "auto",
    ) -> "Ensemble":
        """An ensemble whose members differ in their random weights."""
        if num_members != int(num_members) or num_members < 1:
            raise ValueError(f"an ensemble has a whole number of members from 1, but num_members is {num_members}")
        keys = jax.vmap(lambda m: jax.random.fold_in(key, m))(jnp.arange(num_members))
        return cls(eqx.filter_vmap(lambda k: config.build(key=k))(keys), strategy)

    @property
    def num_members(self) -> int:
        """M."""
        return jax.tree.leaves(eqx.filter(self.members, eqx.is_array))[0].shape[0]

    def member(self, index: int) -> ForceField:
        """One member."""
        if not -self.num_members <= index < self.num_members:
            raise IndexError(f"member {index} is out of range: the ensemble has {self.num_members}")
        return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, self.members)

    def map_noise(self, change: Callable[[AbstractNoise], AbstractNoise]) -> "Ensemble":
        """The ensemble with each member's noise model changed, as in ``map_noise(lambda n: n.with_gamma(4.0))``."""
        noise = eqx.filter_vmap(change)(self.members.noise)
        return eqx.tree_at(lambda e: e.members.noise, self, noise)

    def __call__(self, graph: Graph) -> Gaussian:
        """The moment-matched mixture of the members' distributions."""
        return mixture(self._member_distributions(graph))

    def predict(self, graph: Graph) -> Prediction:
        """Mean, noise and members' spread of energies and forces, in one compiled program.

        Raises ``ValueError`` where any of it is not a finite number.
        """
        prediction = self._compiled_prediction(graph)
        prediction.distribution.__check_init__()
        return prediction

    @eqx.filter_jit
    def _compiled_prediction(self, graph: Graph) -> Prediction:
        members = self._member_distributions(graph)
        return Prediction(mixture(members), EnergyForcesStack(members.mean.energy, members.mean.forces))

    def _member_distributions(self, graph: Graph) -> Gaussian:
        """The distribution of each member; its arrays have a leading axis M, which only ``mixture`` understands."""
        return map_members(lambda member: member(graph), self.members, self.strategy)


def map_members(function: Callable[[PyTree], T], members: PyTree, strategy: Strategy) -> T:
    """Apply a function to each member of a stacked tree: the one place where members are mapped over."""
    if strategy == "vmap" or (strategy == "auto" and jax.default_backend() != "cpu"):
        return eqx.filter_vmap(function)(members)
    arrays, static = eqx.partition(members, eqx.is_array)
    results_static: list[PyTree] = []

    def one(leaves: PyTree) -> PyTree:
        result, result_static = eqx.partition(function(eqx.combine(leaves, static)), eqx.is_array)
        results_static.append(result_static)
        return result

    results = jax.lax.map(one, arrays)
    return eqx.combine(results, results_static[-1])
