"""Harmonic frequencies and relaxed geometries, with uncertainties from the disagreement of ensemble members.

Each evaluation gives the forces of all members, so the Hessians of all members cost as much as one. The minimum of
member m is a Newton step H_m⁻¹ (F_m − F) away from that of the ensemble, with the member's Hessian H_m and force F_m
and the mean force F, without translation and rotation.

The members are uncalibrated. A calibration scales their deviations by factors that change from structure to structure,
and forces scaled in this way are not derivatives of an energy.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from ase import Atoms, units
from jaxtyping import Float

from huefield.ase.calculator import Calculator
from huefield.core.rigid import internal_motions
from huefield.support.errors import HuefieldError

INVERSE_CM = units._hplanck * units._c * 100.0 / units._e
"""Energy of a wavenumber of 1/cm [eV]."""
SMALLEST_CURVATURE = 1e-2
"""Smallest curvature of modes that are relaxed [eV/Å²]; along softer modes the minimum is undetermined."""

MemberForces = Callable[[Float[np.ndarray, "N 3"]], Float[np.ndarray, "M N 3"]]
"""Maps positions to the forces of each member."""


@dataclass(frozen=True, eq=False)
class Harmonic:
    """Harmonic oscillators of a structure. All uncertainties are standard deviations between uncalibrated members."""

    wavenumbers: Float[np.ndarray, " modes"]
    """Wavenumbers [1/cm] for the mean Hessian, ascending; imaginary ones are negative."""
    wavenumbers_uncertainty: Float[np.ndarray, " modes"]
    """Standard deviations between members [1/cm]."""
    zero_point_energy: float
    """Zero-point energy of the real modes [eV]."""
    zero_point_energy_uncertainty: float
    positions_uncertainty: Float[np.ndarray, "N 3"]
    """Root mean square distance of the members' minima from that of the ensemble [Å]."""
    soft_modes: int
    """Number of modes left out of ``positions_uncertainty`` because of small or negative curvature, for the member with
    the most."""


def harmonic(calculator: Calculator, atoms: Atoms, *, step_angstrom: float = 0.01) -> Harmonic:
    """Compute frequencies of a relaxed molecule by central differences of forces.

    Args:
        calculator: with ``precision="float64"``, because finite differences amplify rounding. Its calibration is not
            used.
        atoms: a molecule at a minimum of its energy.
        step_angstrom: displacement of the finite differences.
    """
    if calculator.evaluator.precision != "float64":
        raise HuefieldError(
            'finite differences of forces need double precision: use Calculator(model, precision="float64")'
        )
    if atoms.pbc.any():
        raise HuefieldError(
            "harmonic is for molecules, but the structure is periodic: use ase.phonons or phonopy for phonons"
        )
    calculator.tell_of_limits(atoms)
    plain, moved = _uncalibrated(calculator), atoms.copy()

    def member_forces(positions: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, "M N 3"]:
        moved.positions[:] = positions
        return np.asarray(plain.get_property("forces_ensemble", moved), float)  # type: ignore[no-untyped-call]

    return oscillators(member_forces, atoms.positions, atoms.get_masses(), step_angstrom=step_angstrom)


def oscillators(
    member_forces: MemberForces,
    positions: Float[np.ndarray, "N 3"],
    masses: Float[np.ndarray, " N"],
    *,
    step_angstrom: float,
) -> Harmonic:
    """Compute frequencies from any function that gives the forces of members."""
    hessians = _hessians(member_forces, positions, step_angstrom)
    inside = internal_motions(positions)
    roots = np.sqrt(np.repeat(masses, 3))
    mean, *weighted = (
        _wavenumbers(each / np.outer(roots, roots), inside / roots[:, None]) for each in (hessians.mean(0), *hessians)
    )
    displaced, soft = _displaced(member_forces(positions), hessians, inside)
    return Harmonic(
        wavenumbers=mean,
        wavenumbers_uncertainty=np.std(weighted, axis=0),
        zero_point_energy=_zero_point(mean),
        zero_point_energy_uncertainty=float(np.std([_zero_point(each) for each in weighted])),
        positions_uncertainty=np.sqrt(np.square(displaced).mean(0)),
        soft_modes=soft,
    )


def _uncalibrated(calculator: Calculator) -> Calculator:
    if calculator.ensemble.calibration is None:
        return calculator.sibling()
    plain = calculator.ensemble.with_calibration(None)
    return Calculator(plain, baseline=calculator.evaluator.baseline, precision="float64", warn_above=None)


def _hessians(
    member_forces: MemberForces, positions: Float[np.ndarray, "N 3"], step: float
) -> Float[np.ndarray, "M n n"]:
    """∂²E/∂r∂r of each member [eV/Å²]."""
    rows = []
    for place in np.ndindex(positions.shape):
        moved = np.zeros_like(positions)
        moved[place] = step
        change = member_forces(positions - moved) - member_forces(positions + moved)
        rows.append(change.reshape(len(change), -1) / (2 * step))
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


def _displaced(
    forces: Float[np.ndarray, "M N 3"], hessians: Float[np.ndarray, "M n n"], inside: Float[np.ndarray, "n modes"]
) -> tuple[Float[np.ndarray, "M N 3"], int]:
    """Newton steps from the minimum of the ensemble to those of members, and the largest number of soft modes.

    The mean force is subtracted, so that an incomplete relaxation has no influence.
    """
    steps, soft = [], 0
    for deviation, hessian in zip((forces - forces.mean(0)).reshape(len(forces), -1), hessians, strict=True):
        curvatures, modes = np.linalg.eigh(inside.T @ hessian @ inside)
        stiff = curvatures > SMALLEST_CURVATURE
        directions = inside @ modes[:, stiff]
        steps.append(directions @ (deviation @ directions / curvatures[stiff]))
        soft = max(soft, int((~stiff).sum()))
    return np.reshape(steps, forces.shape), soft
