from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from huefield.evaluation.report import figures
from huefield.evaluation.slices import summarise
from huefield.predict.marginals import Marginals
from huefield.predict.predictions import Predictions
from huefield.support.plots import publication_style
from tests.evaluation.synthetic import predicted, waters
from tests.pictures import require_readable
from tests.predict.helpers import changed


def models(count: int = 2) -> list[Predictions]:
    block = waters(40)
    return [predicted(block, name=f"model {i}", seed=i, scale=1.0 + i) for i in range(count)]


def test_every_figure_is_written_as_png_and_pdf(tmp_path: Path) -> None:
    given = models(1)
    evaluations = [summarise(p) for p in given]
    paths = figures.save_figures(evaluations, given, tmp_path / "new", before=evaluations)
    assert {path.stem for path in paths} == set(figures.CAPTIONS)
    assert [path.suffix for path in paths] == [".png", ".pdf"] * len(figures.CAPTIONS)
    for path in paths:
        assert path.read_bytes().startswith({".png": b"\x89PNG", ".pdf": b"%PDF"}[path.suffix])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "make",
    [figures.reliability_figure, figures.z_score_figure, figures.coverage_figure, figures.retention_figure],
)
def test_curves_can_be_read(make: Callable[..., Figure | None], count: int) -> None:
    with publication_style():
        require_readable(make([summarise(p) for p in models(count)]))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("make", [figures.parity_figure, figures.parts_figure])
def test_scatters_and_parts_can_be_read(make: Callable[..., Figure | None], count: int) -> None:
    with publication_style():
        require_readable(make(models(count)))


@pytest.mark.parametrize("make", [figures.z_score_figure, figures.coverage_figure])
def test_curves_with_tails_can_be_read(make: Callable[..., Figure | None]) -> None:
    heavy = [predicted(waters(40), name=f"model {dof}", dof=dof) for dof in (2.05, 123.0)]
    with publication_style():
        require_readable(make([summarise(p) for p in [*heavy, *models(1)]]))


def test_the_calibration_with_tails_says_what_intervals_are() -> None:
    before, after = (summarise(predicted(waters(40), dof=dof)) for dof in (None, 3.1))
    with publication_style():
        figure = figures.calibration_figure([before], [after])
        require_readable(figure)
    assert figure is not None
    assert [text.get_text() for ax in figure.axes for text in ax.texts] == ["before: normal\nafter: ν = 3.1"] * 2


def test_the_calibration_can_be_read() -> None:
    evaluations = [summarise(p) for p in models(2)]
    with publication_style():
        require_readable(figures.calibration_figure(evaluations, evaluations))


def test_errors_of_zero_leave_axes_that_can_be_read() -> None:
    """No bin has a positive RMSE: nothing can be drawn on logarithmic axes, and the layout must stand that."""
    given = predicted(waters(40))
    assert given.forces is not None
    exact = changed(given, forces=replace(given.forces, mean=given.structures.forces))
    with publication_style():
        require_readable(figures.reliability_figure([summarise(exact)]), empty=(1,))


def test_one_panel_for_each_model_and_quantity() -> None:
    evaluations = [summarise(p) for p in models(3)]
    figure = figures.reliability_figure(evaluations)
    assert figure is not None
    assert [ax.get_title() for ax in figure.axes] == ["model 0", "model 1", "model 2", "", "", ""]
    assert len({ax.get_xlim() for ax in figure.axes[:3]}) == 1
    for evaluation, ax in zip(evaluations, figure.axes, strict=False):
        assert evaluation.energy is not None
        np.testing.assert_array_equal(ax.lines[1].get_xdata(), evaluation.energy.reliability.rmv)
        np.testing.assert_array_equal(ax.lines[1].get_ydata(), evaluation.energy.reliability.rmse)


def test_a_single_model_has_its_quantities_side_by_side() -> None:
    figure = figures.z_score_figure([summarise(p) for p in models(1)])
    assert figure is not None
    assert [ax.get_title() for ax in figure.axes] == ["Energies", "Force components"]
    assert figure.axes[0].get_position().y0 == figure.axes[1].get_position().y0


@pytest.mark.parametrize("make", [figures.coverage_figure, figures.retention_figure])
def test_curves_of_all_models_share_a_panel(make) -> None:
    figure = make([summarise(p) for p in models(2)])
    assert len(figure.axes) == 2
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["model 0", "model 1"]


def test_parity_is_relative_to_a_fit_on_composition() -> None:
    """Molecules of one formula: the fit is the mean of what was observed."""
    (given,) = models(1)
    figure = figures.parity_figure([given])
    assert figure is not None
    assert given.energy is not None
    points, mean = figure.axes[0].lines[1].get_xydata(), given.structures.energy.mean()
    np.testing.assert_allclose(points.T, [given.structures.energy - mean, given.energy.mean - mean], atol=1e-9)
    forces = figure.axes[1].lines[1].get_xydata()
    np.testing.assert_array_equal(forces[:, 0], given.structures.forces.ravel())


def test_models_that_do_not_know_their_parts_are_left_out() -> None:
    known, unknown = predicted(waters(20), name="a"), predicted(waters(20), name="b", parts=False)
    figure = figures.parts_figure([known, unknown])
    assert figure is not None
    assert [ax.get_title() for ax in figure.axes] == ["a: energies", "a: force components"]
    assert figures.parts_figure([unknown]) is None


def test_a_model_of_forces_alone_keeps_its_name() -> None:
    both, forces = models(2)
    figure = figures.reliability_figure([summarise(both), summarise(changed(forces, energy=None))])
    assert figure is not None
    assert [ax.get_title() for ax in figure.axes if ax.axison] == ["model 0", "", "model 1"]


def test_calibration_shows_both_under_one_name() -> None:
    after = summarise(predicted(waters(40), name="m"))
    before = summarise(predicted(waters(40), name="m", scale=3.0))
    figure = figures.calibration_figure([before], [after])
    assert figure is not None
    assert len(figure.axes) == 4
    _, first, second = figure.axes[0].lines
    assert before.energy is not None
    assert after.energy is not None
    np.testing.assert_array_equal(first.get_xdata(), before.energy.reliability.rmv)
    np.testing.assert_array_equal(second.get_xdata(), after.energy.reliability.rmv)
    assert figures.calibration_figure([replace(before, name="other")], [after]) is None


def test_no_variance_leaves_out_what_needs_one(tmp_path: Path) -> None:
    given = [predicted(waters(20), scale=0.0)]
    names = {path.stem for path in figures.save_figures([summarise(given[0])], given, tmp_path)}
    assert "parity" in names
    assert names.isdisjoint({"reliability", "z_scores", "uncertainty_parts", "calibration"})


@pytest.mark.slow
def test_parts_are_those_of_what_was_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(figures.draw, "draw_parts", lambda ax, *parts: (ax.plot([0], label="x"), drawn.append(parts)))
    (given,) = models(1)
    assert given.forces is not None
    mean, zeros = given.forces.mean.copy(), np.ones_like(given.forces.mean)
    mean[:3], zeros[:3] = np.nan, 0.0
    variances = (v * zeros for v in (given.forces.variance, given.forces.aleatoric_var, given.forces.epistemic_var))
    figures.parts_figure([changed(given, forces=Marginals(mean, *variances))])
    assert given.forces.aleatoric_var is not None
    np.testing.assert_array_equal(drawn[1][0], given.forces.aleatoric_var[3:].ravel())
    assert (drawn[1][1] > 0).all()


def test_a_bin_of_one_entry_has_no_rzv_to_write() -> None:
    figure = figures.reliability_figure([summarise(predicted(waters(1)), bins=1)])
    assert figure is not None
    assert figure.axes[0].texts[0].get_text().endswith("RZV –")


def test_one_structure_can_be_drawn(tmp_path: Path) -> None:
    given = [predicted(waters(1))]
    names = {path.stem for path in figures.save_figures([summarise(given[0])], given, tmp_path)}
    assert {"parity", "uncertainty_parts"} <= names


def test_of_very_many_entries_some_are_chosen_by_lot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_POINTS", 50)
    figure = figures.parity_figure(models(1))
    assert figure is not None
    assert len(figure.axes[1].lines[1].get_xdata()) == 50


def test_bad_input_is_named(tmp_path: Path) -> None:
    given = models(2)
    with pytest.raises(ValueError, match="there are 1 evaluations and 2 predictions"):
        figures.save_figures([summarise(given[0])], given, tmp_path)
