"""Checks of matplotlib figures that look at what is drawn, not at the size of a file."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import Collection, PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text

SMALLEST = 0.05
"""Height and width of axes, relative to the figure, below which nobody can read them."""


def require_readable(figure: Figure | None, *, smallest: float = SMALLEST, empty: tuple[int, ...] = ()) -> Figure:
    """Fail unless all visible axes are large enough, show data, and have tick labels that do not overlap.

    Args:
        figure: what a drawing function returned.
        smallest: height and width of axes, relative to the figure.
        empty: numbers of axes that may show no data.
    """
    assert figure is not None, "there is no figure"
    figure.draw_without_rendering()
    shown = [(number, ax) for number, ax in enumerate(figure.axes) if ax.get_visible() and ax.axison]
    assert shown, "the figure has no axes"
    for number, ax in shown:
        box = ax.get_position()
        assert min(box.width, box.height) >= smallest, f"axes {number} are {box.width:.3f} × {box.height:.3f}"
        assert number in empty or any(_inside(ax)), f"axes {number} show no data inside of their limits"
        for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
            _require_apart(figure, number, labels)
    return figure


def _inside(ax: Axes) -> Iterator[bool]:
    """For each artist: whether any of its points lies inside of the limits."""
    for line in ax.lines:
        if all(line.get_transform().contains_branch_seperately(ax.transData)):  # not so axhline and axvline
            yield _any_point(ax, np.asarray(line.get_xydata(), float))
    for artist in (*ax.collections, *ax.patches):
        if artist.get_visible():
            yield from (_any_point(ax, points) for points in _points(ax, artist))
    yield from (bool(np.size(image.get_array())) for image in ax.images)


def _points(ax: Axes, artist: Collection | Patch) -> Iterator[np.ndarray]:
    if isinstance(artist, PathCollection) or (isinstance(artist, Collection) and len(artist.get_offsets()) > 1):
        yield np.ma.filled(np.ma.asarray(artist.get_offsets(), float), np.nan)
    elif isinstance(artist, Collection):
        yield from (np.asarray(path.vertices, float) for path in artist.get_paths())
    else:
        yield ax.transData.inverted().transform(artist.get_transform().transform(artist.get_path().vertices))


def _any_point(ax: Axes, points: np.ndarray) -> bool:
    if not len(points):
        return False
    (left, right), (low, high) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
    x, y = points.T
    with np.errstate(invalid="ignore"):
        return bool(((x >= left) & (x <= right) & (y >= low) & (y <= high)).any())


def _require_apart(figure: Figure, number: int, labels: list[Text]) -> None:
    boxes = [(label.get_text(), label.get_window_extent()) for label in labels if label.get_text()]
    frame = figure.bbox
    boxes = [(text, box) for text, box in boxes if frame.x0 <= box.x0 and box.x1 <= frame.x1 and box.y1 <= frame.y1]
    for (first, one), (second, other) in pairwise(boxes):
        assert not one.overlaps(other), f"labels {first!r} and {second!r} of axes {number} overlap"
