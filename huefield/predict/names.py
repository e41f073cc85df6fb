"""Names of models in tables, figures and files."""

from collections.abc import Sequence
from pathlib import Path


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
