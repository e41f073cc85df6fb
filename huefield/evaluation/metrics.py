"""How far off predictions are, and how well their variances say so. Pure functions of arrays.

[J23] arXiv:2312.04174v1, appendix "Reliability Diagrams and Uncertainty Metrics".
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from huefield.core.checks import require_finite, require_positive, require_shape


def rmse(error: ArrayLike) -> float:
    """Root mean squared error: sqrt(mean(error²))."""
    values = _checked(error)
    return float(np.sqrt(np.mean(values**2)))


def gaussian_nll(error: ArrayLike, variance: ArrayLike) -> float:
    """[J23] Eqs. nll_energy and nll_force, averaged: mean of ½ (error²/σ² + log σ² + log 2π)."""
    values, spread = _checked(error), np.asarray(variance, float)
    require_shape("variance", spread, values.shape)
    require_positive("variance", spread)
    return float(np.mean(0.5 * (values**2 / spread + np.log(spread) + np.log(2 * np.pi))))


def _checked(error: ArrayLike) -> Float[np.ndarray, "*n"]:
    values = np.asarray(error, float)
    if values.size == 0:
        raise ValueError("no errors to average: the array is empty")
    require_finite("error", values)
    return values
