"""A baseline whose results come with the structures, as columns of a file."""

from typing import Literal

from pydantic import Field

from huefield.baselines.base import AbstractBaseline
from huefield.core.structure import BaselineResult, Structure
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError


class ColumnsBaseline(AbstractBaseline):
    """Results that were computed elsewhere: ``baseline_energy``, ``baseline_forces`` and ``baseline_stress``."""

    class Config(FrozenConfig):
        """The name of the calculator that computed the columns."""

        kind: Literal["columns"] = "columns"
        name: str = Field("", max_length=200, description="name of the calculator that computed the columns")

        @property
        def title(self) -> str:
            """The name."""
            return self.name or "a baseline from columns"

    def __init__(self, title: str) -> None:
        self._title = title

    @property
    def title(self) -> str:
        """The name."""
        return self._title

    def _computed(self, structure: Structure) -> BaselineResult:
        raise HuefieldError(
            f"the model corrects {self.title}, whose results for this structure are missing. Files need "
            "baseline_energy and baseline_forces for each structure (`huefield data baseline` writes them); for single "
            "structures and dynamics, give the calculator: Calculator(model, baseline=...), or on the command line "
            "--baseline GFN2-xTB, if that is it, or --baseline-command"
        )
