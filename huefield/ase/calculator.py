"""An ASE calculator whose results know how wrong they are."""

import warnings
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import PropertyNotImplementedError, all_changes
from ase.stress import full_3x3_to_voigt_6_stress

from huefield.ase.joint import JointDistribution
from huefield.ase.thresholds import Threshold, UncertaintyWarning
from huefield.core.structure import Structure, stress_volumes
from huefield.data.readers.electrons import ignored_by_models, ignored_text
from huefield.model.differences import EnergyCovariance, EnergyDifference
from huefield.model.ensemble import Ensemble
from huefield.model.modelfile import load
from huefield.model.typical import force_deviations
from huefield.predict.evaluator import SKIN_ANGSTROM, Evaluator, Precision, named_atoms
from huefield.predict.marginals import EnergyForcesMarginals, Marginals, Means
from huefield.support.errors import HuefieldError

QUANTITIES = ("energy", "forces", "stress")
KINDS = ("_uncertainty", "_uncertainty_aleatoric", "_uncertainty_epistemic", "_ensemble")
UNCERTAIN = tuple(quantity + kind for quantity in QUANTITIES for kind in KINDS)
"""Results that cost more than the means."""
MORE_THAN_ALL = "100%"
NOTHING = np.zeros(0)
FARTHEST_STEP_ANGSTROM = 0.5
"""Where an atom has moved farther, a structure does not continue the one before it."""


class Calculator(AseCalculator):
    """Energies, forces and stresses of an ensemble, with calibrated uncertainties.

    Beside ASE's ``energy``, ``forces`` and ``stress`` there are, all of them standard deviations in the same units,
    ``energy_uncertainty``, ``forces_uncertainty``, ``stress_uncertainty``, their parts with ``_aleatoric`` (noise) and
    ``_epistemic`` (members) behind the name, and what each member says: ``energy_ensemble``, ``forces_ensemble`` and
    ``stress_ensemble``, members first. Ask with ``calc.get_property("energy_uncertainty", atoms)``, or look into
    ``calc.results``.
    """

    implemented_properties = [*QUANTITIES, "free_energy", *UNCERTAIN]  # noqa: RUF012 - a list in ASE
    default_parameters: dict[str, Any] = {}  # noqa: RUF012 - a dictionary in ASE

    def __init__(
        self,
        model: Ensemble | str | Path,
        *,
        uncertainty: Literal["always", "on_request"] | int = "on_request",
        warn_above: str | float | None = MORE_THAN_ALL,
        precision: Precision = "float32",
        skin_angstrom: float = SKIN_ANGSTROM,
    ) -> None:
        """Prepare a model for ASE.

        Args:
            model: an ensemble, or its file.
            uncertainty: when to compute it: ``always``; ``on_request``, when a property is asked for that needs it; or
                with each k-th structure, beginning with the first.
            warn_above: warn where the force on an atom, or the energy, is more uncertain than this whenever
                uncertainties are computed: a share of the model's validation data, such as ``"99%"``, or a number in
                eV/Å for forces alone. None for never. A model without knowledge of such data does not warn of shares.
            precision: of the computation; ``float64`` is for finite differences.
            skin_angstrom: how much farther than the cutoff neighbours are searched, so as to do so less often.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        if isinstance(uncertainty, bool) or (uncertainty not in ("always", "on_request") and not _counts(uncertainty)):
            raise HuefieldError(f"uncertainty is 'always', 'on_request' or a number of steps, but is {uncertainty!r}")
        ensemble = model if isinstance(model, Ensemble) else load_in(model, precision)
        self.evaluator = Evaluator(ensemble, precision=precision, skin_angstrom=skin_angstrom)
        self.uncertainty = uncertainty
        self._limits = _limits(self.evaluator.ensemble, warn_above)
        self._structures = 0
        self._with_stress = False
        self._warned = False
        self._last: Structure | None = None
        self._told_of_ignored = False

    @property
    def ensemble(self) -> Ensemble:
        """The model, in the precision of the calculator."""
        return self.evaluator.ensemble

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Compute what is asked for and what comes with it. ASE calls this."""
        super().calculate(atoms, properties, system_changes)  # type: ignore[no-untyped-call]
        assert self.atoms is not None  # noqa: S101 - ASE has set them
        if system_changes:
            self.results = {}
        structure = structure_of(self.atoms)
        self._warned = self._warned and _continues(self._last, structure)
        self._last = structure
        self.tell_of_ignored(self.atoms)
        if any(name.startswith("stress") for name in properties):
            if not stress_volumes(structure.cell, structure.pbc):
                raise PropertyNotImplementedError("there is no stress without a periodic cell of some volume")
            # Who asks for it once (NPT, cell relaxation) does so at each step: from now on with the forces.
            self._with_stress = True
        self._structures += bool(system_changes)
        stress = self._with_stress and bool(stress_volumes(structure.cell, structure.pbc))
        if self._wants_uncertainty(properties):
            found = self.evaluator.marginals(structure, stress=stress)
            self.results.update(uncertain_results(found))
            self._warn(found, structure)
        else:
            self.results.update(mean_results(self.evaluator.mean(structure, stress=stress)))

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """What has changed since the last calculation: as ASE's, which is asked thrice a step, but faster."""
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
        """The joint distribution of energy and forces: samples of both, and whatever is linear in them."""
        given = self.atoms if atoms is None else atoms
        if given is None:
            raise HuefieldError("there are no atoms yet: give some")
        self.tell_of_ignored(given)
        structure = structure_of(given)
        prediction = self.evaluator.prediction(structure)
        return JointDistribution(prediction.distribution, structure, float(prediction.energy_offset[0]))

    def energy_covariance(self, images: Sequence[Atoms], *, match: bool = True) -> EnergyCovariance:
        """Energies of structures of the same atoms, with the covariance of their errors.

        Args:
            images: conformers, reactant and product, a path.
            match: whether like atoms may be exchanged to bring structures closer.
        """
        for image in images:
            self.tell_of_ignored(image)
        return self.evaluator.energy_covariance([structure_of(image) for image in images], match=match)

    def energy_difference(self, a: Atoms, b: Atoms, *, match: bool = True) -> EnergyDifference:
        """E(b) − E(a), in which errors cancel that both have in common."""
        return self.energy_covariance([a, b], match=match).difference(0, 1)

    def sibling(self) -> "Calculator":
        """Another calculator with the same compiled programs, for one more structure at the same time."""
        made = copy(self)
        made.evaluator = self.evaluator.sibling()
        made.atoms, made.results, made._structures, made._warned, made._last = None, {}, 0, False, None
        return made

    def require_sense(self, atoms: Atoms) -> None:
        """Raise unless the model can say something about the atoms: it knows the elements, and they are apart."""
        self.evaluator.require_sense(structure_of(atoms))

    def tell_of_ignored(self, atoms: Atoms) -> None:
        """Warn once of a charge or of unpaired electrons, which models ignore."""
        if self._told_of_ignored:
            return
        ignored = list(ignored_by_models(atoms))
        if ignored:
            self._told_of_ignored = True
            warnings.warn(ignored_text(ignored), stacklevel=2)

    def _wants_uncertainty(self, properties: Sequence[str]) -> bool:
        if self.uncertainty == "always" or any(name in UNCERTAIN for name in properties):
            return True
        return isinstance(self.uncertainty, int) and (self._structures - 1) % self.uncertainty == 0

    def _warn(self, found: EnergyForcesMarginals, structure: Structure) -> None:
        """Once for each time that a structure becomes uncertain, or another one is so from the beginning."""
        complaint = _complaint(found, structure, self._limits)
        if complaint and not self._warned:
            warnings.warn(complaint, UncertaintyWarning, stacklevel=2)
        self._warned = bool(complaint)


def structure_of(atoms: Atoms) -> Structure:
    """Atoms as huefield has them, without labels."""
    return Structure(
        atoms.numbers.astype(np.uint8), np.array(atoms.positions, float), np.array(atoms.cell, float), atoms.pbc.copy()
    )


def mean_results(means: Means) -> dict[str, Any]:
    """Means under the names and in the form of ASE."""
    energy = float(means.energy[0])
    results = {"energy": energy, "free_energy": energy, "forces": means.forces}
    return results if means.stress is None else {**results, "stress": full_3x3_to_voigt_6_stress(means.stress[0])}


def uncertain_results(found: EnergyForcesMarginals) -> dict[str, Any]:
    """Means, standard deviations and members, under the names that other codes use."""
    results = {**_results("energy", found.energy), **_results("forces", found.forces)}
    results["free_energy"] = results["energy"]
    return results if found.stress is None else {**results, **_results("stress", found.stress)}


def _results(quantity: str, found: Marginals) -> dict[str, Any]:
    assert found.aleatoric_var is not None and found.epistemic_var is not None  # noqa: S101, PT018 - of a model
    assert found.members is not None  # noqa: S101 - the evaluator gives them
    variances = (found.variance, found.aleatoric_var, found.epistemic_var)
    values = (found.mean, *(np.sqrt(each) for each in variances), found.members)
    return {quantity + kind: _as_ase(quantity, value) for kind, value in zip(("", *KINDS), values, strict=True)}


def _as_ase(quantity: str, value: np.ndarray) -> Any:
    """Of the one structure: a number, forces, or six components of a stress; of members, several of them."""
    if quantity == "energy":
        return float(value[0]) if value.ndim == 1 else value[:, 0]
    if quantity == "stress":
        return full_3x3_to_voigt_6_stress(value[..., 0, :, :])
    return value


def load_in(model: str | Path, precision: Precision) -> Ensemble:
    """A model file, in whichever precision it was written."""
    if not Path(model).exists():
        raise FileNotFoundError(f"there is no model file {model}")
    with jax.enable_x64(precision == "float64"):
        return load(model, dtype=precision)


def _same(old: np.ndarray, new: np.ndarray, tol: float) -> bool:
    """Whether no number differs by more than this; whole numbers and truths may not differ at all."""
    if old.shape != new.shape:
        return False
    return bool((old == new).all() or (old.dtype.kind == "f" and (np.abs(old - new) <= tol).all()))


def _continues(before: Structure | None, after: Structure) -> bool:
    """Whether a structure may be the next step from another one."""
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


_Limits = tuple[float | None, float | None, str]
"""Of the energy [eV] and of the force on an atom [eV/Å], and where they come from."""


def _limits(ensemble: Ensemble, given: str | float | None) -> _Limits:
    if given is None:
        return None, None, ""
    threshold, typical = Threshold.parse(given), ensemble.typical
    if threshold.doubt:
        warnings.warn(threshold.doubt, stacklevel=3)
    if not threshold.is_share:
        return None, threshold.value, "the threshold"
    if typical is None:
        if given == MORE_THAN_ALL:
            return None, None, ""
        threshold.limit(None, "atom", "total")  # says what to do
    assert typical is not None  # noqa: S101 - for mypy
    energy, force = (typical.quantile(threshold.value, measure) for measure in ("energy", "atom"))
    return energy, force, f"{threshold} of the {typical.source} ({typical.structures} structures)"


def _complaint(found: EnergyForcesMarginals, structure: Structure, limits: _Limits) -> str:
    """What is more uncertain than it may be; nothing where nothing is."""
    energy, force, source = limits
    complaints = []
    levels, deviation = force_deviations(found.forces.variance), float(found.energy.deviation[0])
    if force is not None and (levels > force).any():
        worst = np.flatnonzero(levels > force)
        worst = worst[np.argsort(-levels[worst])]
        complaints.append(
            f"forces on {named_atoms(structure, worst)} are uncertain by up to {levels.max():.3g} eV/Å, more than "
            f"{source}: {force:.3g} eV/Å"
        )
    if energy is not None and deviation > energy:
        complaints.append(f"the energy is uncertain by {deviation:.3g} eV, more than {source}: {energy:.3g} eV")
    return "; ".join(complaints)
