"""Semi-empirical tight binding by tblite, for molecules and crystals."""

import sys
from collections.abc import Mapping
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
        _program("interface", config.method)

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
        config = self.config
        electrons = int(structure.atomic_numbers.sum(dtype=int)) - config.charge
        settings = {"accuracy": config.accuracy, "max-iter": config.max_iterations}
        return single_point(structure, config.method, config.charge, electrons % 2, settings)


def single_point(
    structure: Structure, method: str, charge: int, unpaired: int, settings: Mapping[str, float]
) -> BaselineResult:
    """One calculation from superposed atoms; raises a :class:`BaselineError` if it fails.

    Args:
        structure: a molecule or a crystal.
        method: parametrisation, such as ``GFN2-xTB``.
        charge: total charge.
        unpaired: number of unpaired electrons.
        settings: further settings of tblite by their names there.
    """
    interface, failures = _program("interface", method), _program("exceptions", method)
    periodic = bool(structure.pbc.any())
    cell: dict[str, Any] = (
        {"lattice": structure.cell.astype(float) / BOHR_ANGSTROM, "periodic": structure.pbc} if periodic else {}
    )
    numbers, positions = structure.atomic_numbers.astype(int), structure.positions.astype(float) / BOHR_ANGSTROM
    try:
        calculator = interface.Calculator(method, numbers, positions, float(charge), unpaired, **cell)
        for name, value in {"verbosity": 0, **settings}.items():
            calculator.set(name, value)
        result = calculator.singlepoint()
        energy, gradient = float(result.get("energy")), np.asarray(result.get("gradient"))
        virial = np.asarray(result.get("virial")) if periodic else None
    except (failures.TBLiteRuntimeError, failures.TBLiteValueError, failures.TBLiteTypeError) as error:
        raise BaselineError(f"{method} failed: {' '.join(str(error).split())}") from error
    forces = -gradient * (HARTREE_EV / BOHR_ANGSTROM)
    return BaselineResult(energy * HARTREE_EV, forces, None if virial is None else _stress(virial, structure))


def _program(module: str, method: str) -> ModuleType:
    try:
        return import_module(f"tblite.{module}")
    except ModuleNotFoundError as error:
        raise HuefieldError(f"{method} needs tblite, which is not installed: pip install tblite") from error


def _stress(virial: Float[np.ndarray, "3 3"], structure: Structure) -> Float[np.ndarray, "3 3"] | None:
    """Stress [eV/Å³] from tblite's virial, which is ∂E/∂ε in hartree; None for a cell without a volume."""
    volume = float(cell_volumes(structure.cell))
    return virial * (HARTREE_EV / volume) if volume else None
