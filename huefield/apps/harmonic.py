"""Harmonic frequencies and relaxed geometries with the uncertainty that members' disagreement gives them.

Forces of all members come with each evaluation, so that the Hessian of each costs no more than one. A member's minimum
is a Newton step away from that of the ensemble: −H_m⁻¹ ∂E_m/∂r, without shift and rotation.
"""

from dataclasses import dataclass

import numpy as np
from ase import Atoms, units
from jaxtyping import Float

from huefield.apps.calculator import Calculator
from huefield.core.rigid import internal_motions

INVERSE_CM = units._hplanck * units._c * 100.0 / units._e
"""Energy of a wavenumber of 1/cm, [eV]."""
SMALLEST_CURVATURE = 1e-2
"""Of modes that are relaxed, [eV/Å²]: along softer ones a member's minimum is anywhere."""


@dataclass(frozen=True, eq=False)
class Harmonic:
    """A structure as a set of oscillators."""

    wavenumbers: Float[np.ndarray, " modes"]
    """[1/cm], of the ensemble's mean, ascending; imaginary ones are negative."""
    wavenumbers_uncertainty: Float[np.ndarray, " modes"]
    """Standard deviation between members."""
    zero_point_energy: float
    """[eV], of the modes that are not imaginary."""
    zero_point_energy_uncertainty: float
    positions_uncertainty: Float[np.ndarray, "N 3"]
    """Of the relaxed geometry [Å]: how far members' minima are from that of the ensemble, root mean square."""


def harmonic(calculator: Calculator, atoms: Atoms, *, step_angstrom: float = 0.01) -> Harmonic:
    """Frequencies about a relaxed structure, by central differences of forces.

    Args:
        calculator: with ``precision="float64"``, lest differences drown in rounding.
        atoms: a molecule in a minimum of its energy.
        step_angstrom: of the differences.
    """
    if calculator.evaluator.precision != "float64":
        raise ValueError('differences of forces need double precision: Calculator(model, precision="float64")')
    if atoms.pbc.any():
        raise ValueError("this is for molecules; crystals have phonons, which ase.phonons and phonopy know about")
    hessians = _hessians(calculator.sibling(), atoms, step_angstrom)
    inside = internal_motions(atoms.positions)
    masses = np.sqrt(np.repeat(atoms.get_masses(), 3))
    weighted = [_wavenumbers(hessian / np.outer(masses, masses), inside / masses[:, None]) for hessian in hessians]
    mean = _wavenumbers(hessians.mean(0) / np.outer(masses, masses), inside / masses[:, None])
    energies = [_zero_point(each) for each in weighted]
    return Harmonic(
        wavenumbers=mean,
        wavenumbers_uncertainty=np.std(weighted, axis=0),
        zero_point_energy=_zero_point(mean),
        zero_point_energy_uncertainty=float(np.std(energies)),
        positions_uncertainty=_relaxed(calculator.sibling(), atoms, hessians, inside),
    )


def _hessians(calculator: Calculator, atoms: Atoms, step: float) -> Float[np.ndarray, "M n n"]:
    """∂²E/∂r∂r of each member, [eV/Å²]."""
    moved, rows = atoms.copy(), []
    for atom in range(len(atoms)):
        for axis in range(3):
            forces = []
            for sign in (1, -1):
                moved.positions[atom, axis] = atoms.positions[atom, axis] + sign * step
                forces.append(calculator.get_property("forces_ensemble", moved))  # type: ignore[no-untyped-call]
            moved.positions[atom, axis] = atoms.positions[atom, axis]
            rows.append((forces[1] - forces[0]).reshape(len(forces[0]), -1) / (2 * step))
    found = np.stack(rows, axis=1)
    return 0.5 * (found + found.transpose(0, 2, 1))


def _wavenumbers(
    dynamical: Float[np.ndarray, "n n"], motions: Float[np.ndarray, "n modes"]
) -> Float[np.ndarray, " modes"]:
    basis = np.linalg.qr(motions)[0]
    squares = np.linalg.eigvalsh(basis.T @ dynamical @ basis)
    to_energy = units._hbar * 1e10 / np.sqrt(units._e * units._amu)
    return np.sign(squares) * np.sqrt(np.abs(squares)) * to_energy / INVERSE_CM


def _zero_point(wavenumbers: Float[np.ndarray, " modes"]) -> float:
    return float(0.5 * INVERSE_CM * wavenumbers[wavenumbers > 0].sum())


def _relaxed(
    calculator: Calculator, atoms: Atoms, hessians: Float[np.ndarray, "M n n"], inside: Float[np.ndarray, "n modes"]
) -> Float[np.ndarray, "N 3"]:
    """Root mean square of the members' Newton steps."""
    forces = calculator.get_property("forces_ensemble", atoms)  # type: ignore[no-untyped-call]
    steps = []
    for force, hessian in zip(forces.reshape(len(forces), -1), hessians, strict=True):
        curvatures, modes = np.linalg.eigh(inside.T @ hessian @ inside)
        stiff = curvatures > SMALLEST_CURVATURE
        directions = inside @ modes[:, stiff]
        steps.append(directions @ (force @ directions / curvatures[stiff]))
    return np.sqrt(np.square(steps).mean(0)).reshape(-1, 3)
