"""Conversion of values to JSON types."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def plain_fields(value: Any) -> dict[str, object]:
    """Fields of a dataclass as JSON types."""
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


def rounded(value: Any, digits: int) -> Any:
    """Result of :func:`plain` with floats rounded to this number of significant digits."""
    found = plain(value)
    if isinstance(found, dict):
        return {key: rounded(item, digits) for key, item in found.items()}
    if isinstance(found, list):
        return [rounded(item, digits) for item in found]
    return float(f"{found:.{digits}g}") if isinstance(found, float) else found


def plain(value: Any) -> Any:
    """The value as lists, dictionaries, strings and numbers, with None in place of NaN and infinity."""
    if is_dataclass(value):
        return plain_fields(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
