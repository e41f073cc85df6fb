"""Checks of whole ensembles, with their calibration."""

from collections.abc import Sequence
from itertools import pairwise

from ase import Atoms

from huefield.ase.calculator import structure_of
from huefield.core import Gaussian, Structure
from huefield.model.ensemble import Ensemble
from huefield.testing.distant import check_coherence, check_distant_copies, check_distant_parts
from huefield.testing.probes import graph_of


def check_ensemble(ensemble: Ensemble, structures: Sequence[Structure | Atoms], *, relative: float = 1e-5) -> None:
    """Check size consistency and coherence of an ensemble, in double precision.

    Of a model that corrects a baseline, the correction is checked: the baseline has no noise.

    Args:
        ensemble: the model, with its calibration.
        structures: at least one structure that it is for, without a periodic cell.
        relative: largest relative difference.
    """
    double = ensemble.with_baseline(None).in_precision("float64")
    cutoff_angstrom = double.members.potential.atomic_config.cutoff_angstrom

    def predict(given: Sequence[Structure]) -> Gaussian:
        return double.predict(graph_of(given, cutoff_angstrom)).distribution

    with double.own_precision():
        plain = [structure_of(each) if isinstance(each, Atoms) else each for each in structures]
        for structure in plain:
            check_distant_copies(predict, structure, relative)
            check_coherence(predict, structure, 10 * relative)
        for first, second in pairwise(plain):
            check_distant_parts(predict, first, second, relative)
