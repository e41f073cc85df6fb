"""Checks of input with messages that give the expected and the actual value and its position.

Shapes are always checked. Values are not known inside compiled code and are checked outside only.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from huefield.support.errors import HuefieldError


class NotFiniteError(HuefieldError):
    """A number that must be finite is NaN or infinite."""


def is_concrete(array: Any) -> bool:
    """Whether the values of an array are known, as they are outside compiled code."""
    return not isinstance(array, jax.core.Tracer) and hasattr(array, "dtype")


def require_shape(name: str, array: Any, expected: Sequence[int | None]) -> None:
    """Raise unless ``array`` has the expected shape; None stands for any length."""
    shape = np.shape(array)
    if len(shape) != len(expected) or any(e not in (None, s) for s, e in zip(shape, expected, strict=True)):
        wanted = "(" + ", ".join("any" if e is None else str(e) for e in expected) + ")"
        raise ValueError(f"{name} must have shape {wanted}, but has shape {shape}")


def require_finite(name: str, array: Any, *, hint: str = "") -> None:
    """Raise if any value is NaN or infinite, naming the first."""
    _require(name, array, lambda a: np.isfinite(a), "finite", hint, NotFiniteError)


def require_non_negative(name: str, array: Any, *, hint: str = "") -> None:
    """Raise if any value is negative or NaN, naming the first."""
    _require(name, array, lambda a: a >= 0, "non-negative", hint)


def require_positive(name: str, array: Any, *, hint: str = "") -> None:
    """Raise if any value is not a positive finite number, naming the first."""
    _require(name, array, lambda a: (a > 0) & np.isfinite(a), "positive", hint)


def require_within(name: str, array: Any, lowest: int, highest: int) -> None:
    """Raise if any value lies outside lowest ... highest, naming the first."""
    _require(name, array, lambda a: (a >= lowest) & (a <= highest), f"between {lowest} and {highest}", "")


def _require(name: str, array: Any, holds: Any, adjective: str, hint: str, kind: type[ValueError] = ValueError) -> None:
    if not is_concrete(array):
        return
    values = np.asarray(array)
    bad = ~holds(values)
    if not bad.any():
        return
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    place = f" at index {where if len(where) > 1 else where[0]}" if where else ""
    more = f" ({int(bad.sum())} of {values.size} values are wrong)" if values.size > 1 else ""
    raise kind(f"{name} must be {adjective}, but is {values[where]}{place}{more}" + (f"; {hint}" if hint else ""))
