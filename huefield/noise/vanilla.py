"""No noise model: an ensemble of such members has epistemic uncertainty only ([J23], "vanilla")."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from huefield.core import EnergyForces, EnergyForcesStack, Graph, Outputs
from huefield.noise.base import AbstractNoise, Covariance, Number
from huefield.support.config import FrozenConfig


class VanillaNoise(AbstractNoise):
    """Zero covariance."""

    class Config(FrozenConfig):
        """No options."""

        kind: Literal["vanilla"] = "vanilla"

        def build(self) -> "VanillaNoise":
            """The model."""
            return VanillaNoise(self)

    config: Config = eqx.field(static=True, default_factory=Config)

    @property
    def raw_outputs(self) -> tuple[str, ...]:
        """No outputs of the potential are needed."""
        return ()

    @property
    def has_variance(self) -> bool:
        """False: there is no noise."""
        return False

    @property
    def is_size_consistent(self) -> bool:
        """True: there is no noise anywhere."""
        return True

    @property
    def is_coherent(self) -> bool:
        """True: all covariances are zero."""
        return True

    def levels(self, raw: Float[Array, "A O"], graph: Graph) -> Float[Array, "C S"]:
        """No channels, as there is no noise."""
        return jnp.zeros((0, graph.partition.num_structures), raw.dtype)

    def covariance(self, outputs: Outputs, graph: Graph) -> Covariance:
        """Zero covariance."""
        zero = jax.tree.map(
            jnp.zeros_like, EnergyForces(outputs.energy, outputs.energy_gradient, outputs.energy_strain)
        )
        return Covariance(zero, EnergyForcesStack.empty(zero))

    def initialised(self, energy_rmse: Number, force_rmse: Number, atoms: Number = 1.0) -> "VanillaNoise":
        """The model itself, which has no parameters."""
        return self
