"""Options of the command line for baselines."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from huefield.support.errors import HuefieldError

if TYPE_CHECKING:
    from huefield.baselines import AbstractBaseline, BaselineConfig

METHODS = {"gfn2-xtb": "GFN2-xTB", "gfn1-xtb": "GFN1-xTB"}

BaselineOption = Annotated[
    str | None,
    typer.Option(
        help="Calculator to correct: GFN2-xTB, GFN1-xTB, columns (results in the data), or JSON with settings, such as "
        '\'{"kind": "tblite", "method": "GFN1-xTB"}\'.'
    ),
]
CommandOption = Annotated[
    str | None,
    typer.Option(
        "--baseline-command",
        metavar="COMMAND",
        help="Program that computes the baseline, perhaps in another environment (examples/foreign_baseline.py).",
    ),
]


def parse_baseline(text: str) -> "BaselineConfig":
    """The baseline from its name or from JSON."""
    import json

    from pydantic import TypeAdapter, ValidationError

    from huefield.baselines import BaselineConfig
    from huefield.support.config import explain

    content: Any = {"kind": text}
    if text.lower() in METHODS:
        content = {"kind": "tblite", "method": METHODS[text.lower()]}
    elif text.lstrip().startswith("{"):
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise HuefieldError(f"--baseline is not JSON: {error} (got {text!r})") from error
    adapter: TypeAdapter[BaselineConfig] = TypeAdapter(BaselineConfig)
    try:
        return adapter.validate_python(content)
    except ValidationError as error:
        raise HuefieldError(explain(error, "--baseline")) from error


def given_baseline(command: str | None) -> "AbstractBaseline | None":
    """The baseline that a command computes; None without a command."""
    if command is None:
        return None
    from huefield.baselines import ProcessBaseline

    return ProcessBaseline(command)


def computable_baseline(baseline: str | None, command: str | None) -> "AbstractBaseline":
    """A baseline that can be computed here, from exactly one of both options."""
    from huefield.baselines.kinds import built

    if (baseline is None) == (command is None):
        raise HuefieldError("name the baseline with --baseline or with --baseline-command, one of them")
    found = given_baseline(command) if baseline is None else built(parse_baseline(baseline))
    if found is None or (baseline is not None and parse_baseline(baseline).kind == "columns"):
        raise HuefieldError(
            f"the baseline {baseline} cannot be computed here: use GFN2-xTB or GFN1-xTB, or a program with "
            "--baseline-command"
        )
    return found
