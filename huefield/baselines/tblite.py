"""Semi-empirical tight binding by tblite, for molecules and crystals."""

import sys
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from pydantic import Field

from huefield.baselines.base import AbstractBaseline, BaselineError
from huefield.baselines.process import usable_cores
from huefield.core.structure import BaselineResult, Structure, cell_volumes
from huefield.core.units import BOHR_ANGSTROM, HARTREE_EV
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError


class TbliteBaseline(AbstractBaseline):
    """GFN2-xTB or GFN1-xTB; milliseconds for a small molecule.

    Each calculation starts from superposed atoms: the result depends on the structure alone, and not on the structures
    before it. Electrons are paired, except for the last one of an odd number.
    """

    class Config(FrozenConfig):
        """Settings of the calculation."""

        kind: Literal["tblite"] = "tblite"
        method: Literal["GFN2-xTB", "GFN1-xTB"] = Field("GFN2-xTB", description="parametrisation")
        charge: int = Field(0, ge=-100, le=100, description="total charge of every structure")
        accuracy: float = Field(0.1, gt=0, le=1000, description="factor of tblite's thresholds for self-consistency")
        max_iterations: int = Field(250, ge=1, le=100_000, description="iterations to self-consistency")

        @property
        def title(self) -> str:
            """The method."""
            return self.method

    def __init__(self, config: Config) -> None:
        self.config = config
        try:
            self._interface: ModuleType = import_module("tblite.interface")
            self._failures: ModuleType = import_module("tblite.exceptions")
        except ModuleNotFoundError as error:
            raise HuefieldError(
                f"the baseline {config.method} needs tblite, which is not installed: pip install tblite"
            ) from error

    @property
    def title(self) -> str:
        """The method."""
        return self.config.method

    @property
    def version(self) -> str:
        """The version of tblite."""
        return f"tblite {version('tblite')}"

    @property
    def identity(self) -> str:
        """Settings and version."""
        return f"{self.config.model_dump_json()} {self.version}"

    @property
    def usual_workers(self) -> int:
        """One on each core."""
        return usable_cores()

    @property
    def worker_command(self) -> tuple[str, ...]:
        """The worker of huefield with this configuration."""
        return (sys.executable, "-m", "huefield.baselines.worker", self.config.model_dump_json())

    def _computed(self, structure: Structure) -> BaselineResult:
        failures = self._failures
        try:
            result = self._calculator(structure).singlepoint()
            energy, gradient = float(result.get("energy")), np.asarray(result.get("gradient"))
            virial = np.asarray(result.get("virial")) if structure.pbc.any() else None
        except (failures.TBLiteRuntimeError, failures.TBLiteValueError, failures.TBLiteTypeError) as error:
            raise BaselineError(f"{self.title} failed: {' '.join(str(error).split())}") from error
        forces = -gradient * (HARTREE_EV / BOHR_ANGSTROM)
        return BaselineResult(energy * HARTREE_EV, forces, None if virial is None else _stress(virial, structure))

    def _calculator(self, structure: Structure) -> Any:
        config, periodic = self.config, bool(structure.pbc.any())
        electrons = int(structure.atomic_numbers.sum(dtype=int)) - config.charge
        cell: dict[str, Any] = (
            {"lattice": structure.cell.astype(float) / BOHR_ANGSTROM, "periodic": structure.pbc} if periodic else {}
        )
        made = self._interface.Calculator(
            config.method,
            structure.atomic_numbers.astype(int),
            structure.positions.astype(float) / BOHR_ANGSTROM,
            float(config.charge),
            electrons % 2,
            **cell,
        )
        for name, value in {"verbosity": 0, "accuracy": config.accuracy, "max-iter": config.max_iterations}.items():
            made.set(name, value)
        return made


def _stress(virial: Float[np.ndarray, "3 3"], structure: Structure) -> Float[np.ndarray, "3 3"] | None:
    """Stress [eV/Å³] from tblite's virial, which is ∂E/∂ε in hartree; None for a cell without a volume."""
    volume = float(cell_volumes(structure.cell))
    return virial * (HARTREE_EV / volume) if volume else None
