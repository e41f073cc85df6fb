import math
from dataclasses import replace

import numpy as np
import pytest

from huefield.evaluation.bootstrap import Interval
from huefield.evaluation.report.tables import (
    COVERAGE_METRICS,
    MORE_METRICS,
    PAPER_METRICS,
    TAILS_EXPLANATION,
    latex_table,
    markdown_table,
    narrow_table,
    number,
    tails_text,
)
from huefield.evaluation.slices import Evaluation, summarise
from tests.evaluation.synthetic import predicted, waters


@pytest.fixture(scope="module")
def evaluations() -> list[Evaluation]:
    block = waters(60)
    return [summarise(predicted(block, name=name, scale=scale)) for name, scale in (("white", 0.5), ("a|b_c", 1.0))]


@pytest.fixture(scope="module")
def resampled() -> Evaluation:
    return summarise(predicted(waters(60), name="colored"), resamples=20)


def test_tables_say_which_errors_have_tails(evaluations: list[Evaluation]) -> None:
    """Only for models that have any, below the numbers."""
    for make in (markdown_table, narrow_table, latex_table):
        assert "ν" not in make(evaluations)
    heavy = summarise(predicted(waters(60), name="a|b", dof=3.1))
    assert heavy.energy is not None
    half = replace(heavy, name="c", energy=replace(heavy.energy, dof=None))
    both = "errors follow a Student t with ν = 3.1 for energies and ν = 3.1 for forces."
    told = f"{both} c: errors follow a Student t with ν = 3.1 for forces. {TAILS_EXPLANATION}"
    assert tails_text([evaluations[0], heavy, half]) == f"a|b: {told}"
    assert markdown_table([heavy, half]).endswith(f"|\n\na\\|b: {told}\n")
    assert latex_table([heavy, half]).startswith(f"% a|b: {told}\n\\begin{{tabular}}")
    assert " ".join(narrow_table([heavy, half]).split()).endswith(told)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.01234, None, "0.0123"), (1.0, None, "1.00"), (123.4, None, "123"), (0.0, None, "0.00"),
        (4.2e-7, None, "4.20e−07"), (56789.0, None, "5.68e+04"), (-2.514, 2, "−2.51"), (3e9, 2, "3.00e+09"),
        (math.nan, 2, "–"), (math.inf, None, "–"),
    ],
)  # fmt: skip
def test_numbers_are_readable(value: float, digits: int | None, text: str) -> None:
    assert number(value, digits) == text


def test_markdown_has_a_row_for_each_model(evaluations: list[Evaluation]) -> None:
    lines = markdown_table(evaluations).splitlines()
    assert lines[0] == "Energies (E) in eV, force components (F) in eV/Å."
    assert lines[2].startswith("| model | E: MAE | RMSE | NLL | RZV | ENCE | CV | RMV | F: MAE |")
    assert len(lines) == 6
    cells = [cell.strip() for cell in lines[4].strip("|").split("|")]
    white = evaluations[0]
    assert white.energy is not None
    assert white.forces is not None
    assert cells[0] == "white"
    assert cells[1] == number(white.energy.mae, None)
    assert cells[11] == number(white.forces.rzv, 2)
    assert cells[14] == number(white.forces.rmv, None)
    assert lines[5].startswith("| a\\|b_c | ")


def test_markdown_has_a_second_table_with_intervals(resampled: Evaluation) -> None:
    text = markdown_table([resampled])
    assert "95 % confidence intervals from resampled structures:" in text
    assert resampled.energy is not None
    ends = resampled.energy.interval("mae")
    assert ends is not None
    assert f"| {number(ends.low, None)} to {number(ends.high, None)} |" in text


def test_markdown_ends_with_the_joint_nll_where_it_is_known(evaluations: list[Evaluation]) -> None:
    known = replace(evaluations[0], joint_nll=-1.234)
    assert "joint" not in markdown_table(evaluations)
    lines = markdown_table([known, evaluations[1]]).splitlines()
    assert lines[2].endswith("| RMV | joint NLL |")
    assert lines[4].endswith(" | −1.23 |")
    assert lines[5].endswith(" | – |")
    assert len({line.replace("\\|", "").count("|") for line in lines[2:]}) == 1


def test_markdown_has_the_interval_of_the_joint_nll(resampled: Evaluation) -> None:
    known = replace(resampled, joint_nll=-1.234, joint_nll_interval=Interval("joint_nll", -1.5, 2.0))
    assert markdown_table([known]).splitlines()[-1].endswith(" | −1.50 to 2.00 |")
    without = replace(known, joint_nll_interval=None)
    assert markdown_table([without]).splitlines()[-1].endswith(" | – |")


def test_a_terminal_gets_a_column_for_each_quantity_and_model(evaluations: list[Evaluation]) -> None:
    white, other = evaluations
    lines = narrow_table([replace(white, joint_nll=-1.234), replace(other, energy=None)]).splitlines()
    assert lines[2].split("  ")[-3:] == ["E: white", "F: white", "F: a|b_c"]
    assert white.energy is not None
    assert white.forces is not None
    assert other.forces is not None
    assert lines[3].split() == [
        "MAE",
        *(number(found.mae, None) for found in (white.energy, white.forces, other.forces)),
    ]
    assert [line.split()[0] for line in lines[3:10]] == [metric.heading for metric in PAPER_METRICS]
    assert len({len(line) for line in lines[2:10]}) == 1
    assert lines[10:] == ["joint NLL: white −1.23, a|b_c –"]
    assert "joint" not in narrow_table(evaluations)


def test_latex_is_balanced_and_escaped(evaluations: list[Evaluation]) -> None:
    text = latex_table(evaluations)
    assert text.count("{") == text.count("}")
    assert text.index("Energy (eV)") < text.index("Forces (eV/\\AA)")
    rows = [line for line in text.splitlines() if line.startswith(("white", "a\\textbar{}b\\_c"))]
    assert len(rows) == 4
    assert all(row.count("&") == len(PAPER_METRICS) and row.endswith("\\\\") for row in rows)
    assert "−" not in text


def test_latex_intervals_are_below_the_numbers(resampled: Evaluation) -> None:
    lines = latex_table([resampled]).splitlines()
    (row, *_) = [i for i, line in enumerate(lines) if line.startswith("colored")]
    assert lines[row + 1].count("{\\tiny [") == len(PAPER_METRICS)


def test_what_is_missing_is_a_dash_or_left_out(evaluations: list[Evaluation]) -> None:
    without = replace(evaluations[0], energy=None)
    assert "| white | – | – |" in markdown_table([without])
    assert "Energy" not in latex_table([without])


def test_beyond_the_paper(evaluations: list[Evaluation]) -> None:
    found = evaluations[1].forces
    assert found is not None
    assert [metric.text(found) for metric in MORE_METRICS][:2] == [
        number(found.crps, None),
        number(found.miscalibration_area, 3),
    ]
    assert [metric.text(found) for metric in COVERAGE_METRICS] == [number(100 * c.observed, 1) for c in found.coverage]
    assert [metric.heading for metric in COVERAGE_METRICS] == ["50 %", "68 %", "90 %", "95 %", "99 %"]


def test_intervals_of_coverage_are_in_percent(resampled: Evaluation) -> None:
    assert resampled.forces is not None
    ends = resampled.forces.interval("coverage_68")
    assert ends is not None
    assert COVERAGE_METRICS[1].interval_text(resampled.forces) == f"{100 * ends.low:.1f} to {100 * ends.high:.1f}"
    assert COVERAGE_METRICS[1].interval_text(None) == ""


def test_every_table_names_the_data_sets_if_there_are_several() -> None:
    block = waters(40)
    tagged = replace(block, tags=("pbe",) * 30 + ("w_b",) * 10, has_energy=np.arange(40) < 30)
    found = summarise(predicted(tagged, name="m"), resamples=10)
    assert [(each.label, each.energy is None) for each in found.datasets] == [("pbe", False), ("w_b", True)]
    rows = markdown_table([found]).split("By data set:")[1].splitlines()
    assert [row.split(" | ")[0] for row in rows[4:]] == ["| m, pbe", "| m, w_b"]
    assert found.datasets[0].energy is not None
    assert rows[4].split(" | ")[1] == number(found.datasets[0].energy.mae, None)
    assert rows[5].split(" | ")[1] == "–"
    latex = latex_table([found])
    assert latex.count("m, pbe &") == 2
    assert latex.count("m, w\\_b &") == 1
    narrow = narrow_table([found])
    assert "Data set pbe:\n" in narrow
    assert narrow.split("Data set w_b:\n")[1].split()[:2] == ["F:", "m"]
    alone = summarise(predicted(replace(block, tags=("pbe",) * 40), name="m"))
    assert alone.datasets == ()
    for make in (markdown_table, narrow_table, latex_table):
        assert "pbe" not in make([alone])
