"""What is wrong with settings, in the words of the command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from huefield.support.errors import HuefieldError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

UNITS = ("_kelvin", "_per_fs", "_fs", "_bar", "_ev_per_angstrom2", "_ev_per_angstrom")
"""Behind names of settings; options are without them."""


@contextmanager
def naming_options() -> Iterator[None]:
    """Tell what is wrong with settings that are made in the block under the names of their options."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        raise HuefieldError("; ".join(map(_fault, error.errors()))) from None


def _fault(fault: "ErrorDetails") -> str:
    said = fault["msg"].removeprefix("Value error, ")
    if not fault["loc"]:
        return said
    name = str(fault["loc"][0])
    for unit in UNITS:
        name = name.removesuffix(unit)
    return f"--{name.replace('_', '-')}: {said} (got {fault['input']})"
