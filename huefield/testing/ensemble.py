"""Checks of whole ensembles, with their calibration."""

from collections.abc import Sequence
from itertools import pairwise

from huefield.core import Gaussian, Structure
from huefield.model.ensemble import Ensemble
from huefield.testing.distant import check_coherence, check_distant_copies, check_distant_parts
from huefield.testing.probes import graph_of


def check_ensemble(ensemble: Ensemble, structures: Sequence[Structure], *, relative: float = 1e-5) -> None:
    """Check size consistency and coherence of an ensemble, in double precision.

    Args:
        ensemble: the model, with its calibration.
        structures: at least one structure that it is for, without a periodic cell.
        relative: largest relative difference.
    """
    double = ensemble.in_precision("float64")
    cutoff_angstrom = double.members.potential.atomic_config.cutoff_angstrom

    def predict(given: Sequence[Structure]) -> Gaussian:
        return double.predict(graph_of(given, cutoff_angstrom)).distribution

    with double.own_precision():
        for structure in structures:
            check_distant_copies(predict, structure, relative)
            check_coherence(predict, structure, 10 * relative)
        for first, second in pairwise(structures):
            check_distant_parts(predict, first, second, relative)
