"""Reaction paths by nudged elastic bands, with error bars on barriers and reaction energies.

At a converged path the energy does not change to first order when an image moves, so that the errors of energies at
the images are those of the barrier; the covariance of :mod:`huefield.model.differences` lets what images share cancel.
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
from ase.mep.neb import idpp_interpolate, interpolate
from ase.optimize import BFGS, FIRE
from jaxtyping import Float
from pydantic import Field

from huefield.ase.calculator import Calculator, structure_of
from huefield.ase.neb.bands import BestBand, RememberedBand
from huefield.ase.structures import naming_structure
from huefield.core.rigid import rigid_motions
from huefield.core.superposition import superpose
from huefield.model.differences import EnergyCovariance, EnergyDifference
from huefield.model.typical import force_deviations
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError
from huefield.support.files import replacing, write_bytes
from huefield.support.plain import plain

PATH_FILE, BAND_FILE, RESULT_FILE, FIGURE = "path.xyz", "band.xyz", "path.json", "profile"
KEEP_EVERY = 20
"""Steps of a band between two times that it is kept."""
SAME_ANGSTROM = 0.05
"""Two structures that are no farther apart, as a whole, are the same."""
NEARLY_LINEAR = 0.03
"""How much less atoms of a row move than others when it is turned about itself."""
WRITTEN = ("energy", "energy_uncertainty", "energy_uncertainty_aleatoric", "energy_uncertainty_epistemic")
WRITTEN_OF_ATOMS = ("forces", "forces_uncertainty", "forces_uncertainty_aleatoric", "forces_uncertainty_epistemic")


class PathConfig(FrozenConfig):
    """Settings of the search for a path. ``huefield neb`` has an option for each of them."""

    images: int = Field(11, ge=3, description="Number of structures on the path, including both ends.")
    fmax_ev_per_angstrom: float = Field(
        0.05, gt=0, allow_inf_nan=False, description="Largest force perpendicular to the path at convergence."
    )
    steps: int = Field(1000, ge=1, description="Largest number of steps of the optimiser.")
    climb: bool = Field(True, description="Let the highest image climb to the saddle point.")
    relax_ends: bool = Field(True, description="Relax reactant and product first.")
    spring_ev_per_angstrom2: float = Field(
        0.1, gt=0, allow_inf_nan=False, description="Constant of the springs between images."
    )


@dataclass(frozen=True)
class PathReport:
    """How far it is."""

    what: str
    step: int
    fmax: float
    aim: float


class PathStoppedError(HuefieldError):
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
    """Largest force on an atom across the path, and of the climbing image along it; [eV/Å]."""

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
        drawn from their joint distribution, as wide as intervals of single differences are for this share.
        """
        relative, covariance = self.energies.energy - self.energies.energy[0], self.energies.of_differences(share)
        drawn = np.random.default_rng(seed).multivariate_normal(relative, covariance, draws, method="eigh")
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
        reactant: one end. What it holds fast is so in all images.
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
    for name, end in (("reactant", reactant), ("product", product)):
        with naming_structure(name):
            calculator.require_sense(end)
        calculator.tell_of_ignored(end)
    images = _first_images(calculator, reactant, product, through, settings)

    def follow(optimiser: Any, what: str, aim: float, band: Sequence[Atoms] = ()) -> tuple[bool, float]:
        """Whether it converged, and the largest force; of a band that did not, the best one is left."""
        done, fmax = False, np.inf
        best = BestBand(band)
        for done in optimiser.irun(aim, settings.steps):  # noqa: B007 - the last one counts
            force = optimiser.optimizable.get_gradient().reshape(-1, 3)
            fmax = float(np.linalg.norm(force, axis=1).max())
            best.look(fmax)
            report(PathReport(what, optimiser.nsteps, fmax, aim))
            stop = should_stop()
            if band and (stop or optimiser.nsteps % KEEP_EVERY == 0):
                keep(best.images())
            if stop:
                raise PathStoppedError(what, optimiser.nsteps, kept=bool(band))
        return bool(done), best.restore() if band else fmax

    aim = settings.fmax_ev_per_angstrom
    if not through:
        _require_held(images[0], images[-1])
        _require_two(images[0], images[-1], "are")
    if settings.relax_ends and not through:
        for what, image in (("reactant", images[0]), ("product", images[-1])):
            if not follow(BFGS(image, logfile=None), what, 0.2 * aim)[0]:
                raise HuefieldError(
                    f"the {what} did not relax in {settings.steps} steps: give it more, or a better start"
                )
        _require_two(images[0], images[-1], "relax to")
    periodic = bool(reactant.pbc.any())
    free = not periodic and not reactant.constraints
    if free and not through:
        minimize_rotation_and_translation(images[0], images[-1])
    band = NEB(
        images,
        k=settings.spring_ev_per_angstrom2,
        method="improvedtangent",
        remove_rotation_and_translation=free and not any(_is_linear(image) for image in (images[0], images[-1])),
    )
    if not through:
        band.interpolate(mic=periodic)
        idpp_interpolate(band, traj=None, log=None, fmax=0.1, steps=200, mic=periodic)
    first_aim = 10 * aim if settings.climb else aim
    followed = follow(FIRE(RememberedBand(band), logfile=None, maxstep=0.1), "band", first_aim, images)
    if settings.climb:
        heights = [image.get_potential_energy() for image in images]
        band.climb = max(heights[1:-1]) > max(heights[0], heights[-1])  # where there is something to climb
        what = "climbing band" if band.climb else "band without a barrier"
        followed = follow(FIRE(RememberedBand(band), logfile=None, maxstep=0.1), what, aim, images)
    return ReactionPath(tuple(images), calculator.energy_covariance(images), *followed)


def require_same_atoms(reactant: Atoms, product: Atoms, name: str = "product") -> None:
    """Raise unless both ends have the same atoms in the same order, in the same cell.

    Args:
        reactant: one end.
        product: the other end, or an image.
        name: what messages call the latter.
    """
    if len(reactant) != len(product) or (reactant.numbers != product.numbers).any():
        raise HuefieldError(
            f"reactant ({reactant.get_chemical_formula()}) and {name} ({product.get_chemical_formula()}) must have "
            "the same atoms in the same order: a path moves each atom of one to where it is in the other"
        )
    if (reactant.pbc != product.pbc).any() or (reactant.pbc.any() and not np.allclose(reactant.cell, product.cell)):
        raise HuefieldError(f"reactant and {name} must be in the same cell, periodic in the same directions")


def _is_linear(atoms: Atoms) -> bool:
    """Whether all atoms are in a row, or nearly so: how it is turned about itself is then anyone's guess."""
    return rigid_motions(atoms.positions, np.ones(len(atoms)), with_rotations=True, same=NEARLY_LINEAR).shape[1] < 6


def _require_two(reactant: Atoms, product: Atoms, verb: str) -> None:
    """Raise where both ends are one structure. Like atoms are not exchanged: a path may well exchange them."""
    first, last = superpose([structure_of(reactant), structure_of(product)], match=False).positions
    apart = float(np.linalg.norm(first - last))
    if apart < SAME_ANGSTROM:
        raise HuefieldError(
            f"reactant and product {verb} the same structure ({apart:.2g} Å apart as a whole): there is no path "
            "between them. Give another product, or other starts to relax"
        )


def _require_held(reactant: Atoms, product: Atoms) -> None:
    """Raise where what is held fast is not the same in both ends."""
    try:
        interpolate([reactant.copy(), reactant.copy(), product.copy()], mic=bool(reactant.pbc.any()))
    except RuntimeError as error:
        raise HuefieldError(
            "what is held fast must be the same in reactant and product: put these atoms of both in the same place, or "
            "remove the constraints"
        ) from error


def require_no_path(folder: Path) -> None:
    """Raise where a folder has a band or a path that would be lost."""
    there = [name for name in (BAND_FILE, PATH_FILE, RESULT_FILE) if (folder / name).exists()]
    if there:
        images = next((name for name in there if name != RESULT_FILE), None)
        going_on = "" if images is None else f"go on with it by --start-from {folder / images}, "
        raise HuefieldError(
            f"{folder} has {', '.join(there)} of an earlier path: {going_on}choose another --out, or replace it with "
            "--overwrite"
        )


def save_band(images: Sequence[Atoms], folder: Path) -> Path:
    """Write a band that is not finished, to go on from; the file."""
    with replacing(folder / BAND_FILE) as temporary:
        write(temporary, [image.copy() for image in images], format="extxyz")  # without what was predicted
    return folder / BAND_FILE


def save_path(found: ReactionPath, folder: Path) -> tuple[Path, ...]:
    """Write the images with their uncertainties, all numbers, and the figure of the profile; the files.

    A band that was kept on the way is removed.
    """
    from huefield.ase.neb.profile import save_profile

    with replacing(folder / PATH_FILE) as temporary:
        write(temporary, [_with_results(image) for image in found.images], format="extxyz")
    (folder / BAND_FILE).unlink(missing_ok=True)
    write_bytes(folder / RESULT_FILE, (json.dumps(found.as_dict(), indent=1) + "\n").encode())
    return folder / PATH_FILE, folder / RESULT_FILE, *save_profile(found, folder / FIGURE)


def _first_images(
    calculator: Calculator, reactant: Atoms, product: Atoms, through: Sequence[Atoms], settings: PathConfig
) -> list[Atoms]:
    images = [each.copy() for each in through]
    for number, image in enumerate(images):
        with naming_structure(f"image {number} of the path to begin with"):
            require_same_atoms(reactant, image, "it")
            calculator.require_sense(image)
    if len(images) in (1, 2):
        raise HuefieldError(f"a path has three images at least, but that to begin with has {len(images)}")
    if not images:
        images = [reactant.copy() for _ in range(settings.images - 1)] + [product.copy()]
    for image in images:
        image.info.clear()
        image.set_constraint(reactant.copy().constraints)
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
