"""Checks of distant parts and of coherence, for anything that maps structures to a distribution.

Let e(r) be the error of an energy, with the variance V(r). The errors of two distant parts add up, e = e_A + e_B, so
that V_A + V_B ≤ V ≤ (√V_A + √V_B)²: from independent to equal errors, unless they are anticorrelated. Forces belong
to one part or the other, and do not change. Wherever e is differentiable, Cov(E, F) = −½ ∂V.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from huefield.core import Gaussian, Structure
from huefield.testing.probes import moved, together

COPIES = (2, 4, 16)
STEP_ANGSTROM = 1e-4
"""Step of finite differences."""

Predict = Callable[[Sequence[Structure]], Gaussian]
"""The distribution of some structures."""


def check_distant_copies(predict: Predict, structure: Structure, relative: float) -> None:
    """Distant copies change no force variance, and σ_E grows by a factor between √n and n."""
    energy, forces = _variances(predict, structure)
    for count in COPIES:
        all_energy, all_forces = _variances(predict, together([structure] * count))
        for copy in np.split(all_forces, count):
            np.testing.assert_allclose(
                np.sqrt(copy), np.sqrt(forces), rtol=relative, err_msg=f"σ of forces with {count} distant copies"
            )
        growth = np.sqrt(all_energy / energy) if energy > 0 else 1.0
        assert energy == 0 or np.sqrt(count) * (1 - relative) <= growth <= count * (1 + relative), (
            f"σ of the energy of {count} distant copies is {growth:.6g} times that of one; it must lie between "
            f"{np.sqrt(count):.6g} (independent errors) and {count} (equal errors)"
        )


def check_distant_parts(predict: Predict, first: Structure, second: Structure, relative: float) -> None:
    """A distant different molecule changes no force variance, and noise of energies adds up within its bounds.

    Only the noise has the lower bound: members may err in opposite directions for the two molecules.
    """
    (_, forces), (_, all_forces) = _variances(predict, first), _variances(predict, together([first, second]))
    energy, other, both = (
        float(np.asarray(predict([each]).aleatoric_variance().energy)[0])
        for each in (first, second, together([first, second]))
    )
    np.testing.assert_allclose(
        np.sqrt(all_forces[: len(forces)]),
        np.sqrt(forces),
        rtol=relative,
        err_msg="σ of forces beside a distant molecule",
    )
    least, most = energy + other, (np.sqrt(energy) + np.sqrt(other)) ** 2
    assert least * (1 - relative) <= both <= most * (1 + relative), (
        f"the energy noise {both:.6g} eV² of two distant molecules must lie between the sum of both, {least:.6g}, and "
        f"the square of the summed standard deviations, {most:.6g}"
    )


def check_distant_atoms(predict: Predict, structure: Structure, relative: float) -> None:
    """The atoms of a structure, all far apart: no variance is below what the single atoms have.

    Noise of one sign for one element and of the other for another passes the checks of molecules, in which one element
    prevails, and cancels here.
    """
    atoms = [Structure(structure.atomic_numbers[[i]], np.zeros((1, 3))) for i in range(len(structure))]
    alone = [predict([atom]).aleatoric_variance() for atom in atoms]
    apart = predict([together(atoms)]).aleatoric_variance()
    least = sum(float(np.asarray(each.energy)[0]) for each in alone)
    found = float(np.asarray(apart.energy)[0])
    assert found >= least * (1 - relative), (
        f"the energy noise {found:.6g} eV² of {len(atoms)} distant atoms is below the sum of what the single atoms "
        f"have, {least:.6g}"
    )
    for index, each in enumerate(alone):
        single, beside = (np.asarray(forces, float) for forces in (each.forces[0], apart.forces[index]))
        assert np.all(beside >= single * (1 - relative)), (
            f"the force noise {beside} eV²/Å² of atom {index} beside distant atoms is below what it has alone, {single}"
        )


def check_coherence(predict: Predict, structure: Structure, relative: float) -> None:
    """Cov(E, F) = −½ ∂Var(E), by central differences."""
    covariance = predict([structure]).covariance(0)[0, 1:].reshape(-1, 3)
    expected = np.zeros_like(covariance)
    for atom in range(len(structure)):
        for axis in range(3):
            ends = [moved(structure, atom, axis, step) for step in (STEP_ANGSTROM, -STEP_ANGSTROM)]
            up, down = (_variances(predict, end)[0] for end in ends)
            expected[atom, axis] = -0.5 * (up - down) / (2 * STEP_ANGSTROM)
    scale = np.abs(expected).max()
    worst = np.abs(covariance - expected).max()
    assert worst <= relative * max(scale, 1e-12), (
        f"Cov(E, F) and −½ ∂Var(E)/∂r differ by {worst:.3g} eV²/Å, where the largest is {scale:.3g}: the force noise "
        "is not the derivative of the energy noise"
    )


def _variances(predict: Predict, structure: Structure) -> tuple[float, Float[np.ndarray, "N 3"]]:
    variance = predict([structure]).variance()
    return float(np.asarray(variance.energy)[0]), np.asarray(variance.forces, float)[: len(structure)]
