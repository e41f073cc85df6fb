r"""γ, the inverse squared length scale of the noise process, [Å⁻²].

γ = −∂²R(Δr)/∂Δr² at Δr = 0, which is 1/ℓ² for the exponentiated-quadratic kernel ([J23] arXiv:2312.04174v1, below
Eq. force_var_colored). It is positive by construction: γ = exp(log γ).

One γ is the paper's. A γ that differs between atoms belongs to a non-stationary process. [J23] says that this needs a
further output ζ = ∂R(r, r')/∂r' at r' = r (Eq. force_var_full). But for unit variance R(r, r) = 1 everywhere, and
its derivative along the diagonal is ∂R/∂r + ∂R/∂r' = 0; R is symmetric, so both halves, and with them ζ, are 0.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from huefield.core import Graph
from huefield.noise.base import Number, softplus_inverse
from huefield.support.checks import require_positive, require_shape
from huefield.support.errors import HuefieldError

NUM_ELEMENTS = 119
"""Rows of a table by atomic number; 0 is a site of the toy."""

RELATIVE_FLOOR = 1e-4
"""Smallest γ_i of an atom relative to the common factor: a departure from softplus that keeps γ_i > 0 in float32."""


class AbstractGamma(eqx.Module):
    """γ of C channels on every atom, from parameters and, for some kinds, raw outputs of the potential."""

    log_gamma: eqx.AbstractVar[Float[Array, " C *rest"]]

    @property
    @abstractmethod
    def needs_raw(self) -> bool:
        """Whether each channel needs a raw output per atom."""

    @property
    def watched_as(self) -> str:
        """Name of the trained parameter in reports."""
        return "gamma"

    @abstractmethod
    def __call__(self, raw: Float[Array, "A G"], levels: Float[Array, "C A"], graph: Graph) -> Float[Array, "C A"]:
        """γ of each channel on each atom, given raw outputs and the noise levels ρ_c of the atom's structure."""

    def matching(self, energy_rmse: Number, force_rmse: Number) -> Number | Float[Array, ""]:
        """The parameter for which force noise matches force errors, if energy noise matches energy errors."""
        return (force_rmse / energy_rmse) ** 2

    @property
    def gamma(self) -> Float[Array, " C *rest"]:
        """The trained parameter itself."""
        return jnp.exp(self.log_gamma)

    def typical(self, axes: int) -> Float[Array, "*n"]:
        """Geometric mean of the trained parameter over channels; this many leading axes are kept."""
        return jnp.exp(jnp.mean(self.log_gamma.reshape(*self.log_gamma.shape[:axes], -1), axis=-1))

    def replaced(self, gamma: ArrayLike) -> "AbstractGamma":
        """With γ set by hand to a positive number, or to one for each channel (and element)."""
        require_positive("gamma", jnp.asarray(gamma), hint="it is an inverse squared length, 1/ℓ²")
        return self._with_parameter(gamma)

    def initialised(self, energy_rmse: Number, force_rmse: Number) -> "AbstractGamma":
        """With the parameter of :meth:`matching`."""
        return self._with_parameter(self.matching(energy_rmse, force_rmse))

    def times(self, factor: ArrayLike) -> "AbstractGamma":
        """With every γ multiplied by a positive number."""
        require_positive("factor", jnp.asarray(factor))
        return self._with_parameter(self.gamma * jnp.asarray(factor, self.log_gamma.dtype))

    def _with_parameter(self, value: ArrayLike) -> "AbstractGamma":
        new = jnp.asarray(value, self.log_gamma.dtype)
        if new.ndim > 0:
            require_shape("gamma", new, self.log_gamma.shape)
        return eqx.tree_at(lambda g: g.log_gamma, self, jnp.broadcast_to(jnp.log(new), self.log_gamma.shape))


class GlobalGamma(AbstractGamma):
    """One γ for everything: the paper's."""

    log_gamma: Float[Array, " C"]

    @classmethod
    def create(cls, channels: int) -> "GlobalGamma":
        """γ = 1 Å⁻² in each channel."""
        return cls(jnp.zeros(channels))

    @property
    def needs_raw(self) -> bool:
        """False: γ is a parameter."""
        return False

    def __call__(self, raw: Float[Array, "A G"], levels: Float[Array, "C A"], graph: Graph) -> Float[Array, "C A"]:
        """The same γ on each atom."""
        return jnp.broadcast_to(self.gamma[:, None], (len(self.log_gamma), graph.partition.num_atoms))


class ElementGamma(AbstractGamma):
    """A γ for each element."""

    log_gamma: Float[Array, "C Z"]

    @classmethod
    def create(cls, channels: int) -> "ElementGamma":
        """γ = 1 Å⁻² for each element and channel."""
        return cls(jnp.zeros((channels, NUM_ELEMENTS)))

    def typical(self, axes: int) -> Float[Array, "*n"]:
        """Also over elements, those whose γ training has changed."""
        log = self.log_gamma
        moved = log != log[..., :1]
        by_channel = jnp.sum(jnp.where(moved, log, 0.0), axis=-1) / jnp.maximum(jnp.sum(moved, axis=-1), 1)
        by_channel = jnp.where(jnp.any(moved, axis=-1), by_channel, log[..., 0])
        return jnp.exp(jnp.mean(by_channel.reshape(*by_channel.shape[:axes], -1), axis=-1))

    @property
    def needs_raw(self) -> bool:
        """False: γ is a parameter."""
        return False

    def __call__(self, raw: Float[Array, "A G"], levels: Float[Array, "C A"], graph: Graph) -> Float[Array, "C A"]:
        """γ by atomic number."""
        return self.gamma[:, graph.atomic_numbers]


class AtomGamma(AbstractGamma):
    """γ_i(z, r) of each atom, a function of its surroundings: γ_i = γ (ε + (1 − ε) softplus(g_i + softplus⁻¹(1))).

    γ is the common factor, g_i a raw output of the potential; g_i = 0 gives γ.
    """

    log_gamma: Float[Array, " C"]

    @classmethod
    def create(cls, channels: int) -> "AtomGamma":
        """γ_i = 1 Å⁻² in each channel where the raw outputs vanish."""
        return cls(jnp.zeros(channels))

    @property
    def needs_raw(self) -> bool:
        """Gamma is predicted for each atom, from the output g_i."""
        return True

    def __call__(self, raw: Float[Array, "A G"], levels: Float[Array, "C A"], graph: Graph) -> Float[Array, "C A"]:
        """γ by raw output."""
        return self.gamma[:, None] * _around_one(raw)


class ForceGamma(AbstractGamma):
    """γ_c,i = ω_c,i²/ρ_c²: the network predicts the force noise ω_i, from which γ follows.

    γ_i may be any positive function, so this is a colored model like the others. But force errors determine ω_i
    without ρ, unlike where γ_i is an output: noise of energies and forces can differ freely, as in white noise.

    ω_c,i² = ω_c² (ε + (1 − ε) softplus(g_i + softplus⁻¹(1)))², with a raw output g_i. ``log_gamma`` is log ω_c².
    """

    log_gamma: Float[Array, " C"]

    @classmethod
    def create(cls, channels: int) -> "ForceGamma":
        """ω² = 1 eV²/Å² in each channel where the raw outputs vanish."""
        return cls(jnp.zeros(channels))

    @property
    def needs_raw(self) -> bool:
        """Gamma is predicted for each atom, from the output g_i."""
        return True

    @property
    def watched_as(self) -> str:
        """ω², in eV²/Å²."""
        return "omega_squared"

    def __call__(self, raw: Float[Array, "A G"], levels: Float[Array, "C A"], graph: Graph) -> Float[Array, "C A"]:
        """γ by raw output and level; padding atoms have zero level, and a finite γ."""
        known = jnp.where(levels > 0, levels, 1.0)
        return self.gamma[:, None] * (_around_one(raw) / known) ** 2

    def replaced(self, gamma: ArrayLike) -> "AbstractGamma":
        """Refuse: γ follows from ω and ρ."""
        raise HuefieldError("γ follows from ω and ρ in this model and cannot be set: multiply it with with_gamma_times")

    def matching(self, energy_rmse: Number, force_rmse: Number) -> Number | Float[Array, ""]:
        """ω² of one of C channels, which share the variance."""
        return force_rmse**2 / self.log_gamma.shape[-1]


def _around_one(raw: Float[Array, "A G"]) -> Float[Array, "G A"]:
    """A positive number from a raw output: 1 for 0."""
    relative = jax.nn.softplus(raw + softplus_inverse(1.0).astype(raw.dtype))
    return RELATIVE_FLOOR + (1.0 - RELATIVE_FLOOR) * relative.T
