"""Reaction paths by nudged elastic bands, with error bars on barriers and reaction energies.

At a converged path the energy does not change to first order when an image moves, so that the errors of energies at
the images are those of the barrier; the covariance of :mod:`huefield.differences` lets what images share cancel.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.build import minimize_rotation_and_translation
from ase.io import write
from ase.mep import NEB
from ase.mep.neb import idpp_interpolate
from ase.optimize import BFGS, FIRE
from jaxtyping import Float
from pydantic import Field

from huefield.apps.calculator import Calculator
from huefield.core.config import FrozenConfig
from huefield.core.files import replacing, write_bytes
from huefield.core.plain import plain
from huefield.differences import EnergyCovariance, EnergyDifference
from huefield.evaluation.typical import force_deviations

PATH_FILE, BAND_FILE, RESULT_FILE, FIGURE = "path.xyz", "band.xyz", "path.json", "profile"
KEEP_EVERY = 20
"""Steps of a band between two times that it is kept."""
WRITTEN = ("energy", "energy_uncertainty", "energy_uncertainty_aleatoric", "energy_uncertainty_epistemic")
WRITTEN_OF_ATOMS = ("forces", "forces_uncertainty", "forces_uncertainty_aleatoric", "forces_uncertainty_epistemic")


class PathConfig(FrozenConfig):
    """How a path is found."""

    images: int = Field(11, ge=3, description="structures on the path, both ends included")
    fmax_ev_per_angstrom: float = Field(
        0.05, gt=0, allow_inf_nan=False, description="largest force across the path at the end"
    )
    steps: int = Field(1000, ge=1, description="of the optimiser, at most")
    climb: bool = Field(True, description="whether the highest image climbs to the saddle point")
    relax_ends: bool = Field(True, description="whether reactant and product are relaxed first")
    spring_ev_per_angstrom2: float = Field(1.0, gt=0, allow_inf_nan=False, description="of the band")


@dataclass(frozen=True)
class PathReport:
    """How far it is."""

    what: str
    step: int
    fmax: float
    aim: float


class PathStoppedError(RuntimeError):
    """Someone asked to stop."""

    def __init__(self, what: str, step: int, *, kept: bool) -> None:
        """Say where.

        Args:
            what: was being relaxed.
            step: of it.
            kept: whether there was a band already, which was kept.
        """
        super().__init__(f"stopped in step {step} of the {what}")
        self.kept = kept


@dataclass(frozen=True, eq=False)
class ReactionPath:
    """Images from reactant to product, and their energies with the covariance of errors."""

    images: tuple[Atoms, ...]
    """With a calculator that knows the uncertainties."""
    energies: EnergyCovariance
    converged: bool
    fmax: float
    """Largest force across the path, [eV/Å]."""

    @property
    def top(self) -> int:
        """The highest image."""
        return int(np.argmax(self.energies.energy))

    @property
    def barrier(self) -> EnergyDifference:
        """From the reactant to the top."""
        return self.energies.difference(0, self.top)

    @property
    def reverse_barrier(self) -> EnergyDifference:
        """From the product to the top."""
        return self.energies.difference(len(self.energies) - 1, self.top)

    @property
    def reaction_energy(self) -> EnergyDifference:
        """From the reactant to the product."""
        return self.energies.difference(0, len(self.energies) - 1)

    def barrier_range(self, share: float = 0.68, *, draws: int = 4000, seed: int = 0) -> tuple[float, float]:
        """An interval [eV] that holds the barrier with this probability, wherever on the path the highest image is.

        Where images other than the highest one are uncertain, one of them may be the true top: whole profiles are
        drawn from their joint distribution.
        """
        drawn = np.random.default_rng(seed).multivariate_normal(
            self.energies.energy - self.energies.energy[0], self.energies.of_differences, draws, method="eigh"
        )
        heights = drawn.max(1) - drawn[:, 0]
        low, high = np.quantile(heights, [0.5 - 0.5 * share, 0.5 + 0.5 * share]).tolist()
        return low, high

    @property
    def force_uncertainties(self) -> Float[np.ndarray, " n"]:
        """The largest one of an atom in each image, [eV/Å]."""
        found = (image.calc.get_property("forces_uncertainty", image) for image in self.images)
        return np.array([force_deviations(deviations**2).max() for deviations in found])

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
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
            "energy_ev": plain(energies.energy),
            "relative_energy_ev": plain(energies.energy - energies.energy[0]),
            "relative_uncertainty_ev": plain(energies.relative_to(0)),
            "energy_uncertainty_ev": plain(energies.uncertainty),
            "force_uncertainty_ev_per_angstrom": plain(self.force_uncertainties),
            "covariance_aleatoric_ev2": plain(energies.aleatoric),
            "covariance_epistemic_ev2": plain(energies.epistemic),
        }


def find_path(
    calculator: Calculator,
    reactant: Atoms,
    product: Atoms,
    config: PathConfig | None = None,
    *,
    through: Sequence[Atoms] = (),
    keep: Callable[[Sequence[Atoms]], object] = lambda band: None,
    report: Callable[[PathReport], None] = lambda report: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> ReactionPath:
    """The minimum energy path between two structures.

    Args:
        calculator: whose energies and forces are followed.
        reactant: one end.
        product: the other end; the same atoms in the same order.
        config: settings.
        through: images to begin with, ends included, as of an earlier path or band; they are not relaxed again, and
            there are as many as before. Without them, pair distances are interpolated.
        keep: is given the band now and then, and when it stops: from it, as ``through``, the work can go on.
        report: is told about every step.
        should_stop: is asked after every step.
    """
    settings = config or PathConfig()
    require_same_atoms(reactant, product)
    images = _first_images(calculator, reactant, product, through, settings)

    def follow(optimiser: Any, what: str, aim: float, band: Sequence[Atoms] = ()) -> bool:
        """Whether it converged."""
        done = False
        for done in optimiser.irun(aim, settings.steps):  # noqa: B007 - the last one counts
            force = optimiser.optimizable.get_gradient().reshape(-1, 3)
            report(PathReport(what, optimiser.nsteps, float(np.linalg.norm(force, axis=1).max()), aim))
            stop = should_stop()
            if band and (stop or optimiser.nsteps % KEEP_EVERY == 0):
                keep(band)
            if stop:
                raise PathStoppedError(what, optimiser.nsteps, kept=bool(band))
        return bool(done)

    aim = settings.fmax_ev_per_angstrom
    if settings.relax_ends and not through:
        for what, image in (("reactant", images[0]), ("product", images[-1])):
            if not follow(BFGS(image, logfile=None), what, 0.2 * aim):
                raise ValueError(f"the {what} did not relax in {settings.steps} steps: give it more, or a better start")
    molecule = not reactant.pbc.any()
    if molecule and not through:
        minimize_rotation_and_translation(images[0], images[-1])
    band = NEB(
        images,
        k=settings.spring_ev_per_angstrom2,
        method="improvedtangent",
        remove_rotation_and_translation=molecule,
    )
    if not through:
        band.interpolate(mic=not molecule)
        idpp_interpolate(band, traj=None, log=None, fmax=0.1, steps=200, mic=not molecule)
    first_aim = 10 * aim if settings.climb else aim
    converged = follow(FIRE(band, logfile=None, maxstep=0.1), "band", first_aim, images)
    if settings.climb:
        heights = [image.get_potential_energy() for image in images]
        band.climb = max(heights[1:-1]) > max(heights[0], heights[-1])  # where there is something to climb
        what = "climbing band" if band.climb else "band without a barrier"
        converged = follow(FIRE(band, logfile=None, maxstep=0.1), what, aim, images)
    energies = calculator.energy_covariance(images)
    return ReactionPath(tuple(images), energies, converged, float(band.get_residual()))


def require_same_atoms(reactant: Atoms, product: Atoms) -> None:
    """Raise unless both ends have the same atoms in the same order, in the same cell."""
    if len(reactant) != len(product) or (reactant.numbers != product.numbers).any():
        raise ValueError(
            f"reactant ({reactant.get_chemical_formula()}) and product ({product.get_chemical_formula()}) must have "
            "the same atoms in the same order: a path moves each atom of one to where it is in the other"
        )
    if (reactant.pbc != product.pbc).any() or (reactant.pbc.any() and not np.allclose(reactant.cell, product.cell)):
        raise ValueError("reactant and product must be in the same cell, periodic in the same directions")


def save_band(images: Sequence[Atoms], folder: Path) -> Path:
    """Write a band that is not finished, to go on from; the file."""
    with replacing(folder / BAND_FILE) as temporary:
        write(temporary, [image.copy() for image in images], format="extxyz")  # without what was predicted
    return folder / BAND_FILE


def save_path(found: ReactionPath, folder: Path) -> tuple[Path, ...]:
    """Write the images with their uncertainties, all numbers, and the figure of the profile; the files.

    A band that was kept on the way is removed.
    """
    from huefield.apps.profile import save_profile

    with replacing(folder / PATH_FILE) as temporary:
        write(temporary, [_with_results(image) for image in found.images], format="extxyz")
    (folder / BAND_FILE).unlink(missing_ok=True)
    write_bytes(folder / RESULT_FILE, (json.dumps(found.as_dict(), indent=1) + "\n").encode())
    return folder / PATH_FILE, folder / RESULT_FILE, *save_profile(found, folder / FIGURE)


def _first_images(
    calculator: Calculator, reactant: Atoms, product: Atoms, through: Sequence[Atoms], settings: PathConfig
) -> list[Atoms]:
    images = [each.copy() for each in through]
    for image in images:
        require_same_atoms(reactant, image)
    if len(images) in (1, 2):
        raise ValueError(f"a path has three images at least, but that to begin with has {len(images)}")
    if not images:
        images = [reactant.copy() for _ in range(settings.images - 1)] + [product.copy()]
    for image in images:
        image.info.clear()
        for name in WRITTEN_OF_ATOMS:
            image.arrays.pop(name, None)
        image.calc = calculator.sibling()
    return images


def _with_results(image: Atoms) -> Atoms:
    """What was predicted in places that extended xyz keeps."""
    image.calc.get_property("energy_uncertainty", image)
    results, written = image.calc.results, image.copy()
    written.info.update({name: results[name] for name in WRITTEN})
    for name in WRITTEN_OF_ATOMS:
        written.set_array(name, results[name])
    return written
