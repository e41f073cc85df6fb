r"""Correlation of the energy noise of different structures.

[J23] arXiv:2312.04174v1, Eq. e_cov: Cov(E(r), E(r')) = R(r, r') ρ(r) ρ(r'). With the exponentiated-quadratic kernel
and one γ, R = exp(−γ|r − r'|²/2). If γ_i differs between atoms and structures, each atom has the mean of its γ_i over
the structures that are compared,

    R(r, r') = exp(−½ Σ_i γ̄_i |r_i − r'_i|²).

This is positive semi-definite, R(r, r) = 1, and its curvature is the γ_i that forces have where all structures have the
same. As γ̄ is a mean over the structures that are compared, and structures are superposed together, a pair may have
another correlation beside further ones. A kernel of pairs alone would cost more (``benchmarks/pair_kernels.py``):

- With the mean γ of each pair, R is not positive semi-definite: 2(1 − R) is a squared distance, and with γ = 0 in
  the middle of two structures with γ > 0 the way over the middle is shorter than the direct one.
- The kernel of Paciorek and Schervish 2004 with lengths of its own for each structure is positive semi-definite, but
  every atom whose γ_i changes decorrelates all of the energy, also if it stays in place. Differences are then less
  certain than the force noise says: R has a larger curvature than γ_i.

With local noise γ_i = ω_i²/ρ², where ω_i² is the rest of the force variance. For small displacements the variance of a
difference, 2ρ²(1 − R) ≈ Σ_i ω_i² |r_i − r'_i|², then does not depend on atoms that stay in place. For large ones it
does: it grows with their number up to 2ρ², an upper bound.
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
    moved = ((positions[:, None] - positions[None]) ** 2).sum(-1)
    return np.exp(-0.5 * moved @ inverse_lengths.mean(0))
