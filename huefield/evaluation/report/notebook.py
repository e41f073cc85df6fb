"""HTML of results for notebooks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from huefield.evaluation.report.html import PageBlock, Paragraph, RemarkList, fragment_of
from huefield.evaluation.report.page import metric_table
from huefield.evaluation.report.tables import PAPER_METRICS, tails_text
from huefield.evaluation.slices import Evaluation

if TYPE_CHECKING:
    from huefield.evaluation.calibrate import CalibrationCheck


def evaluations_html(evaluations: Sequence[Evaluation], remarks: Sequence[str]) -> str:
    """The table of the paper's metrics, with remarks."""
    return fragment_of([metric_table(evaluations, PAPER_METRICS), *_tails(evaluations), *_listed(remarks)])


def calibration_html(check: "CalibrationCheck") -> str:
    """Metrics and coverage before and after, with remarks."""
    first, *lines = check.text().splitlines()
    coverage = [Paragraph(line) for line in lines if line.startswith("Coverage")]
    table = metric_table(check.evaluations, PAPER_METRICS)
    compared = [Paragraph(first), table, *_tails(check.evaluations), *coverage, Paragraph(check.kept_text())]
    return fragment_of([*compared, *_listed(check.remarks)])


def _tails(evaluations: Sequence[Evaluation]) -> list[PageBlock]:
    return [Paragraph(text)] if (text := tails_text(evaluations)) else []


def _listed(remarks: Sequence[str]) -> list[PageBlock]:
    return [RemarkList(remarks)] if remarks else []
