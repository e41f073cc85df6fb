"""Search for reaction paths by nudged elastic bands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms
from ase.build import minimize_rotation_and_translation
from ase.mep import NEB
from ase.mep.neb import idpp_interpolate
from ase.optimize import BFGS, FIRE
from pydantic import Field

from huefield.ase.calculator import Calculator
from huefield.ase.neb.bands import BestBand, RememberedBand
from huefield.ase.neb.ends import require_different, require_same_atoms, require_same_constraints
from huefield.ase.neb.path import ReactionPath
from huefield.ase.structures import naming_structure
from huefield.core.rigid import rigid_motions
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

KEEP_EVERY = 20
"""Steps between two times that the band is kept."""
ENDS_FACTOR, FIRST_BAND_FACTOR = 0.2, 10.0
"""Aims of the ends and of the band that does not climb yet, relative to the aim of the path."""
NEARLY_LINEAR = 0.03
"""Largest displacement by a rotation about the axis, relative to other rotations, at which a molecule counts as
linear."""


class PathConfig(FrozenConfig):
    """Settings of the search for a path. ``huefield neb`` has an option for each of them."""

    images: int = Field(11, ge=3, le=1000, description="Number of structures on the path, including both ends.")
    fmax_ev_per_angstrom: float = Field(
        0.05, gt=0, allow_inf_nan=False, description="Largest force perpendicular to the path at convergence."
    )
    steps: int = Field(1000, ge=1, le=10**9, description="Largest number of steps of the optimiser.")
    climb: bool = Field(True, description="Let the highest image climb to the saddle point.")
    relax_ends: bool = Field(True, description="Relax reactant and product first.")
    spring_ev_per_angstrom2: float = Field(
        0.1, gt=0, allow_inf_nan=False, description="Constant of the springs between images."
    )


@dataclass(frozen=True)
class PathReport:
    """Progress of a search."""

    what: str
    """The structure or band that is relaxed."""
    step: int
    fmax: float
    """Largest force [eV/Å]."""
    aim: float
    """Force at convergence [eV/Å]."""


class PathStoppedError(HuefieldError):
    """The search was stopped by ``should_stop``."""

    def __init__(self, what: str, step: int, *, kept: bool) -> None:
        """Say where.

        Args:
            what: the structure or band that was relaxed.
            step: step of this relaxation.
            kept: whether there was a band already, which was kept.
        """
        super().__init__(f"stopped in step {step} of the {what}")
        self.kept = kept


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
    """Find the minimum energy path between two structures.

    Args:
        calculator: energies and forces.
        reactant: one end. Its constraints hold in all images.
        product: the other end, with the same atoms in the same order.
        config: settings.
        through: initial images, including the ends, such as those of an earlier path or band. Ends among them are not
            relaxed again, and the number of images stays. Without them, pair distances are interpolated.
        keep: called with the best band every few steps and when the search stops. The band can be given as ``through``
            to resume the search.
        report: called at every step.
        should_stop: called after every step; the search stops when it returns True.
    """
    require_same_atoms(reactant, product)
    for name, end in (("reactant", reactant), ("product", product)):
        with naming_structure(name):
            calculator.require_sense(end)
        calculator.tell_of_limits(end)
    settings = config or PathConfig()
    images = _first_images(calculator, reactant, product, through, settings)
    search = _Search(settings, images, keep, report, should_stop)
    if not through:
        search.prepare_ends()
    converged, fmax = search.relax_band(interpolate=not through)
    covariance = calculator.energy_covariance(images)
    return ReactionPath(tuple(images), covariance, converged, fmax, calculator.noise_grows)


@dataclass(frozen=True, eq=False)
class _Search:
    config: PathConfig
    images: list[Atoms]
    keep: Callable[[Sequence[Atoms]], object]
    report: Callable[[PathReport], None]
    should_stop: Callable[[], bool]

    @property
    def _free(self) -> bool:
        """Whether images may be translated and rotated as a whole."""
        return not self.images[0].pbc.any() and not self.images[0].constraints

    def prepare_ends(self) -> None:
        first, last = self.images[0], self.images[-1]
        require_same_constraints(first, last)
        require_different(first, last, "are")
        if self.config.relax_ends:
            for what, image in (("reactant", first), ("product", last)):
                self._relax_end(what, image)
            require_different(first, last, "relax to")
        if self._free:
            minimize_rotation_and_translation(first, last)

    def relax_band(self, *, interpolate: bool) -> tuple[bool, float]:
        """Relax the band; returns whether it converged, and the largest force."""
        linear = any(_is_linear(image) for image in (self.images[0], self.images[-1]))
        band = NEB(
            self.images,
            k=self.config.spring_ev_per_angstrom2,
            method="improvedtangent",
            remove_rotation_and_translation=self._free and not linear,
        )
        if interpolate:
            periodic = bool(self.images[0].pbc.any())
            band.interpolate(mic=periodic)
            idpp_interpolate(band, traj=None, log=None, fmax=0.1, steps=200, mic=periodic)
        aim = self.config.fmax_ev_per_angstrom
        if not self.config.climb:
            return self._follow(_fire(band), "band", aim, self.images)
        self._follow(_fire(band), "band", FIRST_BAND_FACTOR * aim, self.images)
        heights = [image.get_potential_energy() for image in self.images]
        band.climb = max(heights[1:-1]) > max(heights[0], heights[-1])
        what = "climbing band" if band.climb else "band without a barrier"
        return self._follow(_fire(band), what, aim, self.images)

    def _relax_end(self, what: str, image: Atoms) -> None:
        converged, _ = self._follow(BFGS(image, logfile=None), what, ENDS_FACTOR * self.config.fmax_ev_per_angstrom)
        if not converged:
            raise HuefieldError(
                f"the {what} did not relax in {self.config.steps} steps: increase --steps, or give a better start"
            )

    def _follow(self, optimiser: Any, what: str, aim: float, band: Sequence[Atoms] = ()) -> tuple[bool, float]:
        """Run an optimiser; returns whether it converged, and the largest force. The best band is restored."""
        done, fmax = False, np.inf
        best = BestBand(band)
        for done in optimiser.irun(aim, self.config.steps):  # noqa: B007 - the last one counts
            force = optimiser.optimizable.get_gradient().reshape(-1, 3)
            fmax = float(np.linalg.norm(force, axis=1).max())
            best.look(fmax)
            self.report(PathReport(what, optimiser.nsteps, fmax, aim))
            stop = self.should_stop()
            if band and (stop or optimiser.nsteps % KEEP_EVERY == 0):
                self.keep(best.images())
            if stop:
                raise PathStoppedError(what, optimiser.nsteps, kept=bool(band))
        return bool(done), best.restore() if band else fmax


def _fire(band: NEB) -> Any:
    return FIRE(RememberedBand(band), logfile=None, maxstep=0.1)


def _is_linear(atoms: Atoms) -> bool:
    """Whether a molecule is linear or nearly so: its rotation about the axis is then undefined."""
    return rigid_motions(atoms.positions, np.ones(len(atoms)), with_rotations=True, same=NEARLY_LINEAR).shape[1] < 6


def _first_images(
    calculator: Calculator, reactant: Atoms, product: Atoms, through: Sequence[Atoms], settings: PathConfig
) -> list[Atoms]:
    images = [each.copy() for each in through]
    for number, image in enumerate(images):
        with naming_structure(f"image {number} of the initial path"):
            require_same_atoms(reactant, image, "it")
            calculator.require_sense(image)
    if len(images) in (1, 2):
        raise HuefieldError(f"a path needs at least three images, but the initial path has {len(images)}")
    if not images:
        images = [reactant.copy() for _ in range(settings.images - 1)] + [product.copy()]
    for image in images:
        image.info.clear()
        image.set_constraint(reactant.copy().constraints)
        for name in [name for name in image.arrays if name.startswith("forces")]:  # predictions for an earlier path
            del image.arrays[name]
        image.calc = calculator.sibling()
    return images
