"""Names of models in tables, figures and files."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from huefield.model.ensemble import Ensemble
from huefield.model.modelfile import ModelSource, open_model

WITHOUT_GROWTH = "{}, no growth"
"""Name of a model whose noise could grow away from the training data, but was not to."""


class NamedModel(NamedTuple):
    """A model with its name in tables, figures and files."""

    name: str
    ensemble: Ensemble
    growth_left_out: bool


def named_models(
    sources: Sequence[ModelSource], *, dataset: str | None = None, growth: bool = True
) -> list[NamedModel]:
    """Open models, and name them.

    Args:
        sources: as for :func:`open_model`.
        dataset: as for :func:`open_model`.
        growth: whether noise may grow with the distance to the training data; if not, names say so.
    """
    found = []
    for source, name in zip(sources, model_names(sources), strict=True):
        whole = open_model(source, dataset=dataset)
        used = whole if growth else whole.without_growth()
        left_out = used.noise_grows != whole.noise_grows
        found.append(NamedModel(WITHOUT_GROWTH.format(name) if left_out else name, used, left_out))
    return found


def names_of(paths: Sequence[Path]) -> list[str]:
    """Names for models: that of the file, or of its folder if the file is just called model.

    Parent folders precede the name if several would be the same.
    """
    whole = [_parts(path.resolve()) for path in paths]
    depth = 1
    while len({parts[-depth:] for parts in whole}) < len(set(whole)):
        depth += 1
    return ["/".join(parts[-depth:]) for parts in whole]


def _parts(path: Path) -> tuple[str, ...]:
    return path.parent.parts if path.stem == "model" else (*path.parent.parts, path.stem)


def model_names(sources: Sequence[ModelSource]) -> list[str]:
    """Names of models: from their files, or "model" for those in memory."""
    files = [Path(each) if isinstance(each, str | Path) else getattr(each, "model", None) for each in sources]
    names = iter(names_of([file for file in files if isinstance(file, Path)]))
    return [next(names) if isinstance(file, Path) else "model" for file in files]
