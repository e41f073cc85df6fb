r"""Correlation of the energy noise of different structures.

[J23] arXiv:2312.04174v1, Eq. e_cov: Cov(E(r), E(r')) = R(r, r') ρ(r) ρ(r'). With the exponentiated-quadratic kernel
and one γ, R = exp(−γ|r − r'|²/2). If γ_i differs between atoms and structures, its non-stationary form is used
(Paciorek and Schervish 2004), which is positive semi-definite, has R(r, r) = 1, and is the former where all γ are
equal. With the lengths ℓ² = 1/γ, and for D = 3 coordinates of each atom,

    R(r, r') = Π_i (2 ℓ_i ℓ'_i / (ℓ_i² + ℓ'_i²))^{D/2} exp(−|r_i − r'_i|² / (ℓ_i² + ℓ'_i²)).

If γ depends on the structure, this is not exactly the process whose derivative is the force noise: its
∂²R/∂r_a ∂r'_b is γ_i δ_ab + (D/2) Σ_j ∂_a ln ℓ_j ∂_b ln ℓ_j, of which forces have the first term only. Structures
whose γ differ are taken for less correlated than the γ of forces alone would make them, and their energy difference for
less certain; most so with γ_i = (ω_i/ρ)², which changes with ρ on all atoms at once.
"""

import numpy as np
from jaxtyping import Float


def correlation(
    positions: Float[np.ndarray, "n N 3"], inverse_lengths: Float[np.ndarray, "n N"]
) -> Float[np.ndarray, "n n"]:
    """R between structures.

    Args:
        positions: of superposed structures (:func:`~huefield.core.superposition.superpose`).
        inverse_lengths: γ_i of each atom in each structure, [Å⁻²].
    """
    squared = 1.0 / inverse_lengths
    pair = squared[:, None] + squared[None]
    moved = ((positions[:, None] - positions[None]) ** 2).sum(-1)
    overlap = 2.0 * np.sqrt(squared[:, None] * squared[None]) / pair
    dimension = positions.shape[-1]
    return np.exp(0.5 * dimension * np.log(overlap).sum(-1) - (moved / pair).sum(-1))
