"""Assignment of configurations to splits."""

import numpy as np

from huefield.core.structure import Structure
from huefield.make_data.plan import SamplingPlan
from huefield.make_data.reactions import HELD_OUT
from huefield.make_data.units import PATH


def assigned_splits(structures: list[Structure], plan: SamplingPlan, *, rng: np.random.Generator) -> list[str]:
    """Name of the split of each structure.

    Converged paths, held-out reactions, larger molecules and hot dynamics have test sets of their own; all other
    structures are split at random.
    """
    hot = tuple(f": dynamics at {kelvin:.0f} K" for kelvin in plan.hot_k)
    held_out = {f"reaction: {name}" for name in HELD_OUT}
    names = []
    for structure, draw in zip(structures, rng.random(len(structures)), strict=True):
        if structure.group.startswith(PATH):
            names.append("test_paths")
        elif structure.group in held_out:
            names.append("test_reactions")
        elif plan.is_larger(structure.atomic_numbers):
            names.append("test_larger")
        elif structure.group.endswith(hot):
            names.append("test_hot")
        elif draw < plan.validation_share:
            names.append("validation")
        else:
            names.append("test_id" if draw < plan.validation_share + plan.test_share else "train")
    return names
