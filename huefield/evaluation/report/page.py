"""The report of an evaluation: one HTML page with metrics, figures and a structure viewer, which needs no network."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from ase.symbols import Symbols
from jaxtyping import Float

from huefield.core.structure import Structure
from huefield.evaluation.paper_metrics import PaperMetrics
from huefield.evaluation.report.chemiscope import NoViewerError, chemiscope_program
from huefield.evaluation.report.figures import CAPTIONS, Caption
from huefield.evaluation.report.html import (
    Cell,
    Folded,
    Heading,
    HtmlTable,
    PageBlock,
    Paragraph,
    Picture,
    RemarkList,
    RowGroup,
    Section,
    ViewerPanels,
    ViewerScripts,
    page_of,
)
from huefield.evaluation.report.selection import Selection, StructureScores, choose_structures, grouped_digits
from huefield.evaluation.report.tables import (
    COVERAGE_METRICS,
    MORE_METRICS,
    PAPER_METRICS,
    TABULATED,
    UNKNOWN,
    Metric,
    joint_interval_text,
    joint_text,
    number,
    tails_text,
)
from huefield.evaluation.report.viewer import make_viewer
from huefield.evaluation.slices import DATASET, Evaluation, Slice
from huefield.evaluation.summaries import MetricSummary
from huefield.predict.predictions import Predictions
from huefield.support.errors import HuefieldError
from huefield.support.files import write_bytes

SHOWN_IN_VIEWER = 500
"""Largest number of structures in the viewer."""
WORST_SHOWN = 10
"""Number of structures in each table of the worst ones."""
CALIBRATION = "calibration"
"""The figure that has a section of its own."""
EXPLANATION = (
    "One energy per structure, the components of the forces and, for crystals with a known stress, its six components "
    "are compared; σ is the predicted standard deviation. "
    "MAE and RMSE are the mean absolute and the root mean squared error. NLL is the mean negative log likelihood of "
    "the observed values, which judges means and error bars together: smaller is better. RZV is the standard deviation "
    "of the z-scores (error divided by σ) and should be 1; above 1, error bars are too small. ENCE, the expected "
    "normalised calibration error, is the mean relative difference between RMV and RMSE over bins of equal counts and "
    "should be 0. CV, the coefficient of variation, is the relative spread of σ; at 0 all error bars are equal. "
    "RMV is the root mean variance and should equal the RMSE. Small numbers are 95 % confidence intervals from "
    "resampled structures."
)
MORE_EXPLANATION = (
    "CRPS, the continuous ranked probability score, judges means and error bars together like the NLL, but in the "
    "unit of the error. The miscalibration area lies between the coverage curve and the diagonal. The rank correlation "
    "is that of σ and the absolute error. The retention area is the mean absolute error of the most certain "
    "predictions, averaged over all fractions that are kept. AUROC is the probability that one of the worst 5 % of "
    "errors has a larger σ than one of the others; 0.5 is chance, 1 is perfect."
)
BASELINE_EXPLANATION = (
    "Rows that end in “alone” are baselines without their correction. Total energies of two methods differ by an "
    "energy for each element, which was fitted to these structures before their energies were compared."
)
BEFORE_EXPLANATION = (
    "Metrics before calibration take errors as normal, those after it use the distributions given above."
)
SLICES = (
    "The same metrics for parts of the data: by data set, if there are several, by element, by magnitude of "
    "the force on the atom, and by group of structures (such as a reaction or a trajectory, if the data name groups). "
    "Select a model to see its tables."
)


def write_report(
    path: Path,
    evaluations: Sequence[Evaluation],
    predictions: Sequence[Predictions],
    *,
    figures: Sequence[Path],
    before: Sequence[Evaluation] = (),
    baselines: Sequence[Evaluation] = (),
    title: str = "Evaluation",
    notes: Sequence[str] = (),
) -> None:
    """Write the page atomically. If the structure viewer is not available, a sentence in its place says why.

    Args:
        path: the HTML file.
        evaluations: evaluations of the models.
        predictions: predictions of the same models in the same order. The viewer shows structures of the last one.
        figures: files that ``save_figures`` wrote; PNG files are shown.
        before: evaluations before calibration, with the same model names.
        baselines: errors of the baselines that the models correct.
        title: title of the page.
        notes: sentences below the title: data, models, skipped structures.
    """
    if not evaluations or len(evaluations) != len(predictions):
        raise HuefieldError(
            f"a report needs one evaluation for the predictions of each model, but there are {len(evaluations)} "
            f"evaluations and {len(predictions)} predictions"
        )
    tails = bool(tails_text(evaluations))
    shown = [path for path in figures if path.suffix == ".png"]
    chosen = choose_structures(predictions[-1], SHOWN_IN_VIEWER) if len(predictions[-1]) else None
    viewer, scripts = _viewer(predictions[-1], chosen) if chosen else ([], None)
    sections = [
        Section("metrics", "Metrics", _metrics(evaluations, baselines)),
        Section("figures", "Figures", [_figure(path, tails) for path in shown if not _compares(path)]),
        Section("calibration", "Calibration before and after", _calibration(before, evaluations, shown)),
        Section("worst", "Worst structures", _worst(predictions[-1], chosen) if chosen else []),
        Section("viewer", "Structures", viewer),
        Section(
            "parts",
            "Slices of the data: by data set, element, force and group",
            [
                Paragraph(SLICES),
                *(Folded(e.name, list(_slices(e.breakdown))) for e in evaluations),
            ],
        ),
    ]
    write_bytes(path, page_of(title, notes, sections, scripts).encode())


def _viewer(predictions: Predictions, chosen: Selection) -> tuple[list[PageBlock], ViewerScripts | None]:
    """The section with the viewer and its scripts, or the reason why it is not available."""
    try:
        program = chemiscope_program()
    except NoViewerError as reason:
        return [Paragraph(f"The structure viewer is not available: {reason}.")], None
    scripts = ViewerScripts.of(program.script, make_viewer(predictions, chosen).as_json(), program.notices)
    return [ViewerPanels(predictions.name, chosen.description)], scripts


def _metrics(evaluations: Sequence[Evaluation], baselines: Sequence[Evaluation]) -> list[PageBlock]:
    remarks = list(dict.fromkeys(_remarks(evaluations)))
    return [
        Paragraph(EXPLANATION),
        *([Paragraph(text)] if (text := tails_text(evaluations)) else []),
        *([Paragraph(BASELINE_EXPLANATION)] if baselines else []),
        metric_table([*baselines, *evaluations], PAPER_METRICS),
        *_joint(evaluations),
        Heading("More metrics of the uncertainties"),
        Paragraph(MORE_EXPLANATION),
        metric_table(evaluations, MORE_METRICS),
        Heading("Observed coverage in percent of central intervals with a nominal coverage of"),
        metric_table(evaluations, COVERAGE_METRICS),
        *_datasets(evaluations),
        *([RemarkList(remarks)] if remarks else []),
    ]


def _datasets(evaluations: Sequence[Evaluation]) -> Iterator[PageBlock]:
    """Metrics of each data set, if there are several."""
    found = [replace(each, label=f"{e.name}, {each.label}") for e in evaluations for each in e.datasets]
    if found:
        yield Heading("By data set")
        yield _slice_table(DATASET, found)


def _joint(evaluations: Sequence[Evaluation]) -> Iterator[PageBlock]:
    known = [
        f"{e.name}: {joint_text(e)}" + (f" ({ends})" if (ends := joint_interval_text(e)) else "")
        for e in evaluations
        if e.joint_nll is not None
    ]
    if known:
        what = "energy, all forces and the stress" if any(e.stress for e in evaluations) else "energy and all forces"
        yield Paragraph(f"Joint NLL of the {what} of a structure: {'; '.join(known)}.")


def metric_table(evaluations: Sequence[Evaluation], metrics: Sequence[Metric]) -> HtmlTable:
    """Metrics of all models: one group of rows per quantity, one row per model."""
    parts = [
        RowGroup(
            f"{quantity.title} ({quantity.unit})",
            [
                [_row_head(e.name), *_cells(found, metrics, quantity.scale)]
                for e in evaluations
                if (found := quantity.summary(e))
            ],
        )
        for quantity in TABULATED
    ]
    heads = [Cell(f"{m.heading} {m.better}".strip()) for m in metrics]
    return HtmlTable([_words("model"), *heads], [part for part in parts if part.rows])


def _row_head(text: str) -> Cell:
    return Cell(text, kind="row head")


def _words(text: str) -> Cell:
    return Cell(text, kind="words")


def _cells(found: MetricSummary, metrics: Sequence[Metric], scale: float) -> list[Cell]:
    return [Cell(m.text(found, scale), m.interval_text(found, scale)) for m in metrics]


def _remarks(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """Remarks on the metrics: skipped structures, zero variances, undefined metrics."""
    for e in evaluations:
        yield from (f"{e.name}: skipped {_plural(count)} ({reason})" for reason, count in e.left_out.items())
        yield from (f"{e.name}: {text}" for text in e.remarks)
        for quantity in TABULATED:
            found, name = quantity.summary(e), f"{e.name}, {quantity.title.lower()}"
            absent = () if quantity.optional else ("no value was both predicted and observed",)
            texts = absent if found is None else found.remarks
            yield from (f"{name}: {text}" for text in texts)


def _plural(count: int) -> str:
    return "1 structure" if count == 1 else f"{grouped_digits(count)} structures"


def _compares(path: Path) -> bool:
    """Whether the figure compares before and after calibration."""
    return path.stem == CALIBRATION


def _figure(path: Path, tails: bool) -> Picture:
    """The figure with its caption; ``tails`` says whether the errors of a model follow a Student t."""
    caption = CAPTIONS.get(path.stem, Caption(path.stem.replace("_", " "), ""))
    return Picture(path, caption.title, f"{caption.text} {caption.with_tails}".strip() if tails else caption.text)


def _calibration(before: Sequence[Evaluation], after: Sequence[Evaluation], figures: Sequence[Path]) -> list[PageBlock]:
    now = {e.name: e for e in after}
    pairs = [(e, now[e.name]) for e in before if e.name in now]
    if not pairs:
        return []
    parts = []
    for quantity in TABULATED:
        both = [(e, when) for pair in pairs for e, when in zip(pair, ("before", "after"), strict=True)]
        known = [(e.name, when, found) for e, when in both if (found := quantity.summary(e))]
        rows = [
            [_row_head(name), _words(when), *_cells(found, PAPER_METRICS, quantity.scale)]
            for name, when, found in known
        ]
        parts += [RowGroup(f"{quantity.title} ({quantity.unit})", rows)] if rows else []
    heads = [_words("model"), _words(""), *(Cell(m.heading) for m in PAPER_METRICS)]
    tails = bool(tails_text([e for _, e in pairs]))
    drawn = [_figure(path, tails) for path in figures if _compares(path)]
    return [*([Paragraph(BEFORE_EXPLANATION)] if tails else []), HtmlTable(heads, parts), *drawn]


def _worst(predictions: Predictions, chosen: Selection) -> list[PageBlock]:
    """Tables of the structures with the largest errors, with buttons that show them in the viewer."""
    scores = StructureScores(predictions)
    rankings = (("By force error", scores.force_error), ("By energy error", scores.energy_error))
    known = [(title, ranking) for title, ranking in rankings if np.isfinite(ranking).any()]
    if not known:
        return []
    explained = Paragraph(
        f"Predictions of {predictions.name}: errors and predicted standard deviations σ. Forces: root mean square over "
        "all components. Largest: length of the vector for the atom with the largest error or uncertainty. Numbers "
        "count the structures of the file or store, from 0."
    )
    tables = [(Heading(title), _worst_table(scores, ranking, chosen)) for title, ranking in known]
    return [explained, *(block for pair in tables for block in pair)]


def _worst_table(scores: StructureScores, ranking: Float[np.ndarray, " n"], chosen: Selection) -> HtmlTable:
    order = np.argsort(-ranking, kind="stable")[: min(WORST_SHOWN, int(np.isfinite(ranking).sum()))]
    place = {int(index): str(position) for position, index in enumerate(chosen.indices)}
    rows = [[Cell(place.get(int(i), ""), kind="show"), *_worst_cells(scores, int(i))] for i in order]
    pairs = [Cell(text, first=text == "error") for _ in range(3) for text in ("error", "σ")]
    heads = [Cell(""), Cell("number"), _words("formula"), _words("group"), *pairs]
    groups = [("", 4), ("Energy (eV)", 2), ("Forces (eV/Å)", 2), ("Largest (eV/Å)", 2)]
    return HtmlTable(heads, [RowGroup("", rows)], groups)


def _worst_cells(scores: StructureScores, index: int) -> list[Cell]:
    structures = scores.predictions.structures
    values = (
        scores.energy_error, scores.energy_uncertainty, scores.force_error, scores.force_uncertainty,
        scores.worst_force_error, scores.worst_force_uncertainty,
    )  # fmt: skip
    numbers = [Cell(number(float(row[index]), None), first=i % 2 == 0) for i, row in enumerate(values)]
    words = (formula(structures[index]), structures.groups[index] or UNKNOWN)
    return [Cell(str(structures.frames[index])), *map(_words, words), *numbers]


def formula(structure: Structure) -> str:
    """Chemical formula in Hill order."""
    return str(Symbols(structure.atomic_numbers).get_chemical_formula(mode="hill"))


def _slices(slices: Sequence[Slice]) -> Iterator[PageBlock]:
    """A heading and a table for each criterion."""
    for kind in dict.fromkeys(each.kind for each in slices):
        yield Heading(f"By {kind}")
        yield _slice_table(kind, [each for each in slices if each.kind == kind])


def _slice_table(kind: str, slices: Sequence[Slice]) -> HtmlTable:
    parts = [
        RowGroup(
            f"{quantity.title} ({quantity.unit})",
            [
                [_row_head(each.label), *_slice_cells(found, quantity.scale)]
                for each in slices
                if (found := getattr(each, quantity.field))
            ],
        )
        for quantity in TABULATED
    ]
    heads = [_words(kind), Cell("entries"), *(Cell(m.heading) for m in PAPER_METRICS)]
    return HtmlTable(heads, [part for part in parts if part.rows])


def _slice_cells(found: PaperMetrics, scale: float) -> list[Cell]:
    return [Cell(grouped_digits(found.count)), *(Cell(m.text(found, scale)) for m in PAPER_METRICS)]
