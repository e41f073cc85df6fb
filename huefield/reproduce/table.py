"""Results of all rows and seeds of a data set: means over seeds, intervals, and differences between rows."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan, sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.stats import t as student

from huefield.evaluation.report.tables import PAPER_METRICS, UNKNOWN, Metric, markdown_rows, number
from huefield.reproduce.plan import AbstractSize, Job
from huefield.reproduce.published import METRICS, PUBLISHED
from huefield.reproduce.rows import ROWS
from huefield.reproduce.settings import same_settings
from huefield.reproduce.sources import AbstractSource
from huefield.reproduce.work import KEPT, RESULT, TAILS
from huefield.support.errors import HuefieldError
from huefield.support.files import read_json, write_bytes
from huefield.support.plain import rounded

ScoredQuantity = Literal["energy", "forces", "joint"]
"""``joint`` means the energy and all forces of a structure together; it has an NLL only."""
QUANTITIES: tuple[ScoredQuantity, ...] = ("energy", "forces")
AFTER = {
    "none": "as trained",
    "scale": "one factor",
    "isotonic": "isotonic",
    "conformal": "conformal",
    "coherent": "coherent",
    "gamma": "γ only",
}
"""Titles of the calibrations; the first is no calibration."""
METHODS = tuple(AFTER)
REFERENCE = "white"
"""Row that the others are compared with."""
JOINT = {"joint NLL": None, "minus white": REFERENCE, "minus pooled": "white-pooled"}
"""Columns of the joint NLL: the value, and the difference to plain and to pooled white noise."""
CONFIDENCE = 0.95
DIGITS = 4
"""Significant digits of saved numbers."""


@dataclass(frozen=True)
class SeedMean:
    """Mean over seeds with its confidence interval."""

    mean: float
    margin: float
    """Half width of the 95 % interval by Student's t; NaN for a single seed."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "SeedMean":
        """Compute it from one number per seed."""
        if not values or not all(map(isfinite, values)):
            return cls(nan, nan)
        count = len(values)
        if count == 1:
            return cls(values[0], nan)
        quantile = float(student.ppf(0.5 + 0.5 * CONFIDENCE, count - 1))
        return cls(float(np.mean(values)), quantile * float(np.std(values, ddof=1)) / sqrt(count))

    def text(self, digits: int | None) -> str:
        """Format the mean, with ± margin if there is one."""
        if not isfinite(self.mean):
            return UNKNOWN
        margin = f" ± {number(self.margin, digits)}" if isfinite(self.margin) else ""
        return number(self.mean, digits) + margin


@dataclass(frozen=True)
class Table:
    """All results on one data set."""

    source: str
    title: str
    tests: dict[str, str]
    """Titles of the test sets by name; the first has the distribution of the training data."""
    results: dict[str, dict[int, dict[str, Any]]]
    """Contents of the result files by row and seed."""
    left_out: tuple[str, ...] = ()
    """Results that were ignored, with the reason, one line each."""

    @classmethod
    def collected(cls, source: AbstractSource, size: AbstractSize, out: Path) -> "Table":
        """Collect the results in a folder that were made with the current settings."""
        results: dict[str, dict[int, dict[str, Any]]] = {}
        left_out = []
        for name, row in ROWS.items():
            for path in sorted((out / source.name).glob(f"seed-*/{name}/{RESULT}")):
                found = read_json(path)
                if same_settings(found.get("settings"), Job(source, found["seed"], row), size, out):
                    results.setdefault(name, {})[found["seed"]] = found
                else:
                    left_out.append(f"{row.title}, seed {found['seed']}, has other settings and is ignored: {path}")
        return cls(source.name, source.title, titles_of_tests(source), results, tuple(left_out))

    @property
    def rows(self) -> list[str]:
        """Names of the rows that have results."""
        return list(self.results)

    @property
    def first_test(self) -> str:
        """The test set with the distribution of the training data."""
        return next(iter(self.tests))

    def titled(self, row: str) -> str:
        """Title of a row, with its number of seeds if other rows have more."""
        count, most = len(self.seeds(row)), max(len(self.seeds(other)) for other in self.results)
        return ROWS[row].title + ("" if count == most else f" ({count} of {most} seeds)")

    def warnings(self) -> list[str]:
        """One line for each row that failed, was ignored, or started from different means."""
        failed = [
            f"{ROWS[row].title}, seed {seed}, failed and is ignored: {found['failed']}"
            for row, seeds in self.results.items()
            for seed, found in seeds.items()
            if "failed" in found
        ]
        return [*failed, *self.left_out, *self._different_means()]

    def _different_means(self) -> Iterator[str]:
        for seed in sorted({seed for seeds in self.results.values() for seed in seeds}):
            rows: dict[str, list[str]] = {}
            for row, seeds in self.results.items():
                if "mean_digest" in seeds.get(seed, {}):
                    rows.setdefault(seeds[seed]["mean_digest"], []).append(ROWS[row].title)
            if len(rows) > 1:
                groups = " | ".join("; ".join(titles) for titles in rows.values())
                yield f"seed {seed}: rows started from different means and cannot be compared well: {groups}"

    def remarks(self) -> list[str]:
        """Remarks on calibrations, each once with the rows it applies to."""
        found: dict[str, list[str]] = {}
        for row in self.results:
            for seed in self.seeds(row):
                for method, told in self.results[row][seed].get("remarks", {}).items():
                    for text in told:
                        rows = found.setdefault(f"{AFTER[method]}: {text}", [])
                        rows += [] if ROWS[row].title in rows else [ROWS[row].title]
        return [
            f"{text} ({'all rows' if len(rows) == len(self.rows) else '; '.join(rows)})" for text, rows in found.items()
        ]

    def seeds(self, row: str) -> list[int]:
        """Seeds with which a row was trained to the end."""
        return sorted(seed for seed, found in self.results.get(row, {}).items() if "failed" not in found)

    def value(self, row: str, seed: int, test: str, method: str, quantity: ScoredQuantity, metric: str) -> float:
        """One number; NaN if it is missing."""
        found = self.results[row][seed]["tests"].get(test, {}).get(method) or {}
        scores = {"nll": found.get("joint_nll")} if quantity == "joint" else found.get(quantity)
        value = None if scores is None else scores.get(metric)
        return nan if value is None else float(value)

    def values(
        self,
        row: str,
        test: str,
        quantity: ScoredQuantity,
        metric: str,
        *,
        method: str = "none",
        less: str | None = None,
    ) -> list[float]:
        """One number per seed, or the differences to row ``less`` for the seeds that both rows have."""
        seeds = self.seeds(row) if less is None else sorted(set(self.seeds(row)) & set(self.seeds(less)))
        found = [self.value(row, seed, test, method, quantity, metric) for seed in seeds]
        if less is None:
            return found
        return [v - self.value(less, s, test, method, quantity, metric) for v, s in zip(found, seeds, strict=True)]

    def mean(
        self,
        row: str,
        test: str,
        quantity: ScoredQuantity,
        metric: str,
        *,
        method: str = "none",
        less: str | None = None,
    ) -> SeedMean:
        """Mean over seeds of a number, or of its differences to row ``less``, seed by seed."""
        return SeedMean.of(self.values(row, test, quantity, metric, method=method, less=less))

    def as_dict(self) -> dict[str, Any]:
        """Convert to JSON types: all scores, and the reliability diagrams of the first test set."""
        return {
            "data": self.source,
            "title": self.title,
            "tests": self.tests,
            "rows": {
                row: {str(seed): self._slim(found) for seed, found in seeds.items()}
                for row, seeds in self.results.items()
            },
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Table":
        """Inverse of :meth:`as_dict`."""
        rows = {row: {int(seed): found for seed, found in seeds.items()} for row, seeds in content["rows"].items()}
        return cls(content["data"], content["title"], content["tests"], rows)

    def save(self, path: Path) -> None:
        """Write the table as JSON."""
        write_bytes(path, (json.dumps(self.as_dict(), ensure_ascii=False) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> "Table":
        """Read a table that :meth:`save` wrote."""
        try:
            return cls.from_dict(read_json(path))
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise HuefieldError(
                f"{path} has no results of a table: give a results.json that huefield reproduce wrote"
            ) from fault

    def _slim(self, found: dict[str, Any]) -> dict[str, Any]:
        if "failed" in found:
            return found
        tests = {
            test: {method: self._scores(scores, test, method) for method, scores in methods.items()}
            for test, methods in found["tests"].items()
        }
        return {**found, "tests": tests}

    def _scores(self, scores: dict[str, Any], test: str, method: str) -> dict[str, Any]:
        drawn = test == self.first_test and method in ("none", "isotonic")
        kept: dict[str, Any] = {
            quantity: scores[quantity]
            and {
                k: rounded(v, DIGITS)
                for k, v in scores[quantity].items()
                if k in (*KEPT, *TAILS) or (drawn and k == "reliability")
            }
            for quantity in QUANTITIES
        }
        return {**kept, "joint_nll": rounded(scores["joint_nll"], DIGITS)}


def paper_table(table: Table) -> str:
    """Format the results like the paper's table, as Markdown, with the published rows below ours."""
    heads = [f"{q}: {m.heading}" if m is PAPER_METRICS[0] else m.heading for q in ("E", "F") for m in PAPER_METRICS]
    lines: list[list[str]] = []
    for row in table.rows:
        values = (table.mean(row, table.first_test, q, name) for q in QUANTITIES for name in METRICS)
        digits = [m.digits for _ in QUANTITIES for m in PAPER_METRICS]
        lines.append([table.titled(row), *(e.text(d) for e, d in zip(values, digits, strict=True))])
    lines += _published_lines()
    return markdown_rows(heads, lines)


def _published_lines() -> Iterator[list[str]]:
    for row in PUBLISHED:
        numbers = [
            (values[name], published_digits(m))
            for values in (row.energy, row.forces)
            for name, m in zip(METRICS, PAPER_METRICS, strict=True)
        ]
        yield [f"*paper, {row.data}: {row.row}*", *(number(value, digits) for value, digits in numbers)]


def published_digits(metric: Metric) -> int:
    """Digits with which the paper prints a metric."""
    return 2 if metric.digits else 3


def comparison_table(table: Table, test: str) -> str:
    """Differences of NLL and ENCE to white noise, RMSE, and joint NLL of each row, as Markdown."""
    heads = ["E: ΔNLL", "ΔENCE", "F: ΔNLL", "ΔENCE", "E RMSE", "F RMSE", *JOINT]
    lines = []
    for row in table.rows:
        changes = [
            table.mean(row, test, quantity, metric, less=REFERENCE).text(3)
            for quantity in QUANTITIES
            for metric in ("nll", "ence")
        ]
        errors = [table.mean(row, test, quantity, "rmse").text(None) for quantity in QUANTITIES]
        joint = [table.mean(row, test, "joint", "nll", less=other).text(2) for other in JOINT.values()]
        lines.append([table.titled(row), *changes, *errors, *joint])
    return markdown_rows(heads, lines)


@dataclass(frozen=True)
class Deviation:
    """Largest difference between the numbers of two tables."""

    largest: float
    """Relative difference; for NLL the difference itself (0.1 is a change of the variance by about a tenth)."""
    where: str
    missing: tuple[str, ...]
    """Rows and seeds that the other table lacks or that failed in one of the two."""


def require_comparable(source: AbstractSource, rows: Iterable[tuple[str, int]], other: Table) -> None:
    """Raise if these rows and seeds have nothing in common with another table."""
    _require_same_tests(Table(source.name, source.title, titles_of_tests(source), {}), other)
    if not any(seed in other.seeds(row) for row, seed in rows):
        raise HuefieldError("the two tables cannot be compared: they have no row and seed in common")


def titles_of_tests(source: AbstractSource) -> dict[str, str]:
    """Titles of a data set's test sets by name."""
    return {test.part: test.title for test in source.tests}


def _require_same_tests(table: Table, other: Table) -> None:
    if (table.source, table.tests) != (other.source, other.tests):
        raise HuefieldError(f"results of {table.title} cannot be compared with those of {other.title}")


def deviation(table: Table, other: Table) -> Deviation:
    """Compare the uncalibrated metrics of the paper's table on all test sets."""
    _require_same_tests(table, other)
    both = {(row, seed) for row in table.rows for seed in table.seeds(row) if seed in other.seeds(row)}
    found = [
        (_apart(ours, theirs, absolute=metric == "nll"), f"{row}, seed {seed}, {test}, {quantity} {metric}")
        for row, seed in sorted(both)
        for test in table.tests
        for quantity in QUANTITIES
        for metric in METRICS
        for ours, theirs in [[t.value(row, seed, test, "none", quantity, metric) for t in (table, other)]]
        if isfinite(ours) or isfinite(theirs)
    ]
    if not found:
        raise HuefieldError("the two tables cannot be compared: they have no number in common")
    alone = [f"{row}, seed {seed}" for row, seeds in table.results.items() for seed in seeds if (row, seed) not in both]
    return Deviation(*max(found), tuple(alone))


def _apart(ours: float, theirs: float, *, absolute: bool) -> float:
    """Difference of two numbers; infinite if only one of them is known."""
    if not (isfinite(ours) and isfinite(theirs)):
        return inf
    return abs(ours - theirs) / (1.0 if absolute else max(abs(theirs), 1e-9))
