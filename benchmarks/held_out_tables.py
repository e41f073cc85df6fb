"""Tables of new_structures.py: means over parts of the data or over seeds, and a bootstrap over groups."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

DATA = ("bundled", "acac", "3bpa", "ani1x", "transition1x", "ethanol")
METHODS = {
    "members": "members alone, one factor",
    "llpr": "last-layer rigidity",
    "scale": "one factor",
    "isotonic": "isotonic",
    "without": "coherent, without distances",
    "with": "coherent, with distances",
}
SHOWN = (0.68, 0.95)
HELD = ["E: 68/95 % hold", "RZV", "NLL", "ΔE: hold", "F: hold", "RZV", "NLL", "width", "joint NLL"]
RANKED = [
    f"{quantity}: {name}" for quantity in "EF" for name in ("CRPS", "interval score", "ENCE", "Spearman", "AUROC")
]
RESAMPLES = 2000

Scores = list[dict[str, Any]]
"""Scores of one method on one test, for each part of the data or seed."""


def tables(results: dict[str, Any]) -> str:
    """Markdown: all tables."""
    return "\n\n".join(tables_of_page(results).values())


def tables_of_page(results: dict[str, Any]) -> dict[str, str]:
    """Tables by their places in docs/reproduction/new-structures.md."""
    return {
        "new structures": coverage_table(results),
        "groups": group_table(results),
        "ranking": ranking_table(results),
    }


def coverage_table(results: dict[str, Any]) -> str:
    """How often intervals hold, and likelihoods."""

    def cells(found: Scores, home: Scores, at_home: bool) -> list[str]:
        widths = [
            each["forces"]["width"] / other["forces"]["width"]
            for each, other in zip(found, home, strict=True)
            if "forces" in each
        ]
        joint = [each["joint_nll"] for each in found if each.get("joint_nll") is not None]
        return [
            _held(found, "energy"), _mean(found, "energy", "rzv"), _mean(found, "energy", "nll"),
            _held(found, "differences"),
            _held(found, "forces"), _mean(found, "forces", "rzv"), _mean(found, "forces", "nll"),
            _number(widths) if widths and at_home else "–",
            _number(joint, 1) if joint else "–",
        ]  # fmt: skip

    return _table(results, HELD, cells)


def ranking_table(results: dict[str, Any]) -> str:
    """Proper scores, and whether large error bars are where large errors are."""

    def cells(found: Scores, home: Scores, at_home: bool) -> list[str]:
        keys = (("crps", 3), ("interval_score", 2), ("ence", 2), ("rank_correlation", 2), ("auroc", 2))
        return [_mean(found, name, key, digits) for name in ("energy", "forces") for key, digits in keys]

    return _table(results, RANKED, cells)


def group_table(results: dict[str, Any]) -> str:
    """Coverage of new groups, with 95 % intervals of a bootstrap over groups, for each deal of the bundled data."""
    lines = ["| new groups of | groups | E: 68 % | E: 95 % | F: 68 % | F: 95 % |", "|---|---:|---:|---:|---:|---:|"]
    for deal in sorted({row.split()[-1][0] for row in results if row.startswith("bundled")}):
        found = [row["tests"]["new groups"]["with"] for name, row in results.items() if f"part {deal}" in name]
        groups = [counts for each in found for counts in each["groups"].values()]
        cells = [_resampled(groups, name, index) for name in ("energy", "forces") for index in range(len(SHOWN))]
        lines.append(f"| deal {deal} | {len(groups)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _table(results: dict[str, Any], heads: list[str], cells: Callable[[Scores, Scores, bool], list[str]]) -> str:
    lines = ["| " + " | ".join(["test", "error bars", *heads]) + " |", "|---|---|" + "---:|" * len(heads)]
    for name, title, rows, home in _tests(results):
        for method, label in METHODS.items():
            made = cells([row[title][method] for row in rows], [row[home]["without"] for row in rows], title == home)
            lines.append(f"| {name}: {title} | {label} | {' | '.join(made)} |")
    return "\n".join(lines)


def _tests(results: dict[str, Any]) -> Iterator[tuple[str, str, list[dict[str, Any]], str]]:
    """Data set, test, scores of all its rows, and the test of structures like those of training."""
    for name in DATA:
        rows = [found["tests"] for row, found in results.items() if row.startswith(name)]
        for title in rows[0] if rows else ():
            yield name, title, rows, next(iter(rows[0]))


def _held(found: Scores, name: str) -> str:
    if name not in found[0]:
        return "–"
    return "/".join(f"{100 * np.mean([each[name]['coverage'][str(c)] for each in found]):.0f}" for c in SHOWN)


def _mean(found: Scores, name: str, key: str, digits: int = 2) -> str:
    return _number([each[name][key] for each in found], digits) if name in found[0] else "–"


def _number(values: list[float], digits: int = 2) -> str:
    return f"{np.mean(values):.{digits}f}".replace("-", "−")


def _resampled(groups: list[dict[str, list[int]]], name: str, index: int) -> str:
    """Share within intervals over all groups, and its interval."""
    held, count = np.array([(group[name][index], group[name][-1]) for group in groups]).T
    drawn = np.random.default_rng(0).integers(len(groups), size=(RESAMPLES, len(groups)))
    low, high = np.quantile(held[drawn].sum(1) / count[drawn].sum(1), [0.025, 0.975])
    return f"{100 * held.sum() / count.sum():.0f} ({100 * low:.0f} to {100 * high:.0f})"
