"""A reaction path and the uncertainties of its energies.

At a converged path the energy does not change to first order when an image moves. The errors of the energies at the
images are therefore the errors of the barrier. :mod:`huefield.model.differences` gives their covariance, in which
errors that images share cancel.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms
from jaxtyping import Float

from huefield.model.differences import EnergyCovariance, EnergyDifference
from huefield.model.typical import force_deviations
from huefield.support.plain import plain


@dataclass(frozen=True, eq=False)
class ReactionPath:
    """Images from reactant to product, and their energies with the covariance of errors."""

    images: tuple[Atoms, ...]
    """Structures with a calculator that has their uncertainties."""
    energies: EnergyCovariance
    converged: bool
    fmax: float
    """Largest force on an atom perpendicular to the path; for the climbing image, also along it [eV/Å]."""
    noise_grows: bool
    """Whether error bars grow with the distance to the training data."""

    @property
    def top(self) -> int:
        """Index of the highest image."""
        return int(np.argmax(self.energies.energy))

    @property
    def barrier(self) -> EnergyDifference:
        """Energy of the highest image relative to the reactant."""
        return self.energies.difference(0, self.top)

    @property
    def reverse_barrier(self) -> EnergyDifference:
        """Energy of the highest image relative to the product."""
        return self.energies.difference(len(self.energies) - 1, self.top)

    @property
    def reaction_energy(self) -> EnergyDifference:
        """Energy of the product relative to the reactant."""
        return self.energies.difference(0, len(self.energies) - 1)

    def barrier_range(self, share: float = 0.68, *, draws: int = 4000, seed: int = 0) -> tuple[float, float]:
        """Interval [eV] that contains the barrier with this probability, whichever image is the highest.

        If several images are uncertain, any of them may be the true top. Whole profiles are therefore drawn from the
        joint distribution, normal or Student t, scaled to the width of intervals for single differences at this share.
        """
        drawn = self.energies.profiles(draws, coverage=share, seed=seed)
        heights = drawn.max(1) - drawn[:, 0]
        low, high = np.quantile(heights, [0.5 - 0.5 * share, 0.5 + 0.5 * share]).tolist()
        return low, high

    @property
    def force_uncertainties(self) -> Float[np.ndarray, " n"]:
        """Largest force uncertainty of an atom in each image [eV/Å]."""
        found = (image.calc.get_property("forces_uncertainty", image) for image in self.images)
        return np.array([force_deviations(deviations**2).max() for deviations in found])

    def as_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        energies = self.energies
        return {
            "barrier_ev": self.barrier.as_dict(),
            "reverse_barrier_ev": self.reverse_barrier.as_dict(),
            "reaction_energy_ev": self.reaction_energy.as_dict(),
            "barrier_range_68_ev": self.barrier_range(0.68),
            "barrier_range_95_ev": self.barrier_range(0.95),
            "converged": self.converged,
            "fmax_ev_per_angstrom": self.fmax,
            "top": self.top,
            "noise_grows": self.noise_grows,
            "energy_ev": plain(energies.energy),
            "relative_energy_ev": plain(energies.energy - energies.energy[0]),
            "relative_uncertainty_ev": plain(energies.relative_to(0)),
            "energy_uncertainty_ev": plain(energies.uncertainty),
            "force_uncertainty_ev_per_angstrom": plain(self.force_uncertainties),
            "covariance_aleatoric_ev2": plain(energies.aleatoric),
            "covariance_epistemic_ev2": plain(energies.epistemic),
        }
