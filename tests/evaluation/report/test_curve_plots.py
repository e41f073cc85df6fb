import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import norm
from scipy.stats import t as student

from huefield.evaluation.curves import CoverageCurve, Reliability, RetentionCurve, ZHistogram
from huefield.evaluation.report import curve_plots as draw
from huefield.support.plots import MARKERS, MODELS


def axes():
    return Figure().subplots()


def test_reliability_draws_a_marker_for_each_bin_that_a_logarithm_exists_for() -> None:
    ax = axes()
    draw.draw_reliability(
        ax, Reliability(np.array([5, 5, 5]), np.array([0.0, 0.1, 0.2]), np.array([0.1, 0.2, 0.3])), model=1
    )
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_xydata(), [[0.1, 0.2], [0.2, 0.3]])
    assert (line.get_color(), line.get_marker()) == (MODELS[1], MARKERS[1])


@pytest.mark.parametrize("logarithmic", [True, False])
def test_the_diagonal_spans_square_axes_around_all_values(logarithmic: bool) -> None:
    ax = axes()
    draw.draw_diagonal(ax, np.array([0.1, 3.0]), np.array([0.2, np.nan]), logarithmic=logarithmic)
    assert ax.get_xlim() == ax.get_ylim()
    assert ax.get_xlim()[0] < 0.1
    assert ax.get_xlim()[1] > 3.0
    np.testing.assert_allclose(ax.lines[0].get_xdata(), ax.get_xlim())
    np.testing.assert_allclose(ax.lines[0].get_ydata(), ax.get_xlim())


@pytest.mark.parametrize("values", [np.zeros(0), np.zeros(3), np.full(2, 0.5)])
def test_the_diagonal_of_nothing_or_one_value_still_has_limits(values: np.ndarray) -> None:
    ax = axes()
    draw.draw_diagonal(ax, values)
    low, high = ax.get_xlim()
    assert 0 < low < high


@pytest.mark.parametrize(("low", "high"), [(0.01, 0.015), (0.01, 0.08), (1e-3, 1.0), (1e-6, 1e3)])
def test_logarithmic_axes_have_labels_that_can_be_read(low: float, high: float) -> None:
    ax = axes()
    draw.draw_diagonal(ax, np.array([low, high]))
    ax.figure.draw_without_rendering()
    inside = [t for t in ax.get_xticks() if ax.get_xlim()[0] <= t <= ax.get_xlim()[1]]
    assert 2 <= len(inside) <= 12


def test_z_scores_beside_the_unit_normal() -> None:
    ax = axes()
    draw.draw_z_scores(ax, ZHistogram(np.linspace(-5, 5, 11), np.full(10, 0.09), 0.04, 0.06))
    z, density = ax.lines[0].get_xydata().T
    np.testing.assert_allclose(density, np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))
    assert ax.texts[0].get_text() == "|z| > 5: 10 %"


def test_z_scores_beside_a_t_distribution_of_unit_variance() -> None:
    ax = axes()
    draw.draw_z_scores(ax, ZHistogram(np.linspace(-5, 5, 11), np.full(10, 0.1)), dof=3.125)
    z, density = ax.lines[0].get_xydata().T
    np.testing.assert_allclose(density, student(3.125, scale=np.sqrt(1.125 / 3.125)).pdf(z))
    np.testing.assert_allclose(ax.lines[1].get_ydata(), norm.pdf(z))
    assert [text.get_text() for text in ax.texts] == ["ν = 3.12"]


def test_coverage_and_retention_are_drawn_as_given() -> None:
    ax, nominal = axes(), np.linspace(0, 1, 20)
    draw.draw_coverage(ax, CoverageCurve(nominal, nominal**2), label="m")
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), nominal**2)
    ax = axes()
    draw.draw_retention(ax, RetentionCurve(nominal, 2 * nominal, nominal), label="m")
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), 2 * nominal)
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), nominal)


@pytest.mark.parametrize(("count", "points"), [(draw.FEW, 1), (draw.FEW + 1, 0)])
def test_many_points_become_hexagons(count: int, points: int) -> None:
    ax, values = axes(), np.random.default_rng(0).standard_normal(count)
    draw.draw_parity(ax, values, values)
    assert len(ax.lines) == 1 + points
    assert len(ax.collections) == 1 - points
    if not points:
        assert ax.collections[0].get_array().sum() == count


def test_parts_of_equal_counts_by_hand() -> None:
    ax = axes()
    draw.draw_parts(ax, np.array([9.0, 1.0, 9.0, 1.0]), np.array([16.0, 0.0, 16.0, 0.0]), bins=2)
    total, aleatoric, epistemic = (line.get_ydata() for line in ax.lines)
    np.testing.assert_allclose(total, [1, 5])
    np.testing.assert_allclose(aleatoric, [1, 3])
    np.testing.assert_allclose(epistemic, [np.nan, 4])


def test_models_are_told_apart_by_colour_and_by_marker() -> None:
    styles = [draw.style_of(model) for model in range(7)]
    assert len({color for color, _ in styles}) == len({marker for _, marker in styles}) == 7
