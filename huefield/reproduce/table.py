"""Results of all rows and seeds of a data set, put together: means, intervals, differences."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan, sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.stats import t as student

from huefield.evaluation.report.tables import PAPER, UNKNOWN, Metric, markdown_rows, number
from huefield.reproduce.plan import AbstractSize, Job
from huefield.reproduce.published import METRICS, PUBLISHED
from huefield.reproduce.rows import ROWS
from huefield.reproduce.settings import made_so
from huefield.reproduce.sources import AbstractSource
from huefield.reproduce.work import KEPT, RESULT
from huefield.support.errors import HuefieldError
from huefield.support.files import write_bytes
from huefield.support.plain import rounded

Quantity = Literal["energy", "forces", "joint"]
"""``joint`` is of the energy and all forces of a structure together, and has an NLL only."""
QUANTITIES: tuple[Quantity, ...] = ("energy", "forces")
AFTER = {
    "none": "as trained",
    "scale": "one factor",
    "isotonic": "isotonic",
    "conformal": "conformal",
    "gamma": "γ only",
}
"""Calibrations, of which none is the first, and how people call them."""
METHODS = tuple(AFTER)
REFERENCE = "white"
"""The row that others are compared with."""
JOINT = {"joint NLL": None, "less white": REFERENCE, "less pooled": "white-pooled"}
"""Joint likelihoods as they are, and less those of two rows; pooled white noise is the harder rival."""
CONFIDENCE = 0.95
DIGITS = 4
"""Of numbers that are saved."""


@dataclass(frozen=True)
class Estimate:
    """Of the mean over seeds."""

    mean: float
    margin: float
    """Half the width of its 95 % interval by Student's t; NaN for a single seed."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """From one number of each seed."""
        if not values or not all(map(isfinite, values)):
            return cls(nan, nan)
        count = len(values)
        if count == 1:
            return cls(values[0], nan)
        quantile = float(student.ppf(0.5 + 0.5 * CONFIDENCE, count - 1))
        return cls(float(np.mean(values)), quantile * float(np.std(values, ddof=1)) / sqrt(count))

    def text(self, digits: int | None) -> str:
        """The mean and, where it is known, the margin."""
        if not isfinite(self.mean):
            return UNKNOWN
        margin = f" ± {number(self.margin, digits)}" if isfinite(self.margin) else ""
        return number(self.mean, digits) + margin


@dataclass(frozen=True)
class Table:
    """What was found for one data set."""

    source: str
    title: str
    tests: dict[str, str]
    """Titles by name; the first is like the training data."""
    results: dict[str, dict[int, dict[str, Any]]]
    """By row and seed."""
    left_out: tuple[str, ...] = ()
    """Results that were found and not taken, a line each."""

    @classmethod
    def collected(cls, source: AbstractSource, size: AbstractSize, out: Path) -> "Table":
        """From all results in a folder that were made with the settings of today."""
        results: dict[str, dict[int, dict[str, Any]]] = {}
        left_out = []
        for name, row in ROWS.items():
            for path in sorted((out / source.name).glob(f"seed-*/{name}/{RESULT}")):
                found = json.loads(path.read_text())
                if made_so(found.get("settings"), Job(source, found["seed"], row), size, out):
                    results.setdefault(name, {})[found["seed"]] = found
                else:
                    left_out.append(f"{row.title}, seed {found['seed']}, is of other settings and left out: {path}")
        return cls(source.name, source.title, titles_of_tests(source), results, tuple(left_out))

    @property
    def rows(self) -> list[str]:
        """Those that there are results of."""
        return list(self.results)

    @property
    def first_test(self) -> str:
        """The one that is like the training data."""
        return next(iter(self.tests))

    def titled(self, row: str) -> str:
        """Its title, and how many seeds it has where others have more."""
        count, most = len(self.seeds(row)), max(len(self.seeds(other)) for other in self.results)
        return ROWS[row].title + ("" if count == most else f" ({count} of {most} seeds)")

    def warnings(self) -> list[str]:
        """What readers must know, a line each: rows that failed, are left out, or started from different means."""
        failed = [
            f"{ROWS[row].title}, seed {seed}, failed and is left out: {found['failed']}"
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
                yield f"seed {seed}: rows started from different means, and are hard to compare: {groups}"

    def remarks(self) -> list[str]:
        """What to know about calibrations: each remark once, with the rows that it is about."""
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
        """Of a row that was trained to its end."""
        return sorted(seed for seed, found in self.results.get(row, {}).items() if "failed" not in found)

    def value(self, row: str, seed: int, test: str, method: str, quantity: Quantity, metric: str) -> float:
        """One number; NaN where there is none."""
        found = self.results[row][seed]["tests"].get(test, {}).get(method) or {}
        scores = {"nll": found.get("joint_nll")} if quantity == "joint" else found.get(quantity)
        value = None if scores is None else scores.get(metric)
        return nan if value is None else float(value)

    def values(
        self, row: str, test: str, quantity: Quantity, metric: str, *, method: str = "none", less: str | None = None
    ) -> list[float]:
        """Of each seed; less those of another row, of the seeds that both have."""
        seeds = self.seeds(row) if less is None else sorted(set(self.seeds(row)) & set(self.seeds(less)))
        found = [self.value(row, seed, test, method, quantity, metric) for seed in seeds]
        if less is None:
            return found
        return [v - self.value(less, s, test, method, quantity, metric) for v, s in zip(found, seeds, strict=True)]

    def estimate(
        self, row: str, test: str, quantity: Quantity, metric: str, *, method: str = "none", less: str | None = None
    ) -> Estimate:
        """The mean over seeds, or that of differences to another row, seed by seed."""
        return Estimate.of(self.values(row, test, quantity, metric, method=method, less=less))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: all scores; of the diagrams, those of the first test before and after isotonic regression."""
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
        """Of what :meth:`as_dict` gave."""
        rows = {row: {int(seed): found for seed, found in seeds.items()} for row, seeds in content["rows"].items()}
        return cls(content["data"], content["title"], content["tests"], rows)

    def save(self, path: Path) -> None:
        """As JSON."""
        write_bytes(path, (json.dumps(self.as_dict(), ensure_ascii=False) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> "Table":
        """What :meth:`save` wrote."""
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise HuefieldError(
                f"{path} has no results of a table: give a results.json of huefield reproduce"
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
                if k in KEPT or (drawn and k == "reliability")
            }
            for quantity in QUANTITIES
        }
        return {**kept, "joint_nll": rounded(scores["joint_nll"], DIGITS)}


def paper_table(table: Table) -> str:
    """Markdown in the form of the paper's table, its own rows below ours."""
    heads = [f"{q}: {m.heading}" if m is PAPER[0] else m.heading for q in ("E", "F") for m in PAPER]
    lines: list[list[str]] = []
    for row in table.rows:
        values = (table.estimate(row, table.first_test, q, name) for q in QUANTITIES for name in METRICS)
        digits = [m.digits for _ in QUANTITIES for m in PAPER]
        lines.append([table.titled(row), *(e.text(d) for e, d in zip(values, digits, strict=True))])
    lines += _published_lines()
    return markdown_rows(heads, lines)


def _published_lines() -> Iterator[list[str]]:
    for row in PUBLISHED:
        numbers = [
            (values[name], published_digits(m))
            for values in (row.energy, row.forces)
            for name, m in zip(METRICS, PAPER, strict=True)
        ]
        yield [f"*paper, {row.data}: {row.row}*", *(number(value, digits) for value, digits in numbers)]


def published_digits(metric: Metric) -> int:
    """With how many digits the paper gives it."""
    return 2 if metric.digits else 3


def comparison_table(table: Table, test: str) -> str:
    """Markdown: NLL and ENCE of each row less those of white noise, errors, and joint likelihoods."""
    heads = ["E: ΔNLL", "ΔENCE", "F: ΔNLL", "ΔENCE", "E RMSE", "F RMSE", *JOINT]
    lines = []
    for row in table.rows:
        changes = [
            table.estimate(row, test, quantity, metric, less=REFERENCE).text(3)
            for quantity in QUANTITIES
            for metric in ("nll", "ence")
        ]
        errors = [table.estimate(row, test, quantity, "rmse").text(None) for quantity in QUANTITIES]
        joint = [table.estimate(row, test, "joint", "nll", less=other).text(2) for other in JOINT.values()]
        lines.append([table.titled(row), *changes, *errors, *joint])
    return markdown_rows(heads, lines)


@dataclass(frozen=True)
class Deviation:
    """How far the numbers of a table are from those of another one."""

    largest: float
    """Relative to the other's, of likelihoods the difference itself: 0.1 is a variance off by a tenth or so."""
    where: str
    missing: tuple[str, ...]
    """Rows and seeds that only this table has, or that failed in one of the two."""


def require_comparable(source: AbstractSource, rows: Iterable[tuple[str, int]], other: Table) -> None:
    """Raise if a table of these rows and seeds will have nothing that could be compared with another one."""
    _require_same_tests(Table(source.name, source.title, titles_of_tests(source), {}), other)
    if not any(seed in other.seeds(row) for row, seed in rows):
        raise HuefieldError("the two tables have no row and seed in common that could be compared")


def titles_of_tests(source: AbstractSource) -> dict[str, str]:
    """By the parts of the data that they are made on."""
    return {test.part: test.title for test in source.tests}


def _require_same_tests(table: Table, other: Table) -> None:
    if (table.source, table.tests) != (other.source, other.tests):
        raise HuefieldError(f"results of {table.title} cannot be compared with those of {other.title}")


def deviation(table: Table, other: Table) -> Deviation:
    """Compare the numbers of the paper's table, before calibration, on all tests."""
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
        raise HuefieldError("the two tables have nothing in common that could be compared")
    alone = [f"{row}, seed {seed}" for row, seeds in table.results.items() for seed in seeds if (row, seed) not in both]
    return Deviation(*max(found), tuple(alone))


def _apart(ours: float, theirs: float, *, absolute: bool) -> float:
    """How far a number is from another one; infinitely, if only one of them is known."""
    if not (isfinite(ours) and isfinite(theirs)):
        return inf
    return abs(ours - theirs) / (1.0 if absolute else max(abs(theirs), 1e-9))
