"""Tables of metrics in the form of the paper, and of what goes beyond it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from huefield.evaluation.bootstrap import Interval, coverage_name
from huefield.evaluation.scores import Scores
from huefield.evaluation.slices import Evaluation
from huefield.evaluation.summaries import Summary
from huefield.evaluation.sums import COVERAGES

UNKNOWN = "–"
BACKSLASH = "\\textbackslash{}"
LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": BACKSLASH, "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}


@dataclass(frozen=True)
class Metric:
    """A column."""

    heading: str
    value: Callable[[Summary], float]
    interval: str
    """The name of its confidence interval."""
    digits: int | None = 2
    """Behind the point; None for three significant digits, for what has a unit."""
    better: str = ""
    """An arrow where less, or more, is better."""
    unit: float = 1.0
    """By which the ends of the interval are divided to be as the value is: 0.01 for percent."""

    def text(self, found: Summary | Scores | None) -> str:
        """The number, or a dash where there is none."""
        return UNKNOWN if found is None else number(self.value(found), self.digits)  # type: ignore[arg-type]

    def interval_text(self, found: Summary | None) -> str:
        """Low and high end, or nothing."""
        return interval_text(None if found is None else found.interval(self.interval), self.digits, self.unit)


def _metric(heading: str, name: str, digits: int | None = 2, better: str = "") -> Metric:
    return Metric(heading, lambda found: float(getattr(found, name)), name, digits, better)


def _coverage(nominal: float) -> Metric:
    def value(found: Summary) -> float:
        observed = [100 * entry.observed for entry in found.coverage if abs(entry.nominal - nominal) < 1e-9]
        return observed[0] if observed else float("nan")

    return Metric(f"{100 * nominal:.0f} %", value, coverage_name(nominal), 1, unit=0.01)


PAPER = (
    _metric("MAE", "mae", None, "↓"),
    _metric("RMSE", "rmse", None, "↓"),
    _metric("NLL", "nll", 2, "↓"),
    _metric("RZV", "rzv"),
    _metric("ENCE", "ence", 2, "↓"),
    _metric("CV", "cv"),
    _metric("RMV", "rmv", None),
)
BEYOND = (
    _metric("CRPS", "crps", None, "↓"),
    _metric("miscal. area", "miscalibration_area", 3, "↓"),
    _metric("rank corr.", "rank_correlation", 2, "↑"),
    _metric("retention area", "retention_area", None, "↓"),
    _metric("AUROC worst 5 %", "auroc", 2, "↑"),
)
COVERAGE = tuple(_coverage(level) for level in COVERAGES)
JOINT_DIGITS = 2
"""Of the joint NLL, behind the point."""


def number(value: float, digits: int | None) -> str:
    """A number as people write it; a dash for NaN."""
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
    """Low and high end, or nothing."""
    if ends is None or not isfinite(ends.low):
        return ""
    return f"{number(ends.low / unit, digits)} to {number(ends.high / unit, digits)}"


def joint_text(evaluation: Evaluation) -> str:
    """The joint NLL, or a dash where it is not known."""
    return UNKNOWN if evaluation.joint_nll is None else number(evaluation.joint_nll, JOINT_DIGITS)


def joint_interval_text(evaluation: Evaluation) -> str:
    """Low and high end of the joint NLL, or nothing."""
    return interval_text(evaluation.joint_nll_interval, JOINT_DIGITS)


def markdown_table(evaluations: Sequence[Evaluation]) -> str:
    """The paper's table, one row for each model; a second one with 95 % intervals where there are some.

    Where the joint NLL of a model is known, it is in a column at the end.
    """
    joint = any(e.joint_nll is not None for e in evaluations)
    heads = [f"{quantity}: {m.heading}" if m is PAPER[0] else m.heading for quantity in ("E", "F") for m in PAPER]
    heads += ["joint NLL"] * joint
    values = [[m.text(s) for s in (e.energy, e.forces) for m in PAPER] + [joint_text(e)] * joint for e in evaluations]
    names = [e.name.replace("|", "\\|") for e in evaluations]
    note = "Energies (E) in eV, force components (F) in eV/Å.\n\n"
    if not has_intervals(evaluations):
        return note + _markdown(heads, names, values)
    texts = [[m.interval_text(s) for s in (e.energy, e.forces) for m in PAPER] for e in evaluations]
    ends = [row + [joint_interval_text(e)] * joint for row, e in zip(texts, evaluations, strict=True)]
    ends = [[text or UNKNOWN for text in row] for row in ends]
    second = "\n95 % intervals, from resampled structures:\n\n"
    return note + _markdown(heads, names, values) + second + _markdown(heads, names, ends)


def latex_table(evaluations: Sequence[Evaluation]) -> str:
    """The paper's table for LaTeX with booktabs, energies above forces; intervals under the numbers where there are."""
    head = " & ".join(m.heading + m.better.replace("↓", "$\\downarrow$") for m in PAPER)
    parts = []
    for title, field in (("Energy (eV)", "energy"), ("Forces (eV/\\AA)", "forces")):
        found = [(e.name, getattr(e, field)) for e in evaluations if getattr(e, field) is not None]
        if found:
            rows = "\n".join(_latex_rows(name, summary) for name, summary in found)
            top = f"& \\multicolumn{{{len(PAPER)}}}{{c}}{{\\bf {title}}} \\\\"
            parts.append(f"{top}\n\\cmidrule(lr){{2-{len(PAPER) + 1}}}\n\\bf Model & {head} \\\\\n\\midrule\n{rows}")
    body = "\n\\midrule\n".join(parts)
    return f"\\begin{{tabular}}{{l{'r' * len(PAPER)}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"


def has_intervals(evaluations: Sequence[Evaluation]) -> bool:
    """Whether any number comes with its confidence interval."""
    return any(found is not None and found.intervals for e in evaluations for found in (e.energy, e.forces))


def markdown_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], first: str = "model") -> str:
    """A table whose rows begin with a name, which the head calls ``first``; all else is aligned to the right."""
    lines = [[first, *heads], ["---", *["---:"] * len(heads)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _markdown(heads: Sequence[str], names: Sequence[str], values: Sequence[Sequence[str]]) -> str:
    return markdown_rows(heads, [[name, *row] for name, row in zip(names, values, strict=True)])


def _latex_rows(name: str, found: Summary) -> str:
    row = " & ".join([_escaped(name), *(_latex_number(m.text(found)) for m in PAPER)])
    if not found.intervals:
        return f"{row} \\\\"
    ends = (_latex_number(m.interval_text(found).replace(" to ", ", ")) for m in PAPER)
    return f"{row} \\\\\n" + " & ".join(["", *(f"{{\\tiny [{e}]}}" if e else "" for e in ends)]) + " \\\\"


def _latex_number(text: str) -> str:
    return text.replace(UNKNOWN, "--").replace("−", "$-$")


def _escaped(name: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in name)
