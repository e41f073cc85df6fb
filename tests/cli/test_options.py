"""Options that are settings of a configuration."""

from pathlib import Path
from typing import Any

import pytest
import typer

from huefield.ase.md import MDConfig
from huefield.ase.neb import PathConfig
from huefield.cli.main import app
from huefield.cli.options import naming_options, option_name
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError


def options(command: str) -> dict[str, Any]:
    program: Any = typer.main.get_command(app)
    return {option.name: option for option in program.commands[command].params}


@pytest.mark.parametrize(("command", "config"), [("md", MDConfig), ("neb", PathConfig)])
def test_each_setting_is_an_option_with_the_same_default(command: str, config: type[FrozenConfig]) -> None:
    found = options(command)
    for name, field in config.model_fields.items():
        option = found[option_name(name)]
        assert option.required == field.is_required()
        assert field.is_required() or option.default == field.default
        assert option.help.startswith(field.description.removesuffix("."))


def test_help_has_units_and_flags_have_an_opposite_only_if_they_are_on() -> None:
    assert options("md")["timestep"].help == "Time step, in fs."
    assert options("md")["draw_velocities"].secondary_opts == []
    assert options("neb")["climb"].secondary_opts == ["--no-climb"]


def test_own_arguments_come_first() -> None:
    assert list(options("md"))[:5] == ["model", "start", "frame", "out", "overwrite"]
    assert options("md")["out"].default == Path("md")


def test_a_wrong_setting_is_named_as_an_option() -> None:
    with pytest.raises(HuefieldError, match=r"--fmax: Input should be greater than 0 \(got -1\)"), naming_options():
        PathConfig(fmax_ev_per_angstrom=-1)
