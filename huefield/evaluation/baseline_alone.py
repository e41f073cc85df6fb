"""A baseline without its correction, to show its errors beside those of the model that corrects it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from huefield.core.structure import Block
from huefield.evaluation.paper_metrics import NAN
from huefield.evaluation.slices import Evaluation, summarise
from huefield.predict.marginals import EnergyForcesMarginals, Marginals
from huefield.predict.predictions import Predictions, linear_in_composition

OF_UNCERTAINTIES = (
    "rmv", "cv", "ence", "crps", "miscalibration_area", "sharpness", "rank_correlation", "retention_area", "auroc",
)  # fmt: skip
"""Metrics that a baseline does not have."""
FEWEST_PER_ELEMENT = 2
"""Structures for each element that a fit of their energies needs."""


def baselines_alone(found: Sequence[Predictions], *, resamples: int = 0) -> tuple[Evaluation, ...]:
    """Errors of the baselines that models correct, each of them once; uncertainties are not defined.

    Args:
        found: predictions of the models.
        resamples: number of resamples for confidence intervals; zero for none.
    """
    alone = {each.name: each for predictions in found if (each := baseline_alone(predictions)) is not None}
    return tuple(_errors_only(summarise(each, resamples=resamples)) for each in alone.values())


def baseline_alone(predictions: Predictions) -> Predictions | None:
    """Results of the baseline as predictions; None if the model corrects none.

    Total energies of two methods differ by an energy for each element, which is fitted for each data set and added.
    """
    block = predictions.structures
    if predictions.baseline is None or block.baseline is None:
        return None
    stress = np.where(block.baseline.has_stress[:, None, None], block.baseline.stress, np.nan)
    marginals = EnergyForcesMarginals(
        _certain(_energies(block)),
        _certain(block.baseline.forces),
        _certain(stress) if predictions.stress is not None else None,
    )
    return replace(predictions, name=f"{predictions.baseline} alone", marginals=marginals, left_out={})


def _energies(block: Block) -> Float[np.ndarray, " n"]:
    """Energies of the baseline with those of the elements; NaN where there are too few structures to fit them."""
    assert block.baseline is not None  # noqa: S101 - the caller checks it
    learnt, baseline, energies = block.relative_to_baseline(), block.baseline.energy, np.full(len(block), np.nan)
    tags = np.array(block.tags)
    for tag in np.unique(tags):
        chosen = (tags == tag) & block.has_energy
        labelled = learnt.select(chosen)
        # With hardly more structures than elements the fit would hide the errors.
        if len(labelled) > FEWEST_PER_ELEMENT * len(np.unique(labelled.atomic_numbers)):
            energies[chosen] = baseline[chosen] + linear_in_composition(labelled, labelled.energy)
    return energies


def _certain(mean: Float[np.ndarray, "*n"]) -> Marginals:
    return Marginals(mean, np.zeros_like(mean))


def _errors_only(found: Evaluation) -> Evaluation:
    """Without the metrics of uncertainties, which a baseline does not have, and remarks on them."""
    names = (
        "rmv",
        "cv",
        "ence",
        "crps",
        "miscalibration_area",
        "sharpness",
        "rank_correlation",
        "retention_area",
        "auroc",
    )
    unknown = {**dict.fromkeys(names, NAN), "coverage": (), "remarks": ()}
    quantities = ("energy", "energy_per_atom", "forces", "forces_per_atom", "stress")
    known = {name: summary for name in quantities if (summary := getattr(found, name)) is not None}
    changed = {
        name: replace(summary, **unknown, intervals=tuple(i for i in summary.intervals if i.metric in ("mae", "rmse")))
        for name, summary in known.items()
    }
    return replace(found, breakdown=(), remarks=(), **changed)
