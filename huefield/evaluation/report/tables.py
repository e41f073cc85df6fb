"""Tables of metrics: those of the paper, and further ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from textwrap import wrap

from huefield.evaluation.bootstrap import Interval, coverage_name
from huefield.evaluation.paper_metrics import AbstractMetrics
from huefield.evaluation.slices import Evaluation
from huefield.evaluation.summaries import MetricSummary
from huefield.evaluation.sums import COVERAGES
from huefield.support.names import latex_text, markdown_text, one_line

UNKNOWN = "–"
UNITS_NOTE = "Energies (E) in eV, force components (F) in eV/Å."
TAILS_EXPLANATION = (
    "ν, the degrees of freedom, says how heavy the tails are: the smaller ν, the more often an error is many times σ; "
    "for large ν errors are normal. NLL, CRPS and coverage use this distribution, with the standard deviation σ."
)


@dataclass(frozen=True)
class Metric:
    """A column of a table."""

    heading: str
    value: Callable[[MetricSummary], float]
    interval: str
    """Name of its confidence interval."""
    digits: int | None = 2
    """Digits after the decimal point; None for three significant digits, used for values with a unit."""
    better: str = ""
    """Arrow that says whether smaller or larger is better."""
    unit: float = 1.0
    """Unit of the value relative to that of the interval: 0.01 for percent."""

    def text(self, found: AbstractMetrics | None) -> str:
        """The number, or a dash for no value."""
        return UNKNOWN if found is None else number(self.value(found), self.digits)  # type: ignore[arg-type]

    def interval_text(self, found: MetricSummary | None) -> str:
        """Both ends of the interval, or an empty text."""
        return interval_text(None if found is None else found.interval(self.interval), self.digits, self.unit)


def _metric(heading: str, name: str, digits: int | None = 2, better: str = "") -> Metric:
    return Metric(heading, lambda found: float(getattr(found, name)), name, digits, better)


def _coverage(nominal: float) -> Metric:
    def value(found: MetricSummary) -> float:
        observed = [100 * entry.observed for entry in found.coverage if abs(entry.nominal - nominal) < 1e-9]
        return observed[0] if observed else float("nan")

    return Metric(f"{100 * nominal:.0f} %", value, coverage_name(nominal), 1, unit=0.01)


PAPER_METRICS = (
    _metric("MAE", "mae", None, "↓"),
    _metric("RMSE", "rmse", None, "↓"),
    _metric("NLL", "nll", 2, "↓"),
    _metric("RZV", "rzv"),
    _metric("ENCE", "ence", 2, "↓"),
    _metric("CV", "cv"),
    _metric("RMV", "rmv", None),
)
MORE_METRICS = (
    _metric("CRPS", "crps", None, "↓"),
    _metric("miscal. area", "miscalibration_area", 3, "↓"),
    _metric("rank corr.", "rank_correlation", 2, "↑"),
    _metric("retention area", "retention_area", None, "↓"),
    _metric("AUROC worst 5 %", "auroc", 2, "↑"),
)
COVERAGE_METRICS = tuple(_coverage(nominal) for nominal in COVERAGES)
TERMINAL_WIDTH = 100
JOINT_DIGITS = 2
"""Digits of the joint NLL after the decimal point."""


def number(value: float, digits: int | None) -> str:
    """A number for a table; a dash for NaN."""
    if not isfinite(value):
        return UNKNOWN
    if digits is not None:
        text = f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.2e}"
    elif value == 0 or 1e-4 <= abs(value) < 1000:
        text = f"{value:#.3g}".rstrip(".")
    else:
        text = f"{value:.2e}"
    return text.replace("-", "−")


def interval_text(ends: Interval | None, digits: int | None, unit: float = 1.0) -> str:
    """Both ends of an interval, or an empty text."""
    if ends is None or not isfinite(ends.low):
        return ""
    return f"{number(ends.low / unit, digits)} to {number(ends.high / unit, digits)}"


def joint_text(evaluation: Evaluation) -> str:
    """Joint NLL, or a dash if it is unknown."""
    return UNKNOWN if evaluation.joint_nll is None else number(evaluation.joint_nll, JOINT_DIGITS)


def joint_interval_text(evaluation: Evaluation) -> str:
    """Both ends of the interval of the joint NLL, or an empty text."""
    return interval_text(evaluation.joint_nll_interval, JOINT_DIGITS)


def tails_text(evaluations: Sequence[Evaluation], shown: Callable[[str], str] = str) -> str:
    """Which errors follow a Student t distribution, with the meaning of ν; empty if all are normal.

    Args:
        evaluations: of the models.
        shown: how to write the name of a model.
    """
    sentences = []
    for e in evaluations:
        found = (("energies", e.energy), ("forces", e.forces))
        known = [f"ν = {s.dof:.3g} for {name}" for name, s in found if s is not None and s.dof is not None]
        sentences += [f"{shown(e.name)}: errors follow a Student t with {' and '.join(known)}."] if known else []
    return " ".join([*sentences, TAILS_EXPLANATION]) if sentences else ""


def markdown_table(evaluations: Sequence[Evaluation]) -> str:
    """The paper's table with one row per model, and a second one with 95 % confidence intervals if there are any.

    If there are several data sets, a further table has a row for each of them. The last column is the joint NLL, if
    it is known for any model.
    """
    joint = any(e.joint_nll is not None for e in evaluations)
    first, *others = (metric.heading for metric in PAPER_METRICS)
    heads = [head for letter in "EF" for head in (f"{letter}: {first}", *others)] + ["joint NLL"] * joint
    numbers = [[m.text(s) for s in (e.energy, e.forces) for m in PAPER_METRICS] for e in evaluations]
    values = [row + [joint_text(e)] * joint for row, e in zip(numbers, evaluations, strict=True)]
    names = [markdown_text(e.name) for e in evaluations]
    note = f"{UNITS_NOTE}\n\n"
    tails = f"\n{text}\n" if (text := tails_text(evaluations, markdown_text)) else ""
    tails = _markdown_datasets(heads[: 2 * len(PAPER_METRICS)], evaluations) + tails
    if not has_intervals(evaluations):
        return note + _markdown(heads, names, values) + tails
    texts = [[m.interval_text(s) for s in (e.energy, e.forces) for m in PAPER_METRICS] for e in evaluations]
    ends = [row + [joint_interval_text(e)] * joint for row, e in zip(texts, evaluations, strict=True)]
    ends = [[text or UNKNOWN for text in row] for row in ends]
    second = "\n95 % confidence intervals from resampled structures:\n\n"
    return note + _markdown(heads, names, values) + second + _markdown(heads, names, ends) + tails


def narrow_table(evaluations: Sequence[Evaluation]) -> str:
    """The paper's metrics for a terminal: a row per metric, a column per quantity and model."""
    of_energies = [(f"E: {e.name}", e.energy) for e in evaluations if e.energy is not None]
    of_forces = [(f"F: {e.name}", e.forces) for e in evaluations if e.forces is not None]
    columns = [*of_energies, *of_forces]
    lines = _narrow_lines(columns)
    if any(e.joint_nll is not None for e in evaluations):
        lines.append("joint NLL: " + ", ".join(f"{e.name} {joint_text(e)}" for e in evaluations))
    if text := tails_text(evaluations):
        lines += ["", *wrap(text, TERMINAL_WIDTH)]
    for tag in dict.fromkeys(each.label for e in evaluations for each in e.datasets):
        found = [(e.name, each) for e in evaluations for each in e.datasets if each.label == tag]
        parts = [(f"E: {name}", each.energy) for name, each in found if each.energy is not None]
        parts += [(f"F: {name}", each.forces) for name, each in found if each.forces is not None]
        lines += ["", f"Data set {tag}:", *_narrow_lines(parts)]
    return "\n".join([UNITS_NOTE, "", *lines, ""])


def _narrow_lines(columns: Sequence[tuple[str, AbstractMetrics]]) -> list[str]:
    """A line of headings and one for each of the paper's metrics."""
    rows = [["", *(head for head, _ in columns)]]
    rows += [[metric.heading, *(metric.text(found) for _, found in columns)] for metric in PAPER_METRICS]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def _markdown_datasets(heads: Sequence[str], evaluations: Sequence[Evaluation]) -> str:
    """A table with a row for each data set of each model; empty if there is only one data set."""
    found = [(f"{e.name}, {each.label}", (each.energy, each.forces)) for e in evaluations for each in e.datasets]
    if not found:
        return ""
    values = [[m.text(part) for part in parts for m in PAPER_METRICS] for _, parts in found]
    return "\nBy data set:\n\n" + _markdown(heads, [markdown_text(name) for name, _ in found], values)


def latex_table(evaluations: Sequence[Evaluation]) -> str:
    """The paper's table for LaTeX with booktabs: energies above forces, with intervals below the numbers if any."""
    head = " & ".join(m.heading + m.better.replace("↓", "$\\downarrow$") for m in PAPER_METRICS)
    parts = []
    for title, field in (("Energy (eV)", "energy"), ("Forces (eV/\\AA)", "forces")):
        named = [(e.name, getattr(e, field)) for e in evaluations]
        named += [(f"{e.name}, {each.label}", getattr(each, field)) for e in evaluations for each in e.datasets]
        found = [(name, summary) for name, summary in named if summary is not None]
        if found:
            rows = "\n".join(_latex_rows(name, summary) for name, summary in found)
            top = f"& \\multicolumn{{{len(PAPER_METRICS)}}}{{c}}{{\\bf {title}}} \\\\"
            parts.append(
                f"{top}\n\\cmidrule(lr){{2-{len(PAPER_METRICS) + 1}}}\n\\bf Model & {head} \\\\\n\\midrule\n{rows}"
            )
    body = "\n\\midrule\n".join(parts)
    tails = f"% {text}\n" if (text := tails_text(evaluations, one_line)) else ""
    return (
        f"{tails}\\begin{{tabular}}{{l{'r' * len(PAPER_METRICS)}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
    )


def has_intervals(evaluations: Sequence[Evaluation]) -> bool:
    """Whether there are confidence intervals."""
    return any(found is not None and found.intervals for e in evaluations for found in (e.energy, e.forces))


def markdown_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], first: str = "model") -> str:
    """A table whose first column, headed ``first``, is left-aligned; all others are right-aligned.

    Cells are Markdown: escape names with :func:`huefield.support.names.markdown_text`.
    """
    lines = [[first, *heads], ["---", *["---:"] * len(heads)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _markdown(heads: Sequence[str], names: Sequence[str], values: Sequence[Sequence[str]]) -> str:
    return markdown_rows(heads, [[name, *row] for name, row in zip(names, values, strict=True)])


def _latex_rows(name: str, found: AbstractMetrics) -> str:
    row = " & ".join([latex_text(name), *(_latex_number(m.text(found)) for m in PAPER_METRICS)])
    if not isinstance(found, MetricSummary) or not found.intervals:
        return f"{row} \\\\"
    ends = (_latex_number(m.interval_text(found).replace(" to ", ", ")) for m in PAPER_METRICS)
    return f"{row} \\\\\n" + " & ".join(["", *(f"{{\\tiny [{e}]}}" if e else "" for e in ends)]) + " \\\\"


def _latex_number(text: str) -> str:
    return text.replace(UNKNOWN, "--").replace("−", "$-$")
