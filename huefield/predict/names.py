"""Names of models in tables, figures and files."""

from collections.abc import Sequence
from pathlib import Path


def names_of(paths: Sequence[Path]) -> list[str]:
    """Names for models: that of the file, or of its folder where the file is just called model.

    More folders stand before it where several would have the same name.
    """
    whole = [_parts(path.resolve()) for path in paths]
    depth = 1
    while len({parts[-depth:] for parts in whole}) < len(set(whole)):
        depth += 1
    return ["/".join(parts[-depth:]) for parts in whole]


def _parts(path: Path) -> tuple[str, ...]:
    return path.parent.parts if path.stem == "model" else (*path.parent.parts, path.stem)
