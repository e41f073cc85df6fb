"""Errors and variances as metrics take them: checked, in double precision, flat."""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from huefield.support.checks import require_finite, require_non_negative, require_positive, require_shape
from huefield.support.errors import HuefieldError


class UndefinedMetricError(HuefieldError):
    """A metric has no value for these numbers, though nothing is wrong with them."""


def checked_error(error: ArrayLike) -> Float[np.ndarray, " n"]:
    """Finite errors, at least one."""
    values = np.asarray(error, float)
    if values.size == 0:
        raise HuefieldError("no errors to average: the array is empty")
    require_finite("error", values)
    return values.ravel()


def checked_variance(variance: ArrayLike) -> Float[np.ndarray, " n"]:
    """Finite variances, none of them negative, at least one."""
    values = np.asarray(variance, float)
    if values.size == 0:
        raise HuefieldError("no variances to average: the array is empty")
    require_non_negative("variance", values)
    require_finite("variance", values)
    return values.ravel()


def checked_pair(
    error: ArrayLike, variance: ArrayLike, *, positive: bool = False
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Errors and variances of the same shape; variances above zero where that is asked for."""
    values = checked_error(error)
    require_shape("variance", variance, np.shape(error))
    if positive:
        require_positive("variance", np.asarray(variance, float))
    return values, checked_variance(variance)


def in_sigmas(error: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """error/σ. Where σ is zero: infinite with the sign of the error, or zero if there is no error."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = error / np.sqrt(variance)
    ratio[error == 0] = 0.0
    return ratio


def defined_mean(terms: Float[np.ndarray, " n"]) -> float:
    """The mean of some terms, which must not have overflowed."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.mean(terms))
    if not np.isfinite(mean):
        raise UndefinedMetricError("a term is too large for double precision: errors are huge or a variance is tiny")
    return mean
