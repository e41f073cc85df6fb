r"""Forces without a net force and a net torque, as true forces have.

An energy does not change when a structure is shifted or, without a lattice, rotated. The forces F of an isolated
structure therefore have no component along its rigid motions, the columns of Q: Qᵀ F = 0. The columns U of a covariance
diag(d) + U Uᵀ are derivatives of invariant functions and have none either, but independent noise ε ~ N(0, D) has,
D = diag(d). Conditional on Qᵀ ε = 0 it is

    ε − D Q (Qᵀ D Q)⁻¹ Qᵀ ε,

and a density that is conditional on the rigid components is

    log p(F | Qᵀ F) = log p(F) − log N(Qᵀ F; Qᵀ mean, Qᵀ (D + U Uᵀ) Q).

A structure is one body, however far apart its parts are: the forces on two distant molecules of one structure balance
together, not each by itself.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from huefield.core.lowrank import LOG_2PI
from huefield.core.rigid import rigid_motions
from huefield.core.types import Partition
from huefield.support.checks import require_shape

MOST_MOTIONS = 6
NEARLY_LINEAR = 1e-4
"""A rotation that moves atoms by less than this, relative to other motions, is none; below are rounding errors of
positions in single precision."""


class RigidMotions(eqx.Module):
    """Orthonormal rigid motions Q of each structure of a batch: three shifts, and rotations if it is not periodic."""

    motions: Float[Array, "Q A D"]
    """Zeros for motions that a structure does not have: rotations of a crystal, of an atom, or about a linear axis."""
    partition: Partition

    @classmethod
    def of(cls, positions: ArrayLike, partition: Partition, periodic: Bool[np.ndarray, " S"]) -> "RigidMotions":
        """Motions of a batch; none in a world that does not have three dimensions, as that of the toy example.

        Args:
            positions: of the atoms [Å], A × D.
            partition: the structures of the atoms.
            periodic: which structures are periodic in some direction. They are shifted only.
        """
        places = np.asarray(positions, np.float64)
        require_shape("positions", places, (partition.num_atoms, None))
        require_shape("periodic", periodic, (partition.num_structures,))
        found = np.zeros((MOST_MOTIONS if places.shape[1] == 3 else 0, *places.shape))
        for structure in range(partition.num_structures if len(found) else 0):
            rows = partition.atoms_of(structure)
            if rows.size:
                turns, masses = not periodic[structure], np.ones(rows.size)
                own = rigid_motions(places[rows], masses, with_rotations=turns, same=NEARLY_LINEAR).T
                found[: len(own), rows] = own.reshape(-1, rows.size, 3)
        return cls(jnp.asarray(found, jnp.result_type(float)), partition)

    def components(self, forces: Float[Array, "A D"]) -> Float[Array, "S Q"]:
        """Qᵀ F: net forces and torques, in orthonormal combinations."""
        return self.partition.sum(jnp.einsum("qad,ad->aq", self.motions, forces))

    def removed_from(self, forces: Float[Array, "A D"], force_var: Float[Array, "A D"]) -> Float[Array, "A D"]:
        """F − D Q (Qᵀ D Q)⁻¹ Qᵀ F: forces without rigid components; the correction falls mostly on uncertain atoms.

        Structures that have an atom without noise, such as those of a model without a noise model, have D = 1.
        """
        require_shape("forces", forces, self.motions.shape[1:])
        noiseless = self.partition.sum(jnp.any(force_var <= 0, axis=1).astype(force_var.dtype)) > 0
        weights = jnp.where(self.partition.spread(noiseless)[:, None], 1.0, force_var)
        inverse = jnp.linalg.pinv(self._between(weights), hermitian=True)
        for _ in range(2):  # the second round removes rounding errors of the first
            amounts = jnp.einsum("sqp,sp->sq", inverse, self.components(forces))
            forces = forces - weights * jnp.einsum("qad,aq->ad", self.motions, self.partition.spread(amounts))
        return forces

    def log_prob(
        self, residual: Float[Array, "A D"], force_var: Float[Array, "A D"], columns: Float[Array, "R A D"]
    ) -> Float[Array, " S"]:
        """Log N(Qᵀ residual; 0, Qᵀ (D + U Uᵀ) Q) of each structure."""
        require_shape("forces", residual, self.motions.shape[1:])
        absent = self.partition.sum(jnp.sum(self.motions**2, axis=2).T) < 0.5
        own = jax.vmap(self.components)(columns)
        covariance = self._between(force_var) + jnp.einsum("rsq,rsp->sqp", own, own)
        lower = jnp.linalg.cholesky(covariance + jax.vmap(jnp.diag)(absent.astype(covariance.dtype)))
        scaled = jax.scipy.linalg.solve_triangular(lower, self.components(residual)[..., None], lower=True)[..., 0]
        log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(lower, axis1=1, axis2=2)), axis=1)
        count = jnp.sum(~absent, axis=1)
        return -0.5 * (jnp.sum(scaled**2, axis=1) + log_det + count * LOG_2PI)

    def _between(self, weights: Float[Array, "A D"]) -> Float[Array, "S Q Q"]:
        """Qᵀ diag(weights) Q."""
        return self.partition.sum(jnp.einsum("qad,ad,pad->aqp", self.motions, weights, self.motions))
