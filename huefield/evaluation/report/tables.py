"""Tables of metrics: those of the paper, and further ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from textwrap import wrap

from huefield.evaluation.bootstrap import Interval, coverage_name
from huefield.evaluation.paper_metrics import AbstractMetrics, PaperMetrics
from huefield.evaluation.slices import Evaluation, Slice
from huefield.evaluation.summaries import MetricSummary
from huefield.evaluation.sums import COVERAGES
from huefield.support.names import latex_text, markdown_text, one_line

UNKNOWN = "–"
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

    def text(self, found: AbstractMetrics | None, scale: float = 1.0) -> str:
        """The number, or a dash for no value; those that have a unit are multiplied by ``scale``."""
        if found is None:
            return UNKNOWN
        return number(self._factor(scale) * self.value(found), self.digits)  # type: ignore[arg-type]

    def interval_text(self, found: MetricSummary | None, scale: float = 1.0) -> str:
        """Both ends of the interval, or an empty text."""
        ends = None if found is None else found.interval(self.interval)
        return interval_text(ends, self.digits, self.unit / self._factor(scale))

    def _factor(self, scale: float) -> float:
        return scale if self.digits is None else 1.0


@dataclass(frozen=True)
class TabulatedQuantity:
    """A quantity of tables."""

    letter: str
    field: str
    """Name of the attribute of evaluations and slices."""
    words: str
    """For the note on units, with the letter."""
    title: str
    unit: str
    latex: str
    scale: float = 1.0
    """Unit of the metrics relative to that of the table."""
    optional: bool = False
    """Whether it is shown only if it is known."""

    def summary(self, evaluation: Evaluation) -> MetricSummary | None:
        """Metrics of this quantity."""
        found: MetricSummary | None = getattr(evaluation, self.field)
        return found

    def scores(self, part: Slice) -> PaperMetrics | None:
        """Metrics of this quantity for a part of the data."""
        found: PaperMetrics | None = getattr(part, self.field)
        return found


TABULATED = (
    TabulatedQuantity("E", "energy", "Energies (E) in eV", "Energies", "eV", "Energy (eV)"),
    TabulatedQuantity(
        "E/N", "energy_per_atom", "energies per atom (E/N) in meV", "Energies per atom", "meV", "Energy per atom (meV)",
        scale=1e3, optional=True,
    ),
    TabulatedQuantity("F", "forces", "force components (F) in eV/Å", "Force components", "eV/Å", "Forces (eV/\\AA)"),
    TabulatedQuantity(
        "S", "stress", "stress components (S) in eV/Å³ (1 eV/Å³ = 160.2 GPa)", "Stress components", "eV/Å³",
        "Stress (eV/\\AA$^3$)", optional=True,
    ),
)  # fmt: skip
"""All quantities; those of crystals are shown if there are crystals."""


def shown_quantities(evaluations: Sequence[Evaluation]) -> tuple[TabulatedQuantity, ...]:
    """Energies, forces, and whatever else is known for any model."""
    return tuple(q for q in TABULATED if not q.optional or any(q.summary(e) is not None for e in evaluations))


def units_note(evaluations: Sequence[Evaluation]) -> str:
    """Letters and units of all quantities of a table."""
    return f"{', '.join(quantity.words for quantity in shown_quantities(evaluations))}."


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
        found = (("energies", e.energy), ("forces", e.forces), ("stresses", e.stress))
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
    quantities = shown_quantities(evaluations)
    heads = [head for q in quantities for head in (f"{q.letter}: {first}", *others)] + ["joint NLL"] * joint
    numbers = [[m.text(q.summary(e), q.scale) for q in quantities for m in PAPER_METRICS] for e in evaluations]
    values = [row + [joint_text(e)] * joint for row, e in zip(numbers, evaluations, strict=True)]
    names = [markdown_text(e.name) for e in evaluations]
    note = f"{units_note(evaluations)}\n\n"
    tails = f"\n{text}\n" if (text := tails_text(evaluations, markdown_text)) else ""
    tails = _markdown_datasets(heads[: len(quantities) * len(PAPER_METRICS)], evaluations) + tails
    if not has_intervals(evaluations):
        return note + _markdown(heads, names, values) + tails
    texts = [[m.interval_text(q.summary(e), q.scale) for q in quantities for m in PAPER_METRICS] for e in evaluations]
    ends = [row + [joint_interval_text(e)] * joint for row, e in zip(texts, evaluations, strict=True)]
    ends = [[text or UNKNOWN for text in row] for row in ends]
    second = "\n95 % confidence intervals from resampled structures:\n\n"
    return note + _markdown(heads, names, values) + second + _markdown(heads, names, ends) + tails


def narrow_table(evaluations: Sequence[Evaluation]) -> str:
    """The paper's metrics for a terminal: a row per metric, a column per quantity and model."""
    quantities = shown_quantities(evaluations)
    columns = [
        (f"{q.letter}: {e.name}", found, q.scale)
        for q in quantities
        for e in evaluations
        if (found := q.summary(e)) is not None
    ]
    lines = _narrow_lines(columns)
    if any(e.joint_nll is not None for e in evaluations):
        lines.append("joint NLL: " + ", ".join(f"{e.name} {joint_text(e)}" for e in evaluations))
    if text := tails_text(evaluations):
        lines += ["", *wrap(text, TERMINAL_WIDTH)]
    for tag in dict.fromkeys(each.label for e in evaluations for each in e.datasets):
        named = [(e.name, each) for e in evaluations for each in e.datasets if each.label == tag]
        parts = [
            (f"{q.letter}: {name}", scores, q.scale)
            for q in quantities
            for name, each in named
            if (scores := q.scores(each)) is not None
        ]
        lines += ["", f"Data set {tag}:", *_narrow_lines(parts)]
    return "\n".join([units_note(evaluations), "", *lines, ""])


def _narrow_lines(columns: Sequence[tuple[str, AbstractMetrics, float]]) -> list[str]:
    """A line of headings and one for each of the paper's metrics."""
    rows = [["", *(head for head, _, _ in columns)]]
    rows += [[metric.heading, *(metric.text(found, scale) for _, found, scale in columns)] for metric in PAPER_METRICS]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def _markdown_datasets(heads: Sequence[str], evaluations: Sequence[Evaluation]) -> str:
    """A table with a row for each data set of each model; empty if there is only one data set."""
    found = [(f"{e.name}, {each.label}", each) for e in evaluations for each in e.datasets]
    if not found:
        return ""
    quantities = shown_quantities(evaluations)
    values = [[m.text(q.scores(each), q.scale) for q in quantities for m in PAPER_METRICS] for _, each in found]
    return "\nBy data set:\n\n" + _markdown(heads, [markdown_text(name) for name, _ in found], values)


def latex_table(evaluations: Sequence[Evaluation]) -> str:
    """The paper's table for LaTeX with booktabs: a part for each quantity, with intervals below the numbers if any."""
    head = " & ".join(m.heading + m.better.replace("↓", "$\\downarrow$") for m in PAPER_METRICS)
    parts = []
    for quantity in shown_quantities(evaluations):
        named: list[tuple[str, AbstractMetrics | None]] = [(e.name, quantity.summary(e)) for e in evaluations]
        named += [(f"{e.name}, {each.label}", quantity.scores(each)) for e in evaluations for each in e.datasets]
        found = [(name, summary) for name, summary in named if summary is not None]
        if found:
            rows = "\n".join(_latex_rows(name, summary, quantity.scale) for name, summary in found)
            top = f"& \\multicolumn{{{len(PAPER_METRICS)}}}{{c}}{{\\bf {quantity.latex}}} \\\\"
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
    summaries = (quantity.summary(e) for e in evaluations for quantity in TABULATED)
    return any(found is not None and found.intervals for found in summaries)


def markdown_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], first: str = "model") -> str:
    """A table whose first column, headed ``first``, is left-aligned; all others are right-aligned.

    Cells are Markdown: escape names with :func:`huefield.support.names.markdown_text`.
    """
    lines = [[first, *heads], ["---", *["---:"] * len(heads)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _markdown(heads: Sequence[str], names: Sequence[str], values: Sequence[Sequence[str]]) -> str:
    return markdown_rows(heads, [[name, *row] for name, row in zip(names, values, strict=True)])


def _latex_rows(name: str, found: AbstractMetrics, scale: float) -> str:
    row = " & ".join([latex_text(name), *(_latex_number(m.text(found, scale)) for m in PAPER_METRICS)])
    if not isinstance(found, MetricSummary) or not found.intervals:
        return f"{row} \\\\"
    ends = (_latex_number(m.interval_text(found, scale).replace(" to ", ", ")) for m in PAPER_METRICS)
    return f"{row} \\\\\n" + " & ".join(["", *(f"{{\\tiny [{e}]}}" if e else "" for e in ends)]) + " \\\\"


def _latex_number(text: str) -> str:
    return text.replace(UNKNOWN, "--").replace("−", "$-$")
