"""Checks of errors and variances, which metrics take as flat arrays in double precision."""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from huefield.support.checks import require_finite, require_non_negative, require_positive, require_shape
from huefield.support.errors import HuefieldError

Vector = Float[np.ndarray, " n"]
"""One number for each entry: a structure, a force component, or an atom."""


class UndefinedMetricError(HuefieldError):
    """A metric is undefined for these values, although the values are valid."""


def checked_error(error: ArrayLike) -> Float[np.ndarray, " n"]:
    """At least one error, all finite."""
    values = np.asarray(error, float)
    if values.size == 0:
        raise HuefieldError("there are no errors: the array is empty")
    require_finite("error", values)
    return values.ravel()


def checked_variance(variance: ArrayLike) -> Float[np.ndarray, " n"]:
    """At least one variance, all finite and non-negative."""
    values = np.asarray(variance, float)
    if values.size == 0:
        raise HuefieldError("there are no variances: the array is empty")
    require_non_negative("variance", values)
    require_finite("variance", values)
    return values.ravel()


def checked_pair(
    error: ArrayLike, variance: ArrayLike, *, positive: bool = False
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Errors and variances of equal shape; ``positive`` requires variances above zero."""
    values = checked_error(error)
    require_shape("variance", variance, np.shape(error))
    if positive:
        require_positive("variance", np.asarray(variance, float))
    return values, checked_variance(variance)


def in_sigmas(error: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """error/σ; if σ is zero, infinite with the sign of the error, or zero for an error of zero."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = error / np.sqrt(variance)
    ratio[error == 0] = 0.0
    return ratio


def defined_mean(terms: Float[np.ndarray, " n"]) -> float:
    """Mean of the terms; undefined if it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.mean(terms))
    if not np.isfinite(mean):
        raise UndefinedMetricError("a term is too large for double precision: an error is huge or a variance is tiny")
    return mean
