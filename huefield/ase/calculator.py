"""An ASE calculator with uncertainties."""

import warnings
from collections.abc import Sequence
from copy import copy
from typing import Any, Literal

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import PropertyNotImplementedError, all_changes
from jaxtyping import Float

from huefield.ase.joint import JointDistribution
from huefield.ase.results import UNCERTAIN, mean_results, uncertain_results
from huefield.ase.thresholds import LARGEST_OF_VALIDATION, UncertaintyWarning, WarningLimits
from huefield.baselines import BaselineLike, ColumnsBaseline
from huefield.core.structure import Precision, Structure
from huefield.data.readers.electrons import ignored_by_models, ignored_text
from huefield.model.differences import EnergyCovariance, EnergyDifference
from huefield.model.ensemble import Ensemble
from huefield.model.modelfile import ModelSource, open_model
from huefield.model.size import size_remark
from huefield.predict.evaluator import SKIN_ANGSTROM, Evaluator
from huefield.predict.marginals import QUANTITIES, EnergyForcesMarginals
from huefield.support.errors import HuefieldError

NOTHING = np.zeros(0)
FARTHEST_STEP_ANGSTROM = 0.5
"""A structure in which an atom has moved farther does not continue the one before it."""


class Calculator(AseCalculator):
    """Energies, forces and stresses of an ensemble, with calibrated uncertainties.

    Results beyond ASE's ``energy``, ``forces`` and ``stress``, available through
    ``calc.get_property("energy_uncertainty", atoms)`` or from ``calc.results``:

    - ``energy_uncertainty``, ``forces_uncertainty``, ``stress_uncertainty``: standard deviations in the same units;
    - the same names with ``_aleatoric`` (noise) or ``_epistemic`` (disagreement of the members) appended: their parts;
    - ``energy_ensemble``, ``forces_ensemble``, ``stress_ensemble``: predictions of the members, with a leading axis.
    """

    implemented_properties = [*QUANTITIES, "free_energy", *UNCERTAIN]  # noqa: RUF012 - a list in ASE
    default_parameters: dict[str, Any] = {}  # noqa: RUF012 - a dictionary in ASE

    def __init__(
        self,
        model: ModelSource,
        *,
        baseline: BaselineLike | None = None,
        uncertainty: Literal["always", "on_request"] | int = "on_request",
        warn_above: str | float | None = LARGEST_OF_VALIDATION,
        precision: Precision = "float32",
        skin_angstrom: float = SKIN_ANGSTROM,
        dataset: str | None = None,
    ) -> None:
        """Prepare a model for ASE.

        Args:
            model: an ensemble, a model file, or a result of ``huefield.train`` or ``huefield.calibrate``.
            baseline: for a model that corrects a calculator: that ASE calculator. Built-in ones, such as GFN2-xTB,
                need not be given.
            uncertainty: when to compute uncertainties: ``always``; ``on_request``, when a property needs them; or for
                every k-th structure, beginning with the first.
            warn_above: threshold of the uncertainty for a warning, whenever uncertainties are computed: a share of the
                model's validation data, such as ``"99%"``, for energies and forces; a number in eV/Å for forces only;
                None for no warnings. A model that does not know its validation data gives no warnings by default.
            precision: precision of the computation; finite differences need ``float64``.
            skin_angstrom: distance beyond the cutoff within which neighbours are searched, so as to search less often.
            dataset: tag of the data set whose energies to predict, of a model of several data sets; None for its main
                one.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        if isinstance(uncertainty, bool) or (uncertainty not in ("always", "on_request") and not _counts(uncertainty)):
            raise HuefieldError(f"uncertainty is 'always', 'on_request' or a number of steps, not {uncertainty!r}")
        ensemble = open_model(model, dtype=precision, dataset=dataset)
        self.evaluator = Evaluator(ensemble, baseline=baseline, skin_angstrom=skin_angstrom)
        if isinstance(self.evaluator.baseline, ColumnsBaseline):
            raise HuefieldError(
                f"the model corrects {self.evaluator.baseline.title}, which huefield cannot compute by itself. Give "
                "the calculator: Calculator(model, baseline=...), or on the command line --baseline "
                "GFN2-xTB, if that is it, or --baseline-command"
            )
        self.uncertainty = uncertainty
        self._limits = WarningLimits.of(self.evaluator.ensemble, warn_above)
        self._structures = 0
        self._with_stress = False
        self._warned = False
        self._last: Structure | None = None
        self._told_of_ignored = self._told_of_size = False

    @property
    def ensemble(self) -> Ensemble:
        """The model, in the precision of the calculator."""
        return self.evaluator.ensemble

    @property
    def noise_grows(self) -> bool:
        """Whether noise grows with the distance to the training data."""
        return self.ensemble.noise_grows

    def __repr__(self) -> str:
        """Architecture, members, elements and calibration of the model."""
        model, count, datasets = self.ensemble.members, self.ensemble.num_members, self.ensemble.datasets
        energies = "" if datasets is None else f"energies of data set {datasets.chosen}, "
        return (
            f"Calculator({type(model.potential).__name__} with {type(model.noise).__name__}, "
            f"{count} member{'s' if count > 1 else ''}, elements {', '.join(model.potential.atomic_config.elements)}, "
            f"{'' if self.ensemble.baseline is None else f'corrects {self.ensemble.baseline.title}, '}"
            f"{energies}{'not ' if self.ensemble.calibration is None else ''}calibrated, {self.evaluator.precision})"
        )

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Compute the requested properties and those that come with them. ASE calls this."""
        super().calculate(atoms, properties, system_changes)  # type: ignore[no-untyped-call]
        assert self.atoms is not None  # noqa: S101 - ASE has set them
        if system_changes:
            self.results = {}
        structure = structure_of(self.atoms)
        self._warned = self._warned and _continues(self._last, structure)
        self._last = structure
        self.tell_of_limits(self.atoms)
        structure = self.evaluator.with_result(structure)
        has_stress = self.evaluator.has_stress(structure)
        if any(name.startswith("stress") for name in properties):
            if not has_stress:
                raise PropertyNotImplementedError(
                    "there is no stress without a periodic cell that has a volume"
                    + ("" if self.evaluator.baseline is None else ", and without a stress of the baseline")
                )
            self._with_stress = True  # NPT and cell relaxation ask at each step: compute it with the forces from now on
        self._structures += bool(system_changes)
        stress = self._with_stress and has_stress
        if self._wants_uncertainty(properties):
            found = self.evaluator.marginals(structure, stress=stress)
            self.results.update(uncertain_results(found))
            self._warn(found, structure)
        else:
            self.results.update(mean_results(self.evaluator.mean(structure, stress=stress)))

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Names of changes since the last calculation. ASE asks three times per step, and its own version is slower."""
        known = self.atoms
        if known is None or len(known) != len(atoms):
            return list(all_changes)
        pairs = {
            "positions": (known.positions, atoms.positions),
            "numbers": (known.numbers, atoms.numbers),
            "cell": (known.cell.array, atoms.cell.array),
            "pbc": (known.pbc, atoms.pbc),
        }
        for name in ("initial_charges", "initial_magmoms"):
            pairs[name] = (known.arrays.get(name, NOTHING), atoms.arrays.get(name, NOTHING))
        return [name for name, (old, new) in pairs.items() if not _same(old, new, tol)]

    def distribution(self, atoms: Atoms | None = None) -> JointDistribution:
        """Joint distribution of energy and forces, for samples and linear observables."""
        given = self.atoms if atoms is None else atoms
        if given is None:
            raise HuefieldError("the calculator has no atoms yet: call distribution(atoms)")
        self.tell_of_limits(given)
        structure = structure_of(given)
        prediction = self.evaluator.prediction(structure)
        found = JointDistribution(
            prediction.distribution, structure, float(prediction.energy_offset[0]), self.ensemble.tails.joint
        )
        self._warn_of_energies(
            np.sqrt(found.linear(np.zeros((1, len(structure), 3)), [1.0]).covariance[0]), [structure]
        )
        return found

    def energy_covariance(self, images: Sequence[Atoms], *, match: bool = True) -> EnergyCovariance:
        """Energies of structures of the same atoms, with the covariance of their errors.

        Args:
            images: structures such as conformers, reactant and product, or a path.
            match: whether atoms of the same element may be exchanged to superpose the structures.
        """
        for image in images:
            self.tell_of_limits(image)
        structures = [structure_of(image) for image in images]
        found = self.evaluator.energy_covariance(structures, match=match)
        self._warn_of_energies(found.uncertainty, structures)
        return found

    def energy_difference(self, a: Atoms, b: Atoms, *, match: bool = True) -> EnergyDifference:
        """E(b) − E(a); errors that both structures share cancel."""
        return self.energy_covariance([a, b], match=match).difference(0, 1)

    def sibling(self) -> "Calculator":
        """Another calculator with the same compiled programs, for another structure."""
        made = copy(self)
        made.evaluator = self.evaluator.sibling()
        made.atoms, made.results, made._structures, made._warned, made._last = None, {}, 0, False, None
        return made

    def require_sense(self, atoms: Atoms) -> None:
        """Raise unless the model can predict the atoms: it knows the elements, and no two atoms coincide."""
        self.evaluator.require_sense(structure_of(atoms))

    def tell_of_limits(self, atoms: Atoms) -> None:
        """Warn once of a charge or of unpaired electrons, which models ignore, and of error bars that do not hold."""
        ignored = [] if self._told_of_ignored else list(ignored_by_models(atoms))
        if ignored:
            self._told_of_ignored = True
            warnings.warn(ignored_text(ignored), stacklevel=2)
        remark = "" if self._told_of_size else size_remark(self.ensemble, len(atoms))
        if remark:
            self._told_of_size = True
            warnings.warn(remark, UncertaintyWarning, stacklevel=2)

    def _wants_uncertainty(self, properties: Sequence[str]) -> bool:
        if self.uncertainty == "always" or any(name in UNCERTAIN for name in properties):
            return True
        return isinstance(self.uncertainty, int) and (self._structures - 1) % self.uncertainty == 0

    def _warn_of_energies(self, deviations: Float[np.ndarray, " n"], structures: Sequence[Structure]) -> None:
        """Warn of the most uncertain energy of some structures, once for the same structures."""
        complaint = self._limits.exceeded_by_energy(float(deviations.max()), len(structures[0]))
        known = self._warned and _continues(self._last, structures[-1])
        if complaint and not known:
            which = f"structure {int(deviations.argmax())} of {len(structures)}: " if len(structures) > 1 else ""
            warnings.warn(which + complaint, UncertaintyWarning, stacklevel=3)
        self._warned, self._last = bool(complaint), structures[-1]

    def _warn(self, found: EnergyForcesMarginals, structure: Structure) -> None:
        """Warn once when a trajectory becomes uncertain, and again for a structure that does not continue it."""
        complaint = self._limits.exceeded(found, structure)
        if complaint and not self._warned:
            warnings.warn(complaint, UncertaintyWarning, stacklevel=2)
        self._warned = bool(complaint)


def structure_of(atoms: Atoms) -> Structure:
    """Convert atoms to a structure without labels."""
    return Structure(
        atoms.numbers.astype(np.uint8), np.array(atoms.positions, float), np.array(atoms.cell, float), atoms.pbc.copy()
    )


def _same(old: np.ndarray, new: np.ndarray, tol: float) -> bool:
    """Whether arrays are equal, floating-point numbers within a tolerance."""
    if old.shape != new.shape:
        return False
    return bool((old == new).all() or (old.dtype.kind == "f" and (np.abs(old - new) <= tol).all()))


def _continues(before: Structure | None, after: Structure) -> bool:
    """Whether a structure may be the next step of a trajectory."""
    if before is None or len(before) != len(after) or (before.pbc != after.pbc).any():
        return False
    if (before.atomic_numbers != after.atomic_numbers).any():
        return False
    moved = after.positions - before.positions
    if after.pbc.any():
        moved -= (np.round(moved @ np.linalg.pinv(after.cell)) * after.pbc) @ after.cell
    return bool((np.linalg.norm(moved, axis=1) <= FARTHEST_STEP_ANGSTROM).all())


def _counts(given: object) -> bool:
    return isinstance(given, int) and given > 0
