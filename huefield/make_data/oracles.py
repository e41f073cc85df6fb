"""Oracles: quantum chemistry programs that compute energy (eV) and forces (eV/Å) of a structure.

A label depends on the structure alone: every calculation starts from the same guess instead of the previous density.
The programs are imported when an oracle is first used.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float

from huefield.baselines.base import BaselineError
from huefield.baselines.tblite import single_point
from huefield.core.structure import Structure
from huefield.core.units import BOHR_ANGSTROM, HARTREE_EV
from huefield.support.errors import HuefieldError

UNPAIRED_IN_ATOM = {1: 1, 2: 0, 3: 1, 5: 1, 6: 2, 7: 3, 8: 2, 9: 1, 14: 2, 15: 3, 16: 2, 17: 1}
"""Unpaired electrons of free atoms in their ground state, by atomic number."""


class OracleError(HuefieldError):
    """A structure could not be labelled; the message says which one and why."""


class AbstractOracle(ABC):
    """Computes energy and forces of structures."""

    @abstractmethod
    def label(self, structure: Structure) -> Structure:
        """Return the structure with energy and forces."""

    @abstractmethod
    def provenance(self) -> dict[str, Any]:
        """Method, settings, program and version as JSON types."""

    @abstractmethod
    def with_unpaired_electrons(self, unpaired: int) -> "AbstractOracle":
        """Return the same oracle for another spin."""

    def atom_energy(self, atomic_number: int) -> float:
        """Energy in eV of a free neutral atom in its ground state."""
        if atomic_number not in UNPAIRED_IN_ATOM:
            known = ", ".join(map(str, UNPAIRED_IN_ATOM))
            raise OracleError(f"the ground state of atomic number {atomic_number} is not tabulated; known are {known}")
        atom = Structure(np.array([atomic_number], np.uint8), np.zeros((1, 3)))
        energy = self.with_unpaired_electrons(UNPAIRED_IN_ATOM[atomic_number]).label(atom).energy
        assert energy is not None  # noqa: S101 - label always gives one
        return energy


@dataclass(frozen=True)
class TbliteOracle(AbstractOracle):
    """GFN2-xTB by tblite; takes milliseconds for a small molecule."""

    charge: int = 0
    unpaired_electrons: int = 0
    accuracy: float = 0.01
    """Factor on tblite's thresholds for self-consistency."""
    max_iterations: int = 250

    def label(self, structure: Structure) -> Structure:
        """Energy and forces from one calculation that starts from superposed atoms."""
        _require_molecule(structure)
        _require_spin(structure, self.charge, self.unpaired_electrons)
        settings = {"accuracy": self.accuracy, "max-iter": self.max_iterations}
        try:
            found = single_point(structure, "GFN2-xTB", self.charge, self.unpaired_electrons, settings)
        except BaselineError as error:
            raise OracleError(
                f"{error} ({_name(structure)}); look for atoms that are too close or an open shell, or allow more than "
                f"max_iterations={self.max_iterations}"
            ) from error
        return _labelled(structure, found.energy, found.forces)

    def provenance(self) -> dict[str, Any]:
        """Method, settings and version of tblite."""
        return {
            "level": "gfn2-xtb",
            "method": "GFN2-xTB, no spin polarisation, electronic temperature 300 K",
            "charge": self.charge,
            "unpaired_electrons": self.unpaired_electrons,
            "accuracy": self.accuracy,
            "program": "tblite",
            "version": version("tblite"),
        }

    def with_unpaired_electrons(self, unpaired: int) -> "TbliteOracle":
        """Return the same oracle for another spin."""
        return replace(self, unpaired_electrons=unpaired)


@dataclass(frozen=True)
class PyscfOracle(AbstractOracle):
    """Density functional theory by pyscf; the defaults are the level of Transition1x: ωB97X/6-31G(d), spherical d."""

    charge: int = 0
    unpaired_electrons: int = 0
    functional: str = "wb97x"
    basis: str = "6-31g(d)"
    cartesian: bool = False
    """Use six Cartesian d functions instead of five spherical ones, as ANI-1x does."""
    convergence_hartree: float = 1e-9
    max_iterations: int = 100
    grid_level: int = 3

    def label(self, structure: Structure) -> Structure:
        """Energy and forces from one Kohn-Sham calculation, unrestricted if electrons are unpaired."""
        gto, dft = _program("pyscf.gto", "pyscf", "dft"), _program("pyscf.dft", "pyscf", "dft")
        _require_molecule(structure)
        _require_spin(structure, self.charge, self.unpaired_electrons)
        molecule = gto.M(
            atom=list(zip(structure.atomic_numbers.tolist(), structure.positions.tolist(), strict=True)),
            unit=BOHR_ANGSTROM,  # length of a bohr in the unit of the positions
            basis=self.basis,
            cart=self.cartesian,
            charge=self.charge,
            spin=self.unpaired_electrons,
            verbose=0,
        )
        field = (dft.UKS if self.unpaired_electrons else dft.RKS)(molecule, xc=self.functional)
        field.conv_tol, field.max_cycle, field.grids.level = (
            self.convergence_hartree,
            self.max_iterations,
            self.grid_level,
        )
        try:
            energy = float(field.kernel())
            gradient = _pyscf_gradient(field) if field.converged else None
        except (np.linalg.LinAlgError, RuntimeError, ValueError) as error:
            raise OracleError(f"{self._level()} crashed for {_name(structure)}: {error}") from error
        if gradient is None:
            raise OracleError(
                f"{self._level()} did not converge for {_name(structure)} in max_iterations={self.max_iterations}; "
                "allow more, or look for an open shell"
            )
        return _labelled(structure, energy * HARTREE_EV, -gradient * (HARTREE_EV / BOHR_ANGSTROM))

    def provenance(self) -> dict[str, Any]:
        """Level, settings and version of pyscf."""
        return {
            "level": self._level(),
            "method": f"Kohn-Sham DFT, {'six Cartesian' if self.cartesian else 'five spherical'} d functions",
            "charge": self.charge,
            "unpaired_electrons": self.unpaired_electrons,
            "convergence_hartree": self.convergence_hartree,
            "grid_level": self.grid_level,
            "program": "pyscf",
            "version": version("pyscf"),
        }

    def with_unpaired_electrons(self, unpaired: int) -> "PyscfOracle":
        """Return the same oracle for another spin."""
        return replace(self, unpaired_electrons=unpaired)

    def _level(self) -> str:
        return f"{self.functional}/{self.basis}"


LEVELS: dict[str, Callable[[], AbstractOracle]] = {"gfn2-xtb": TbliteOracle, "wb97x/6-31g(d)": PyscfOracle}
"""Oracles by level of theory."""


def oracle_of(level_of_theory: str) -> AbstractOracle:
    """Create the oracle of a level of theory."""
    if level_of_theory not in LEVELS:
        raise HuefieldError(f"unknown level of theory {level_of_theory!r}; known are {', '.join(LEVELS)}")
    return LEVELS[level_of_theory]()


def _pyscf_gradient(field: Any) -> Float[np.ndarray, "N 3"]:
    """Gradient with grid response; without it forces are not the derivatives of the energy."""
    gradients = field.nuc_grad_method()
    gradients.verbose, gradients.grid_response = 0, True
    return np.asarray(gradients.kernel())


def _labelled(structure: Structure, energy: float, forces: Float[np.ndarray, "N 3"]) -> Structure:
    """Add an energy in eV and forces in eV/Å to a structure."""
    if not (np.isfinite(energy) and np.isfinite(forces).all()):
        raise OracleError(f"the energy or a force of {_name(structure)} is not finite; are two atoms in one place?")
    return replace(structure, energy=energy, forces=forces)


def _require_molecule(structure: Structure) -> None:
    if not len(structure):
        raise OracleError("the structure has no atoms")
    if structure.pbc.any():
        raise OracleError(f"oracles label molecules, but {_name(structure)} is periodic; set pbc to False")
    if not np.isfinite(structure.positions).all():
        raise OracleError(f"a position of {_name(structure)} is NaN or infinite")


def _require_spin(structure: Structure, charge: int, unpaired: int) -> None:
    electrons = int(structure.atomic_numbers.sum(dtype=int)) - charge
    if unpaired < 0 or unpaired > electrons or (electrons - unpaired) % 2:
        raise OracleError(
            f"{_name(structure)} has {electrons} electrons, of which {unpaired} cannot be unpaired; "
            "give an oracle with a fitting charge or unpaired_electrons"
        )


def _name(structure: Structure) -> str:
    """Name of a structure in messages: its formula, and its group if there is one."""
    from ase import Atoms

    formula = Atoms(numbers=structure.atomic_numbers).get_chemical_formula()
    return formula + (f" of {structure.group!r}" if structure.group else "")


def _program(module: str, package: str, extra: str) -> ModuleType:
    """Import a quantum chemistry program, or raise with the command that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise OracleError(
            f"{package} is not installed; install it with pip install '.[{extra}]' in the source folder of huefield"
        ) from error
