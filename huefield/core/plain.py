"""Values as JSON has them."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def plain_fields(value: Any) -> dict[str, object]:
    """The fields of a dataclass as JSON has them."""
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


def plain(value: Any) -> Any:
    """Lists, dictionaries, strings and numbers, with None in place of NaN and infinity."""
    if is_dataclass(value):
        return plain_fields(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
