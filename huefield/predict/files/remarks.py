"""Remarks on predictions that precede the numbers in a report."""

from collections.abc import Sequence

from huefield.predict.files.units import theory_remark, unit_remark
from huefield.predict.predictions import Predictions


def remarks_on(predictions: Predictions) -> list[str]:
    """Structures that were left out, missing labels, and units or a level of theory that look wrong."""
    left_out = [f"{count} structures {why}; left out" for why, count in predictions.left_out.items()]
    block = predictions.structures
    missing = [
        f"{int((~there).sum())} of {len(block)} structures have no {what} to compare with"
        for what, there in (("energy", block.has_energy), ("forces", block.has_forces))
        if not there.all()
    ]
    units = unit_remark(predictions) or theory_remark(predictions)
    return [f"{predictions.name}: {text}" for text in (*left_out, *missing, *([units] if units else []))]


def differing_structures(found: Sequence[Predictions]) -> str | None:
    """A remark if models are evaluated on different structures, for example as one knows more elements."""
    sizes = {each.name: len(each) for each in found}
    same = all(each.structures.frames.tolist() == found[0].structures.frames.tolist() for each in found)
    if same:
        return None
    counts = ", ".join(f"{name} {size}" for name, size in sizes.items())
    return f"the models are evaluated on different structures ({counts}): compare their numbers with care"
