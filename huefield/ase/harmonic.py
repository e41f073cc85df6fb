"""Harmonic frequencies and relaxed geometries with the uncertainty that members' disagreement gives them.

Forces of all members come with each evaluation, so that the Hessian of each costs no more than one. A member's minimum
is a Newton step H_m⁻¹ (F_m − F) away from that of the ensemble, with its Hessian H_m, its force F_m and the mean F of
all forces; without shift and rotation.

Members are taken as they are: a calibration of variances scales their deviations by factors that change from structure
to structure, and forces scaled like that are no derivatives of an energy.
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
"""Energy of a wavenumber of 1/cm, [eV]."""
SMALLEST_CURVATURE = 1e-2
"""Of modes that are relaxed, [eV/Å²]: along softer ones a member's minimum is anywhere."""

MemberForces = Callable[[Float[np.ndarray, "N 3"]], Float[np.ndarray, "M N 3"]]
"""Positions → the forces of each member."""


@dataclass(frozen=True, eq=False)
class Harmonic:
    """A structure as a set of oscillators. All uncertainties are members' disagreement, uncalibrated."""

    wavenumbers: Float[np.ndarray, " modes"]
    """[1/cm], of the ensemble's mean, ascending; imaginary ones are negative."""
    wavenumbers_uncertainty: Float[np.ndarray, " modes"]
    """Standard deviation between members."""
    zero_point_energy: float
    """[eV], of the modes that are not imaginary."""
    zero_point_energy_uncertainty: float
    positions_uncertainty: Float[np.ndarray, "N 3"]
    """Of the relaxed geometry [Å]: how far members' minima are from that of the ensemble, root mean square."""
    soft_modes: int
    """Modes that this is without, as they have too little curvature or a negative one: those of the worst member."""


def harmonic(calculator: Calculator, atoms: Atoms, *, step_angstrom: float = 0.01) -> Harmonic:
    """Frequencies about a relaxed structure, by central differences of forces.

    Args:
        calculator: with ``precision="float64"``, lest differences drown in rounding. Its calibration is left aside.
        atoms: a molecule in a minimum of its energy.
        step_angstrom: of the differences.
    """
    if calculator.evaluator.precision != "float64":
        raise HuefieldError('differences of forces need double precision: Calculator(model, precision="float64")')
    if atoms.pbc.any():
        raise HuefieldError("this is for molecules; crystals have phonons, which ase.phonons and phonopy know about")
    calculator.tell_of_ignored(atoms)
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
    """The same for forces of any kind."""
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
    return Calculator(calculator.ensemble.with_calibration(None), precision="float64", warn_above=None)


def _hessians(
    member_forces: MemberForces, positions: Float[np.ndarray, "N 3"], step: float
) -> Float[np.ndarray, "M n n"]:
    """∂²E/∂r∂r of each member, [eV/Å²]."""
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
    """Newton steps from the minimum of the ensemble to those of members, and the most modes that one is without.

    The mean force is taken off, so that a structure that is not quite relaxed counts for nothing.
    """
    steps, soft = [], 0
    for deviation, hessian in zip((forces - forces.mean(0)).reshape(len(forces), -1), hessians, strict=True):
        curvatures, modes = np.linalg.eigh(inside.T @ hessian @ inside)
        stiff = curvatures > SMALLEST_CURVATURE
        directions = inside @ modes[:, stiff]
        steps.append(directions @ (deviation @ directions / curvatures[stiff]))
        soft = max(soft, int((~stiff).sum()))
    return np.reshape(steps, forces.shape), soft
