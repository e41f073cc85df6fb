"""The ``huefield`` program."""

import sys
import warnings
from typing import Annotated

import typer

from huefield import __version__
from huefield.cli.data import app as data_app
from huefield.cli.demo import demo
from huefield.cli.evaluate import calibrate, evaluate
from huefield.cli.exit_codes import SUMMARY
from huefield.cli.failures import show
from huefield.cli.make_data import make
from huefield.cli.md import md
from huefield.cli.neb import neb
from huefield.cli.options import SettingsCommand
from huefield.cli.predict import predict
from huefield.cli.reproduce import app as reproduce_app
from huefield.cli.signals import Interrupted, end, ending_at_once
from huefield.cli.toy import toy
from huefield.cli.train import assemble, config, history, train
from huefield.support.memory import keep_freed_memory

app = typer.Typer(
    name="huefield",
    help="Machine-learned force fields that know how wrong they are.",
    epilog=SUMMARY,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (demo, toy, config, train, assemble, history, evaluate, calibrate, predict):
    app.command()(command)
for command_with_settings in (neb, md):
    app.command(cls=SettingsCommand)(command_with_settings)
data_app.command()(make)
app.add_typer(reproduce_app, name="reproduce", help="Reproduce the table and the figures of the paper.")
app.add_typer(data_app, name="data", help="Convert files of structures to packed stores, and inspect them.")


def _show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"huefield {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print the message without the line of code that issued it."""
    typer.echo(f"warning: {message}", err=True)


def main() -> None:
    """Run the program. Errors that a user can fix are one line; any other is a bug and shows its traceback."""
    warnings.showwarning = _show_warning
    keep_freed_memory()
    try:
        with ending_at_once():
            app()
    except Interrupted as interrupted:
        end(int(interrupted.code or 0))
    except Exception as error:
        sys.exit(show(error))
