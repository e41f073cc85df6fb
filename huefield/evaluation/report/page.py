"""One page that shows how good models and their uncertainties are. It needs no network: everything is inside."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np
from ase.symbols import Symbols
from jaxtyping import Float

from huefield.core.structure import Structure
from huefield.evaluation.report import panels
from huefield.evaluation.report.figures import CAPTIONS, Caption
from huefield.evaluation.report.markup import Cell, Part, Row, Rows, folded, image, packed, remarks, row_head, table
from huefield.evaluation.report.selection import Selection, StructureScores, choose_structures, grouped_digits
from huefield.evaluation.report.tables import (
    BEYOND,
    COVERAGE,
    PAPER,
    UNKNOWN,
    Metric,
    joint_interval_text,
    joint_text,
    number,
)
from huefield.evaluation.report.viewer import NoViewerError, chemiscope_notices, chemiscope_program, make_viewer
from huefield.evaluation.scores import Scores
from huefield.evaluation.slices import Evaluation, Slice
from huefield.evaluation.summaries import Summary
from huefield.predict.predictions import Predictions
from huefield.support.errors import HuefieldError
from huefield.support.files import write_bytes

SHOWN = 500
"""Structures in the viewer."""
WORST = 10
"""Structures in each table of the worst ones."""
CALIBRATION = "calibration"
"""The figure that has a section of its own."""
QUANTITIES = tuple((f"{quantity.title} ({quantity.unit})", quantity.field) for quantity in panels.QUANTITIES)


def write_report(
    path: Path,
    evaluations: Sequence[Evaluation],
    predictions: Sequence[Predictions],
    *,
    figures: Sequence[Path],
    before: Sequence[Evaluation] = (),
    title: str = "Evaluation",
    notes: Sequence[str] = (),
) -> None:
    """Write the page, whole or not at all.

    Where the program of the viewer cannot be had, a sentence in its place says why.

    Args:
        path: Of the HTML file.
        evaluations: Of the models.
        predictions: Of the same models in the same order. The structures of the last one can be looked at.
        figures: Files of ``save_figures``; those that are PNG are shown.
        before: Evaluations before calibration, under the names of those after it.
        title: Of the page.
        notes: Sentences under the title: data, models, what was left out.
    """
    if not evaluations or len(evaluations) != len(predictions):
        raise HuefieldError(
            f"a report needs one evaluation for the predictions of each model, but there are {len(evaluations)} "
            f"evaluations and {len(predictions)} predictions"
        )
    chosen = choose_structures(predictions[-1], SHOWN) if len(predictions[-1]) else None
    viewer, programs = _viewer(predictions[-1], chosen) if chosen else ("", "")
    parts = [
        Part("metrics", "Metrics", _metrics(evaluations)),
        Part("figures", "Figures", _figures(figures)),
        Part("calibration", "Calibration before and after", _calibration(before, evaluations, figures)),
        Part("worst", "Worst structures", _worst(predictions[-1], chosen) if chosen else ""),
        Part("viewer", "Structures", viewer),
        Part("parts", "Parts of the data", _breakdowns(evaluations)),
    ]
    page = page_of(title, notes, [part for part in parts if part.body], programs)
    write_bytes(path, page.encode())


def page_of(title: str, notes: Sequence[str], parts: Sequence[Part], programs: str = "") -> str:
    """A page that is complete in itself; programs are scripts behind everything else."""
    links = "".join(f'<a href="#{part.name}">{escape(part.title)}</a>' for part in parts)
    lines = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_resource('report.css')}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1>{lines}</header>\n<nav><div>{links}</div></nav>\n<main>\n"
        f"{''.join(part.html() for part in parts)}</main>\n"
        "<footer>Made by huefield. This page is complete in itself and asks for nothing from the network.</footer>\n"
        f"{programs}</body>\n</html>\n"
    )


def _resource(name: str) -> str:
    return files("huefield.evaluation.report").joinpath("assets", name).read_text(encoding="utf-8")


def _viewer(predictions: Predictions, chosen: Selection) -> tuple[str, str]:
    """The section with the viewer, and its programs; the reason and nothing where there are none."""
    try:
        return _panels(predictions, chosen), _programs(predictions, chosen)
    except NoViewerError as reason:
        return f"<p>Structures cannot be shown here: {escape(str(reason))}.</p>", ""


def _programs(predictions: Predictions, chosen: Selection) -> str:
    """Behind everything else, so that the page can be read before they run."""
    notices = chemiscope_notices().replace("--", "- -").replace(">", "&gt;")
    data = packed("chemiscope-data", make_viewer(predictions, chosen).as_json())
    program = packed("chemiscope-program", chemiscope_program())
    return f"<!--\n{notices}\n-->\n{program}{data}<script>\n{_resource('viewer.js')}</script>\n"


def _metrics(evaluations: Sequence[Evaluation]) -> str:
    more = _table_of(evaluations, BEYOND)
    coverage = _table_of(evaluations, COVERAGE)
    return (
        "<p>Energies are compared for whole structures, forces by their components. RZV is the standard deviation of "
        "the z-scores, errors divided by σ, and ought to be 1; ENCE ought to be 0; RMV ought to be as large as RMSE. "
        "Small numbers are 95 % intervals, where structures were resampled.</p>"
        f"{_table_of(evaluations, PAPER)}{_joint(evaluations)}<h3>More on the uncertainties</h3>{more}"
        f"<h3>How many percent of observations lie in central intervals of</h3>{coverage}"
        f"{remarks(_remarks(evaluations))}"
    )


def _joint(evaluations: Sequence[Evaluation]) -> str:
    known = [
        f"{escape(e.name)}: {joint_text(e)}" + (f" <small>({ends})</small>" if (ends := joint_interval_text(e)) else "")
        for e in evaluations
        if e.joint_nll is not None
    ]
    return f"<p>Joint NLL of the energy and all forces of a structure: {'; '.join(known)}.</p>" if known else ""


def _table_of(evaluations: Sequence[Evaluation], metrics: Sequence[Metric]) -> str:
    parts = [
        Rows(title, [[row_head(e.name), *_cells(found, metrics)] for e in evaluations if (found := getattr(e, field))])
        for title, field in QUANTITIES
    ]
    heads = [Cell(f"{m.heading} {m.better}".strip()) for m in metrics]
    return table([Cell("model", words=True), *heads], [part for part in parts if part.rows])


def _cells(found: Summary | None, metrics: Sequence[Metric]) -> list[Cell]:
    return [Cell(m.text(found), m.interval_text(found)) for m in metrics]


def _remarks(evaluations: Sequence[Evaluation]) -> list[str]:
    """What a reader must know about the numbers: left out structures, zero variances, what has no value."""
    said = []
    for e in evaluations:
        said += [f"{e.name}: {_plural(count)} left out ({reason})" for reason, count in e.left_out.items()]
        said += [f"{e.name}: {text}" for text in e.remarks]
        for title, field in QUANTITIES:
            found, name = getattr(e, field), f"{e.name}, {title.split(' (')[0].lower()}"
            if found is None:
                said.append(f"{name}: nothing was both predicted and observed")
                continue
            said += [f"{name}: {text}" for text in found.remarks]
    return said


def _plural(count: int) -> str:
    return "1 structure" if count == 1 else f"{grouped_digits(count)} structures"


def _figures(paths: Sequence[Path]) -> str:
    return "\n".join(_figure(path) for path in paths if path.suffix == ".png" and path.stem != CALIBRATION)


def _figure(path: Path) -> str:
    caption = CAPTIONS.get(path.stem, Caption(path.stem.replace("_", " "), ""))
    return image(path, caption.title, caption.text)


def _calibration(before: Sequence[Evaluation], after: Sequence[Evaluation], figures: Sequence[Path]) -> str:
    now = {e.name: e for e in after}
    pairs = [(e, now[e.name]) for e in before if e.name in now]
    if not pairs:
        return ""
    parts = []
    for title, field in QUANTITIES:
        both = [(e, when) for pair in pairs for e, when in zip(pair, ("before", "after"), strict=True)]
        known = [(e.name, when, found) for e, when in both if (found := getattr(e, field))]
        rows: list[Row] = [
            [row_head(name), Cell(when, words=True), *_cells(found, PAPER)] for name, when, found in known
        ]
        parts += [Rows(title, rows)] if rows else []
    heads = [Cell("model", words=True), Cell("", words=True), *(Cell(m.heading) for m in PAPER)]
    drawn = "".join(_figure(path) for path in figures if path.suffix == ".png" and path.stem == CALIBRATION)
    return table(heads, parts) + drawn


def _worst(predictions: Predictions, chosen: Selection) -> str:
    """Tables of the structures with the largest errors, which can be brought into the viewer."""
    scores = StructureScores(predictions)
    tables = [
        f"<h3>{title}</h3>{_worst_table(scores, ranking, chosen)}"
        for title, ranking in (("By force error", scores.force_error), ("By energy error", scores.energy_error))
        if np.isfinite(ranking).any()
    ]
    which = (
        f"<p>Of {escape(predictions.name)}: errors, and beside them the standard deviations σ that were predicted. "
        "Forces are root mean squares of all components, and lengths for the atom that is farthest off or most "
        "uncertain. Numbers of structures are those in their file or store, from 0.</p>"
    )
    return which + "".join(tables) if tables else ""


def _worst_table(scores: StructureScores, ranking: Float[np.ndarray, " n"], chosen: Selection) -> str:
    order = np.argsort(-ranking, kind="stable")[: min(WORST, int(np.isfinite(ranking).sum()))]
    place = {int(index): position for position, index in enumerate(chosen.indices)}
    rows: list[Row] = [[_show_button(place.get(int(i))), *_worst_cells(scores, int(i))] for i in order]
    pairs = [Cell(text, first=text == "error") for _ in range(3) for text in ("error", "σ")]
    heads = [Cell(""), Cell("number"), Cell("formula", words=True), Cell("group", words=True), *pairs]
    groups = [("", 4), ("Energy (eV)", 2), ("Forces (eV/Å)", 2), ("Largest (eV/Å)", 2)]
    return table(heads, [Rows("", rows)], groups)


def _worst_cells(scores: StructureScores, index: int) -> list[Cell]:
    structures = scores.predictions.structures
    values = (
        scores.energy_error, scores.energy_uncertainty, scores.force_error, scores.force_uncertainty,
        scores.worst_force_error, scores.worst_force_uncertainty,
    )  # fmt: skip
    words = (formula(structures[index]), structures.groups[index] or UNKNOWN)
    numbers = [Cell(number(float(row[index]), None), first=i % 2 == 0) for i, row in enumerate(values)]
    return [Cell(str(structures.frames[index])), *(Cell(text, words=True) for text in words), *numbers]


def _show_button(position: int | None) -> str:
    button = "" if position is None else f'<button type="button" hidden data-structure="{position}">show</button>'
    return f'<td class="show">{button}</td>'


def formula(structure: Structure) -> str:
    """Elements and how many atoms there are of each, carbon and hydrogen first where there is carbon."""
    return str(Symbols(structure.atomic_numbers).get_chemical_formula(mode="hill"))


def _panels(predictions: Predictions, chosen: Selection) -> str:
    return (
        f"<p>Predictions of {escape(predictions.name)}; {escape(chosen.said)}. Pick a point of the scatter of errors "
        "against uncertainties, and turn the structure with the mouse or a finger. Molecules are "
        "turned to face you.</p>\n"
        '<div class="controls"><label>Scatter of <select id="choose-map"></select></label>'
        '<label>Colour atoms by <select id="choose-color"></select></label></div>\n'
        '<p id="viewer-message" class="soft">The viewer is starting; it needs JavaScript and WebGL.</p>\n'
        '<div class="panels"><div class="panel"><div id="viewer-map"></div></div>'
        '<div class="panel"><div id="viewer-structure"></div></div>'
        '<div id="viewer-info"></div><div id="viewer-meta"></div></div>'
    )


def _breakdowns(evaluations: Sequence[Evaluation]) -> str:
    return "".join(folded(e.name, _breakdown(e.breakdown)) for e in evaluations)


def _breakdown(slices: Sequence[Slice]) -> str:
    kinds = dict.fromkeys(part.kind for part in slices)
    return "".join(_slices(kind, [part for part in slices if part.kind == kind]) for kind in kinds)


def _slices(kind: str, slices: Sequence[Slice]) -> str:
    parts = [
        Rows(
            title, [[row_head(part.label), *_score_cells(found)] for part in slices if (found := getattr(part, field))]
        )
        for title, field in QUANTITIES
    ]
    heads = [Cell(kind, words=True), Cell("entries"), *(Cell(m.heading) for m in PAPER)]
    return f"<h3>By {escape(kind)}</h3>" + table(heads, [part for part in parts if part.rows])


def _score_cells(found: Scores) -> list[Cell]:
    return [Cell(grouped_digits(found.count)), *(Cell(m.text(found)) for m in PAPER)]
