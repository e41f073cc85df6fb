"""The base of every configuration: typed, frozen, and strict about what it is given."""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

MOST_LETTERS = 120
"""Of what was given that a message repeats."""


class FrozenConfig(BaseModel):
    """A frozen configuration. An unknown key is an error that lists the known ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, given: Any) -> Any:
        """Pydantic would refuse them too, but not say which keys there are."""
        unknown = [key for key in given if key not in cls.model_fields] if isinstance(given, dict) else []
        if unknown:
            known = {"known": ", ".join(cls.model_fields)}
            fault = PydanticCustomError("unknown_key", "is not a known key; known are {known}", known)
            raise ValidationError.from_exception_data(
                cls.__name__, [InitErrorDetails(type=fault, loc=(key,), input=given[key]) for key in unknown]
            )
        return given


def explain(error: ValidationError, source: str) -> str:
    """Say what is wrong with a configuration in one line for each fault, with the place it stands at."""
    lines = []
    for fault in error.errors():
        place = ".".join(_keys(fault["loc"]))
        got = f" (got {given})" if len(given := repr(fault["input"])) <= MOST_LETTERS else ""
        lines.append(f"{source}: {place or 'configuration'}: {fault['msg'].removeprefix('Value error, ')}{got}")
    return "\n".join(lines)


def _keys(place: tuple[int | str, ...]) -> list[str]:
    """Keys as ``--set`` takes them: pydantic names the kind of an entry of a list, too."""
    after = zip((None, *place), place, strict=False)
    return [str(key) for before, key in after if isinstance(key, int) or not isinstance(before, int)]
