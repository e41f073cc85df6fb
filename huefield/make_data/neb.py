"""Configurations along reactions: all bands of a nudged elastic band optimisation with a climbing image.

As in Transition1x, the data include the bands before convergence, which lie away from the minimum energy path. Bands
start from interpolated pair distances (IDPP).
"""

from dataclasses import dataclass

import numpy as np
from ase.build import minimize_rotation_and_translation
from ase.mep import NEB
from ase.mep.neb import idpp_interpolate
from ase.optimize import FIRE
from jaxtyping import Float, UInt8

from huefield.make_data.geometry import bonds
from huefield.make_data.oracles import AbstractOracle
from huefield.make_data.reactions import Reaction
from huefield.make_data.relax import SamplingError, atoms_of, relaxed


@dataclass(frozen=True)
class BandSettings:
    """Settings of a nudged elastic band and criteria for accepting it."""

    images: int = 11
    spring: float = 1.0
    fmax_before_climbing: float = 0.5
    fmax: float = 0.1
    steps_before_climbing: int = 150
    steps: int = 400
    fmax_accepted: float = 0.4
    wiggle_ev: float = 0.06
    """Smallest prominence of a maximum that counts."""
    lowest_barrier_ev: float = 0.03
    highest_barrier_ev: float = 8.0


BANDS = BandSettings()


@dataclass(frozen=True, eq=False)
class BandHistory:
    """All bands of a reaction from first to last, and the energies of the last one."""

    bands: Float[np.ndarray, "b images N 3"]
    energies: Float[np.ndarray, " images"]
    fmax: float

    @property
    def barrier(self) -> float:
        """Barrier in eV: highest image of the last band above the reactant."""
        return float(self.energies.max() - self.energies[0])


def reaction_path(reaction: Reaction, oracle: AbstractOracle, settings: BandSettings = BANDS) -> BandHistory:
    """Relax the end points, optimise a band between them, and keep every band on the way."""
    reactant = _relaxed_end("reactant", reaction.numbers, reaction.reactant, oracle)
    product = _relaxed_end("product", reaction.numbers, reaction.product, oracle)
    images = [atoms_of(reaction.numbers, reactant, oracle) for _ in range(settings.images - 1)]
    images.append(atoms_of(reaction.numbers, product, oracle))
    minimize_rotation_and_translation(images[0], images[-1])
    neb = NEB(images, k=settings.spring, climb=False, method="improvedtangent", remove_rotation_and_translation=True)
    neb.interpolate()
    idpp_interpolate(neb, traj=None, log=None, fmax=0.1, steps=200)
    bands = []
    for climb, fmax, steps in (
        (False, settings.fmax_before_climbing, settings.steps_before_climbing),
        (True, settings.fmax, settings.steps),
    ):
        neb.climb = climb
        optimiser = FIRE(neb, logfile=None, maxstep=0.1)
        for _ in optimiser.irun(fmax, steps):
            bands.append(np.array([image.positions for image in images]))
    energies = np.array([image.get_potential_energy() for image in images])
    path = BandHistory(np.array(bands), energies, float(neb.get_residual()))
    require_physical(path, settings)
    return path


def _relaxed_end(
    what: str, numbers: UInt8[np.ndarray, " N"], positions: Float[np.ndarray, "N 3"], oracle: AbstractOracle
) -> Float[np.ndarray, "N 3"]:
    """Relax an end point; raises if its bonds change."""
    minimum = relaxed(numbers, positions, oracle)
    if not np.array_equal(bonds(numbers, minimum), bonds(numbers, positions)):
        raise SamplingError(f"the {what} relaxed to another molecule: its bonds changed")
    return minimum


def require_physical(path: BandHistory, settings: BandSettings) -> None:
    """Raise unless the last band has one barrier of reasonable height and is nearly converged."""
    if not settings.lowest_barrier_ev <= path.barrier <= settings.highest_barrier_ev:
        raise SamplingError(
            f"the barrier is {path.barrier:.2f} eV, not between {settings.lowest_barrier_ev} and "
            f"{settings.highest_barrier_ev} eV"
        )
    tops = num_maxima(path.energies, settings.wiggle_ev)
    if tops != 1:
        shown = np.round(path.energies - path.energies[0], 2).tolist()
        raise SamplingError(f"the path has {tops} maxima, not one: {shown} eV")
    if path.fmax > settings.fmax_accepted:
        raise SamplingError(f"the band did not converge: its largest force is {path.fmax:.2f} eV/Å")


def num_maxima(energies: Float[np.ndarray, " images"], prominence: float) -> int:
    """Number of inner maxima that rise at least ``prominence`` above the minima on both sides."""
    tops, rising, extreme = 0, False, energies[0]
    for energy in energies[1:]:
        if energy > extreme if rising else energy < extreme:
            extreme = energy
        elif abs(energy - extreme) >= prominence:
            tops, rising, extreme = tops + int(rising), not rising, energy
    return tops
