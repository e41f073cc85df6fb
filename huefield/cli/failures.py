"""How the program shows errors: in one line if a user can fix them, as a bug with its traceback otherwise."""

import traceback

import typer

from huefield.cli.exit_codes import ExitCode
from huefield.support.errors import HuefieldError

BUG = "This is a bug in huefield. Please report it with the lines above, the command and, if you can, its input files."
NO_MEMORY = "out of memory: reduce batch_size, members or the size of the model, or use a device with more memory"


def show(error: Exception) -> ExitCode:
    """Print an error and return the exit code."""
    line = one_line(error)
    if line is not None:
        typer.echo(f"error: {line}", err=True)
        return ExitCode.ERROR
    traceback.print_exception(error)
    typer.echo(BUG, err=True)
    return ExitCode.BUG


def one_line(error: Exception) -> str | None:
    """The message for an error that a user can fix; None for a bug."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"there is no file {error.filename}"
    if isinstance(error, HuefieldError | OSError):
        return str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error)):
        return NO_MEMORY
    return None
