"""Options of the command line for baselines."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from huefield.cli.options import from_kind_or_json
from huefield.support.errors import HuefieldError

if TYPE_CHECKING:
    from huefield.baselines import AbstractBaseline, BaselineConfig

METHODS: dict[str, Literal["GFN2-xTB", "GFN1-xTB"]] = {"gfn2-xtb": "GFN2-xTB", "gfn1-xtb": "GFN1-xTB"}

BaselineOption = Annotated[
    str | None,
    typer.Option(
        help="Calculator to correct: GFN2-xTB, GFN1-xTB, columns (results in the data), or JSON with settings, such as "
        '\'{"kind": "tblite", "method": "GFN1-xTB"}\'.'
    ),
]
ComputedOption = Annotated[
    str | None,
    typer.Option(
        help="Built-in calculator that the model corrects, GFN2-xTB or GFN1-xTB, if it was trained on its results in "
        "columns; not needed if it was trained with --baseline."
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
    from pydantic import TypeAdapter

    from huefield.baselines import BaselineConfig
    from huefield.baselines.tblite import TbliteBaseline

    if text.lower() in METHODS:
        return TbliteBaseline.Config(method=METHODS[text.lower()])
    adapter: TypeAdapter[BaselineConfig] = TypeAdapter(BaselineConfig)
    return from_kind_or_json(text, "--baseline", adapter)


def given_baseline(baseline: str | None, command: str | None) -> "AbstractBaseline | None":
    """A baseline that can be computed here, from one of both options; None without them."""
    from huefield.baselines import ProcessBaseline
    from huefield.baselines.kinds import built

    if baseline is not None and command is not None:
        raise HuefieldError("name the baseline with --baseline or with --baseline-command, not with both")
    if baseline is None:
        return None if command is None else ProcessBaseline(command)
    config = parse_baseline(baseline)
    found = None if config.kind == "columns" else built(config)
    if found is None:
        raise HuefieldError(
            f"the baseline {baseline} cannot be computed here: use GFN2-xTB or GFN1-xTB, or a program with "
            "--baseline-command"
        )
    return found
