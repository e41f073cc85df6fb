"""The base of every configuration: typed, frozen, and strict about what it is given."""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError


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
        place = ".".join(str(part) for part in fault["loc"])
        lines.append(f"{source}: {place or 'configuration'}: {fault['msg']} (got {fault['input']!r})")
    return "\n".join(lines)
