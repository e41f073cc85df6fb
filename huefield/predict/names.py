"""Names of models in tables, figures and files."""

from collections.abc import Sequence
from pathlib import Path

from huefield.model.modelfile import ModelSource


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
