"""All kinds of baselines, and the baselines that users give."""

from typing import Annotated, Any, TypeAlias

from pydantic import Field

from huefield.baselines.ase_calculator import AseBaseline
from huefield.baselines.base import AbstractBaseline
from huefield.baselines.columns import ColumnsBaseline
from huefield.baselines.tblite import TbliteBaseline
from huefield.support.errors import HuefieldError

BaselineConfig = Annotated[
    TbliteBaseline.Config | AseBaseline.Config | ColumnsBaseline.Config, Field(discriminator="kind")
]
BaselineLike: TypeAlias = Any
"""An ASE calculator, or an :class:`AbstractBaseline`."""


def as_baseline(given: BaselineLike) -> AbstractBaseline:
    """The baseline that a user gave."""
    if isinstance(given, AbstractBaseline):
        return given
    if not hasattr(given, "get_potential_energy") or not hasattr(given, "get_forces"):
        raise HuefieldError(f"a baseline is an ASE calculator, not {type(given).__name__}: give an instance of one")
    return AseBaseline(given)


def built(config: BaselineConfig) -> AbstractBaseline | None:
    """The baseline of a configuration; None for a calculator that has to be given in Python."""
    if isinstance(config, TbliteBaseline.Config):
        return TbliteBaseline(config)
    return ColumnsBaseline(config.title) if isinstance(config, ColumnsBaseline.Config) else None
