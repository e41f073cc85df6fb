"""Oracles as ASE calculators, and geometry relaxation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.optimize import BFGS
from jaxtyping import Float, UInt8

from huefield.core.structure import Structure
from huefield.make_data.oracles import AbstractOracle
from huefield.support.errors import HuefieldError


class SamplingError(HuefieldError):
    """A molecule or reaction gave no usable configurations; the message says why."""


class OracleCalculator(Calculator):
    """ASE calculator that calls an oracle."""

    implemented_properties = [  # noqa: RUF012 - ASE's interface
        "energy",
        "forces",
    ]

    def __init__(self, oracle: AbstractOracle) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.oracle = oracle

    def calculate(
        self, atoms: Atoms | None = None, properties: Any = None, system_changes: Sequence[str] = all_changes
    ) -> None:
        """Compute energy and forces of the atoms."""
        super().calculate(atoms, properties or ["energy"], system_changes)  # type: ignore[no-untyped-call]
        given: Any = self.atoms
        labelled = self.oracle.label(Structure(given.numbers.astype(np.uint8), given.positions.copy()))
        self.results = {"energy": labelled.energy, "forces": labelled.forces}


@dataclass(frozen=True)
class Relaxation:
    """Convergence criteria of a relaxation."""

    fmax_ev_per_angstrom: float = 0.005
    max_steps: int = 500


RELAXATION = Relaxation()


def atoms_of(numbers: UInt8[np.ndarray, " N"], positions: Float[np.ndarray, "N 3"], oracle: AbstractOracle) -> Atoms:
    """``ase.Atoms`` with the oracle as calculator."""
    return Atoms(numbers=numbers, positions=positions, calculator=OracleCalculator(oracle))


def relaxed(
    numbers: UInt8[np.ndarray, " N"],
    positions: Float[np.ndarray, "N 3"],
    oracle: AbstractOracle,
    relaxation: Relaxation = RELAXATION,
) -> Float[np.ndarray, "N 3"]:
    """Relax a geometry to the nearest minimum."""
    atoms = atoms_of(numbers, positions, oracle)
    if not BFGS(atoms, logfile=None).run(relaxation.fmax_ev_per_angstrom, relaxation.max_steps):
        largest = np.linalg.norm(atoms.get_forces(), axis=1).max()
        raise SamplingError(
            f"{atoms.get_chemical_formula()} did not relax in {relaxation.max_steps} steps: "
            f"the largest force is still {largest:.3f} eV/Å"
        )
    return atoms.positions.copy()
