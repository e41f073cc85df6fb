r"""Noise of the strain derivative of an energy, from the noise of the forces.

In the colored model the energy noise is ρη, and its strain derivative is η ∂ρ/∂ε + ρ ∂η/∂ε. The first term is the
column that also has ρ and −∂ρ/∂r. The second needs the derivative of η, of which only the variance v_i of its forces is
given: γ_i ρ² in the colored model, σ_i² in the white one. For a crystal the forces on the atoms of a cell do not
determine the strain derivative, so an assumption about their origin is needed. Here they come from independent forces
f_ij = −f_ji along each component between neighbours, that share v_i among them in proportion to weights w_ij,

    Var(f_ij) = (v_i w_ij + v_j w_ji)/2,   Σ_j w_ij = 1,   w_ij ∝ (1 − r_ij²/r_c²)³.

Then ∂E/∂ε has the noise −½ Σ_ij r⃗_ij ⊗ f_ij, symmetrised, whose variances are

    Var_ab = (M_a + M_b)(1 + δ_ab)/4,   M_a = ½ Σ_ij v_i w_ij r_ij,a².

It grows with the number of atoms, and does not depend on where the origin is or which image of an atom was given. For
one member of an ensemble only the variances are kept, not how they correlate with each other or with the forces; but
xy and yx are one component of a symmetric tensor and have one noise.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from huefield.core.types import Graph


def strain_var(graph: Graph, force_var: Float[Array, " A"]) -> Float[Array, "S 3 3"]:
    """Variances of ∂E/∂ε [eV²] from the variances of the forces on each atom [eV²/Å²]."""
    vectors = graph.vectors()
    assert graph.neighbours is not None  # noqa: S101 - graph.vectors() has raised otherwise
    relative = jnp.sum(vectors**2, axis=-1) / graph.neighbours.cutoff_angstrom**2
    weights = jnp.maximum(1.0 - relative, 0.0) ** 3
    total = jnp.sum(weights, axis=1, keepdims=True)
    shares = weights / jnp.where(total > 0, total, 1.0)
    moments = jnp.einsum("ak,akx->ax", shares, vectors**2)
    along = 0.5 * graph.partition.sum(force_var[:, None] * moments)
    return 0.25 * (along[:, :, None] + along[:, None, :]) * (1.0 + jnp.eye(3, dtype=along.dtype))


UPPER = np.triu(np.ones((3, 3), bool))
"""The six independent components of a symmetric tensor, which likelihoods and errors count."""
_ROWS, _COLUMNS = np.array([[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]], np.int32)


def independent(tensors: Shaped[Array, "*n 3 3"]) -> Shaped[Array, "*n 6"]:
    """Components xx, yy, zz, yz, xz, xy of symmetric tensors, in compiled code."""
    return tensors[..., _ROWS, _COLUMNS]


def upper_mirrored(tensors: Float[Array, "*n 3 3"]) -> Float[Array, "*n 3 3"]:
    """Symmetric tensors with the entries on and above the diagonal of the given ones."""
    return jnp.triu(tensors) + jnp.swapaxes(jnp.triu(tensors, 1), -1, -2)


def voigt(tensors: Float[Array, "*n 3 3"] | Float[np.ndarray, "*n 3 3"]) -> Float[np.ndarray, "*n 6"]:
    """Components xx, yy, zz, yz, xz, xy of symmetric tensors: the order of ASE."""
    return np.asarray(tensors)[..., _ROWS, _COLUMNS]
