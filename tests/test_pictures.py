import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.pictures import require_readable


def figure_of(points: int) -> Figure:
    figure = Figure()
    figure.subplots().plot(np.arange(points), np.arange(points))
    return figure


def test_a_figure_with_data_is_readable() -> None:
    require_readable(figure_of(3))


def test_no_figure_and_no_axes_are_told() -> None:
    with pytest.raises(AssertionError, match="no figure"):
        require_readable(None)
    with pytest.raises(AssertionError, match="no axes"):
        require_readable(Figure())


def test_axes_without_data_are_told() -> None:
    with pytest.raises(AssertionError, match="axes 0 show no data"):
        require_readable(figure_of(0))
    require_readable(figure_of(0), empty=(0,))


def test_data_outside_of_the_limits_are_told() -> None:
    figure = figure_of(3)
    figure.axes[0].set(xlim=(10, 20))
    with pytest.raises(AssertionError, match="axes 0 show no data"):
        require_readable(figure)


def test_a_line_of_reference_is_no_data() -> None:
    figure = Figure()
    figure.subplots().axhline(0.5)
    with pytest.raises(AssertionError, match="axes 0 show no data"):
        require_readable(figure)


@pytest.mark.parametrize("draw", ["scatter", "fill_between", "bar", "stairs", "hexbin"])
def test_other_artists_count(draw: str) -> None:
    figure, values = Figure(), np.arange(5.0)
    ax = figure.subplots()
    getattr(ax, draw)(*([values, np.arange(6.0)] if draw == "stairs" else [values, values + 1]))
    require_readable(figure)


def test_flat_axes_are_told() -> None:
    figure = Figure()
    figure.add_axes((0.1, 0.1, 0.8, 0.003)).plot([0, 1], [0, 1])
    with pytest.raises(AssertionError, match=r"axes 0 are 0.800 × 0.003"):
        require_readable(figure)


def test_labels_on_top_of_each_other_are_told() -> None:
    figure = figure_of(3)
    figure.axes[0].set_xticks(np.linspace(0, 2, 60))
    with pytest.raises(AssertionError, match="overlap"):
        require_readable(figure)
