"""The base of every configuration: typed, frozen, finite, and strict about unknown keys."""

from collections.abc import Collection, Mapping
from reprlib import Repr
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

MOST_LETTERS = 120
"""Length of the longest value that a message repeats."""
_REPR = Repr()  # shortens nested values while it writes them, however large they are
_REPR.maxdict = _REPR.maxlist = _REPR.maxtuple = 30
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother, _REPR.maxlong = 3, *[2 * MOST_LETTERS] * 3


class FrozenConfig(BaseModel):
    """A frozen configuration. Unknown keys are errors that list the known ones; NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, given: Any) -> Any:
        """Pydantic refuses them too, but does not list the known keys."""
        unknown = [key for key in given if key not in cls.model_fields] if isinstance(given, dict) else []
        if unknown:
            known = {"known": ", ".join(cls.model_fields)}
            fault = PydanticCustomError("unknown_key", "is not a known key; known are {known}", known)
            raise ValidationError.from_exception_data(
                cls.__name__, [InitErrorDetails(type=fault, loc=(key,), input=given[key]) for key in unknown]
            )
        return given


def explain(error: ValidationError, source: str, *, content: Any = None, by_hand: Collection[str] = ()) -> str:
    """One line for each fault of a configuration, with its place.

    Args:
        error: what pydantic found.
        source: the file or command that the configuration came from.
        content: the configuration, if it has parts of several kinds.
        by_hand: keys that a user set outside of the source (``--set``).
    """
    lines = []
    for fault in error.errors():
        place = ".".join(_keys(fault["loc"], content))
        where = "override (--set)" if any(place == key or place.startswith(f"{key}.") for key in by_hand) else source
        got = f" (got {given})" if len(given := _REPR.repr(fault["input"])) <= MOST_LETTERS else ""
        lines.append(f"{where}: {place or 'configuration'}: {fault['msg'].removeprefix('Value error, ')}{got}")
    return "\n".join(lines)


def _keys(place: tuple[int | str, ...], content: Any) -> list[str]:
    """Keys as ``--set`` takes them, without the kinds that pydantic adds to the parts of a union."""
    keys, before = [], None
    for key in place:
        is_kind = isinstance(content, Mapping) and key not in content and content.get("kind") == key
        if isinstance(key, int) or not (is_kind or isinstance(before, int)):
            keys.append(str(key))
            content = _entry(content, key)
        before = key
    return keys


def _entry(content: Any, key: int | str) -> Any:
    if isinstance(content, Mapping):
        return content.get(key)
    return content[key] if isinstance(content, list | tuple) and isinstance(key, int) else None
