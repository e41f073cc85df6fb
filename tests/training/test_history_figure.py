"""The figure of a run."""

from typing import Any

import pytest

from huefield.training.history_figure import draw_history, without_taken_back

NAN = float("nan")


def steps(stage: int, kind: str, step: int, begin: int, **values: Any) -> dict[str, Any]:
    given = {"loss": [1.0, 2.0], "gradient_norm": [1.0, 3.0], "gamma": [1.0, 2.0]}
    at = {"stage": stage, "kind": kind, "step": step, "total_steps": begin + step}
    return {"event": "steps", **at, **given, **values}


def validation(stage: int, kind: str, step: int, begin: int) -> dict[str, Any]:
    noisy = kind != "squared_error"
    scores = {f"{q}_{m}": [0.5, 0.6] if noisy or m == "rmse" else [NAN, NAN] for q in ("energy", "force")
              for m in ("rmse", "nll", "rzv")}  # fmt: skip
    return {**steps(stage, kind, step, begin), "event": "validation", **scores}


def run_of_three_stages() -> list[dict[str, Any]]:
    events = []
    for stage, (kind, begin) in enumerate((("squared_error", 0), ("beta_nll", 1000), ("nll", 1020))):
        for step in (10, 20):
            events += [steps(stage, kind, step, begin), validation(stage, kind, step, begin)]
    return events


def test_names_of_short_stages_do_not_run_into_each_other() -> None:
    figure = draw_history(run_of_three_stages())
    figure.canvas.draw()
    for ax in figure.axes:
        boxes = [text.get_window_extent() for text in ax.texts]
        assert [text.get_text() for text in ax.texts] == ["squared error", "β-NLL", "NLL"]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_curves_have_numbers_only_where_there_are_some() -> None:
    figure = draw_history([*run_of_three_stages(), steps(2, "nll", 30, 1020, loss=[NAN, 7.0])])
    loss, _, gamma, rmse, nll, _ = figure.axes
    assert loss.lines[0].get_xdata().tolist() == [10, 20]
    assert max(loss.lines[2].get_ydata()) == 7.0
    assert min(gamma.lines[0].get_xdata()) > 1000  # it stands still before
    assert rmse.lines[0].get_ydata()[0] == pytest.approx(550.0)  # meV
    assert {text.get_text() for text in nll.get_legend().get_texts()} == {"energy", "forces"}


def test_a_run_without_noise_says_so() -> None:
    figure = draw_history([steps(0, "squared_error", 10, 0), validation(0, "squared_error", 10, 0)])
    assert "no noise is trained" in [text.get_text() for text in figure.axes[4].texts]


def test_steps_that_were_taken_back_are_left_out() -> None:
    back = {**steps(0, "nll", 30, 0), "event": "rollback", "to_step": 10, "members": [1]}
    events = [steps(0, "nll", step, 0) for step in (10, 20, 30)] + [back, steps(0, "nll", 20, 0)]
    assert [event["step"] for event in without_taken_back(events)] == [10, 20]


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(ValueError, match="no step to draw yet"):
        draw_history([])
