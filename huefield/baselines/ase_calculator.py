"""Any ASE calculator as a baseline."""

from contextlib import suppress
from typing import Any, Literal

import numpy as np
from ase import Atoms
from ase.stress import voigt_6_to_full_3x3_stress
from pydantic import Field

from huefield.baselines.base import AbstractBaseline, BaselineError
from huefield.core.structure import BaselineResult, Structure, stress_volumes
from huefield.support.config import FrozenConfig


class AseBaseline(AbstractBaseline):
    """An ASE calculator that a Python program gives: a force field, an electronic-structure code, a foundation model.

    A model file has only its name. Whoever uses the model gives the calculator again, and it is compared with the
    probes in the file.
    """

    class Config(FrozenConfig):
        """The name of the calculator."""

        kind: Literal["ase"] = "ase"
        name: str = Field("", max_length=200, description="name of the calculator, for tables and messages")

        @property
        def title(self) -> str:
            """The name."""
            return self.name or "an ASE calculator"

    def __init__(self, calculator: Any, name: str = "") -> None:
        """Wrap a calculator.

        Args:
            calculator: an ASE calculator.
            name: for tables and messages; empty for the name of its class.
        """
        self.config = AseBaseline.Config(name=name or type(calculator).__name__)
        self._calculator = calculator

    @property
    def title(self) -> str:
        """The name."""
        return self.config.title

    def _computed(self, structure: Structure) -> BaselineResult:
        atoms = Atoms(structure.atomic_numbers, structure.positions, cell=structure.cell, pbc=structure.pbc)
        atoms.calc = self._calculator
        try:
            energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        except Exception as error:  # calculators raise any exception
            raise BaselineError(f"{self.title} failed: {type(error).__name__}: {error}") from error
        stress = None
        if stress_volumes(structure.cell, structure.pbc) and "stress" in self._calculator.implemented_properties:
            with suppress(Exception):  # energies and forces can be used without it
                stress = voigt_6_to_full_3x3_stress(atoms.get_stress())
        return BaselineResult(float(energy), np.array(forces, float), stress)
