"""Options of the command line that are settings of a configuration: each default and each help text is written once."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from huefield.support.errors import HuefieldError

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

    from huefield.support.config import FrozenConfig

UNITS = {
    "_kelvin": "K",
    "_per_fs": "1/fs",
    "_fs": "fs",
    "_bar": "bar",
    "_ev_per_angstrom2": "eV/Å²",
    "_ev_per_angstrom": "eV/Å",
}
"""Suffixes of settings, which options do not have, and the units for help texts."""
SETTINGS = "settings"
"""Name of the parameter that receives the settings of a command."""


DatasetOption = Annotated[
    str | None,
    typer.Option(
        metavar="TAG", help="Data set whose energies to predict, of a model of several; by default its main one."
    ),
]

GrowthOption = Annotated[
    bool,
    typer.Option(
        "--growth/--no-growth",
        help="Whether error bars grow with the distance to the training data; --no-growth if all structures are "
        "certainly like those of training.",
    ),
]


def tell_of_growth(model: Path, growth: bool) -> None:
    """Say on the error output what --no-growth does to the error bars of a model."""
    from huefield.model.modelfile import open_model

    if growth:
        return
    grows = open_model(model).noise_grows
    typer.echo(
        "note: error bars do not grow with the distance to the training data (--no-growth): they are for structures "
        "like those of training, and too narrow for others"
        if grows
        else "note: the noise of this model does not grow, and --no-growth changes nothing",
        err=True,
    )


Choice = TypeVar("Choice")


def from_kind_or_json(text: str, option: str, choices: "TypeAdapter[Choice]") -> Choice:
    """The settings of an option that takes the name of a kind, or JSON with its settings."""
    import json

    from pydantic import ValidationError

    from huefield.support.config import explain

    content: Any = {"kind": text}
    if text.lstrip().startswith("{"):
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise HuefieldError(f"{option} is not JSON: {error} (got {text!r})") from error
    try:
        return choices.validate_python(content)
    except ValidationError as error:
        raise HuefieldError(explain(error, option)) from error


class NoiseKind(StrEnum):
    """Noise models."""

    VANILLA = "vanilla"
    WHITE = "white"
    COLORED = "colored"
    LOCAL = "local"
    LOCAL_WHITE = "local_white"


def with_settings(config: Callable[[], "type[FrozenConfig]"]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Give a command an option for each setting of a configuration, to be registered with :class:`SettingsCommand`.

    The decorated function receives all settings as the dictionary ``settings``.

    Args:
        config: imports and returns the class of the configuration, when the options are needed.
    """

    def decorate(function: Callable[..., None]) -> Callable[[], None]:
        def stub() -> None:
            pass

        stub.__name__, stub.__doc__ = function.__name__, function.__doc__
        stub.__dict__["complete"] = lambda: _completed(function, config())
        return stub

    return decorate


class SettingsCommand(TyperCommand):
    """A command whose options are made when they are needed, so that ``huefield --help`` imports nothing heavy."""

    @property
    def params(self) -> list[Any]:
        """Arguments and options."""
        complete = getattr(self.callback, "complete", None)
        if complete is not None:
            app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            app.command(self.name)(complete())
            made = typer.main.get_command(app)
            self._params, self.callback = made.params, made.callback
        return self._params

    @params.setter
    def params(self, params: list[Any]) -> None:
        self._params = params


def _completed(function: Callable[..., None], config: "type[FrozenConfig]") -> Callable[..., None]:
    """The function with a parameter for each setting."""
    own = [parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != SETTINGS]
    options = {option_name(name): name for name in config.model_fields}

    def run(**given: Any) -> None:
        settings = {setting: given.pop(option) for option, setting in options.items()}
        function(**given, settings=settings)

    parameters = [*own, *(_parameter(option, config.model_fields[name], name) for option, name in options.items())]
    run.__dict__["__signature__"] = inspect.Signature(
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    )
    run.__name__, run.__doc__, run.__annotations__ = function.__name__, function.__doc__, {}
    return run


def _parameter(option: str, field: "FieldInfo", setting: str) -> inspect.Parameter:
    unit = next((f", in {unit}." for suffix, unit in UNITS.items() if setting.endswith(suffix)), ".")
    flag = (f"--{option.replace('_', '-')}",) if field.default is False else ()  # without its opposite
    described = typer.Option(*flag, help=(field.description or "").removesuffix(".") + unit)
    return inspect.Parameter(
        option,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.is_required() else field.default,
        annotation=Annotated[field.annotation, described],
    )


def option_name(setting: str) -> str:
    """Name of a setting without its unit."""
    for unit in UNITS:
        setting = setting.removesuffix(unit)
    return setting


@contextmanager
def naming_options() -> Iterator[None]:
    """Report invalid settings under the names of their options."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        raise HuefieldError("; ".join(map(_fault, error.errors()))) from None


def _fault(fault: "ErrorDetails") -> str:
    said = fault["msg"].removeprefix("Value error, ")
    if not fault["loc"]:
        return said
    return f"--{option_name(str(fault['loc'][0])).replace('_', '-')}: {said} (got {fault['input']})"
