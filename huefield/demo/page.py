"""The page of the demonstration."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from huefield.demo.profiles import COLUMNS, COVERAGE, Profile
from huefield.evaluation.evaluate import EvaluationResult
from huefield.evaluation.report.html import Cell, HtmlTable, PageBlock, Paragraph, Picture, RowGroup, Section, page_of
from huefield.evaluation.report.page import metric_table
from huefield.evaluation.report.tables import PAPER_METRICS, UNKNOWN, number
from huefield.evaluation.slices import Evaluation
from huefield.make_data.reactions import HELD_OUT
from huefield.support.files import write_bytes

TRAINED_HEAVY_ATOMS = 3
SEEN = "Reactions of the training data"
LARGER = "Reactions of larger molecules"
UNSEEN = "Reactions that were not trained on"
NOTES = (
    "Networks learn the difference between ωB97X/6-31G(d), a density functional, and GFN2-xTB, which takes "
    "milliseconds. This page shows the sum: GFN2-xTB and the correction.",
    "The model was trained for a few minutes on molecules and reactions with at most three atoms heavier than "
    "hydrogen. It has seen none of the structures on this page.",
)
BARRIERS = (
    "Energies along paths that were found with GFN2-xTB, none of whose images was trained on. The interval is that of "
    "an energy relative to the reactant, in which errors that both structures share cancel. The barrier is the energy "
    "of the highest image, of each method for itself."
)
PICTURE = (
    "Above: the three reactions of the training data for which GFN2-xTB is farthest from DFT. Below: three reactions "
    "whose formulas are nowhere in the training data. All barriers are in the table."
)
ERRORS = (
    "Mean absolute errors of energies and forces. Those of GFN2-xTB alone are after a fit of one energy for each "
    "element. RZV is the standard deviation of errors divided by the predicted error bars and should be 1; intervals "
    "for 95 % should contain 95 % of the true values."
)
NOISE = (
    "White noise, and the colored noise of huefield, in which the uncertainty of the forces is the derivative of that "
    "of the energy. Both start from the same mean, which is trained further with the noise, and were calibrated on the "
    "validation data. Smaller NLL is better."
)


def write_page(
    path: Path,
    found: Mapping[str, Sequence[Profile]],
    picture: Path,
    results: Mapping[str, EvaluationResult],
    titles: Mapping[str, str],
    report: str,
) -> None:
    """Write the page atomically.

    Args:
        path: the HTML file.
        found: profiles of reactions, by kind.
        picture: figure of some of them.
        results: evaluations of each part of the data; the model to show is the last one.
        titles: descriptions of the parts.
        report: address of the full report.
    """
    drawn = Picture(picture, "Energies along paths", PICTURE)
    sections = [
        Section("barriers", "Barriers with their uncertainty", [Paragraph(BARRIERS), drawn, barrier_table(found)]),
        Section("errors", "Errors and error bars", [Paragraph(ERRORS), errors_table(results, titles)]),
        Section("noise", "Two kinds of noise", _noise(results, titles, report)),
    ]
    write_bytes(path, page_of("GFN2-xTB, corrected", NOTES, sections).encode())


def sorted_by_kind(found: Sequence[Profile]) -> dict[str, list[Profile]]:
    """Profiles by what training had seen of them: other structures of the reaction, smaller molecules, nothing."""
    kinds: dict[str, list[Profile]] = {SEEN: [], LARGER: [], UNSEEN: []}
    for profile in found:
        larger = LARGER if profile.num_heavy_atoms > TRAINED_HEAVY_ATOMS else SEEN
        kinds[UNSEEN if profile.name in HELD_OUT else larger].append(profile)
    return {kind: some for kind, some in kinds.items() if some}


def drawn_profiles(found: Mapping[str, Sequence[Profile]]) -> list[Profile]:
    """Profiles for the figure: those for which the baseline is worst, and unseen ones, a row of each."""
    worst = sorted(found.get(SEEN, ()), key=lambda p: -abs(p.barrier.baseline - p.barrier.true))
    return [*worst[:COLUMNS], *found.get(UNSEEN, ())[:COLUMNS]]


def sentence(text: str) -> str:
    """The text with a capital letter at its start."""
    return text[:1].upper() + text[1:]


def barrier_table(found: Mapping[str, Sequence[Profile]]) -> HtmlTable:
    """Barrier of each reaction: of DFT, of the baseline, and predicted with its interval."""
    heads = ["DFT", "GFN2-xTB alone", "corrected", f"± {100 * COVERAGE:.0f} %", "images within"]
    groups = [RowGroup(f"{kind} (eV)", [*map(_barrier_row, some), _mean_row(some)]) for kind, some in found.items()]
    return HtmlTable([Cell("reaction", kind="words"), *map(Cell, heads)], groups)


def _barrier_row(profile: Profile) -> list[Cell]:
    found = profile.barrier
    values = (found.true, found.baseline, found.predicted, found.half_width)
    return [_head(profile.name), *(Cell(number(value, 2)) for value in values), _inside([profile])]


def _mean_row(some: Sequence[Profile]) -> list[Cell]:
    found = [profile.barrier for profile in some]
    errors = [np.mean([abs(getattr(each, name) - each.true) for each in found]) for name in ("baseline", "predicted")]
    return [
        _head("mean absolute error"),
        Cell(""),
        *(Cell(number(float(e), 2)) for e in errors),
        Cell(""),
        _inside(some),
    ]


def _inside(some: Sequence[Profile]) -> Cell:
    """How many images have their true energy in the interval."""
    return Cell(f"{sum(p.num_inside for p in some)} of {sum(len(p.true) - 1 for p in some)}")


def _head(text: str) -> Cell:
    return Cell(text, kind="row head")


def errors_table(results: Mapping[str, EvaluationResult], titles: Mapping[str, str]) -> HtmlTable:
    """Errors of the baseline and of the last model, with the quality of its error bars, for each part."""
    columns = ("alone", "corrected", "RZV", f"in {100 * COVERAGE:.0f} %")
    heads = [Cell("structures", kind="words"), Cell("number")]
    heads += [Cell(text, first=text == columns[0]) for _ in range(2) for text in columns]
    rows = []
    for part, result in results.items():
        model, alone = result.evaluations[-1], result.baselines[0]
        count = 0 if model.energy is None else model.energy.count
        cells = [cell for name in ("energy", "forces") for cell in _error_cells(alone, model, name)]
        rows.append([_head(titles[part]), Cell(str(count)), *cells])
    groups = [("", 2), ("Energy MAE (eV)", len(columns)), ("Force MAE (eV/Å)", len(columns))]
    return HtmlTable(heads, [RowGroup("", rows)], groups)


def _error_cells(alone: Evaluation, model: Evaluation, quantity: str) -> list[Cell]:
    before, after = getattr(alone, quantity), getattr(model, quantity)
    inside = next(100 * each.observed for each in after.coverage if abs(each.nominal - COVERAGE) < 1e-9)
    errors = (number(before.mae, None) if before else UNKNOWN, number(after.mae, None))
    return [Cell(errors[0], first=True), Cell(errors[1]), Cell(number(after.rzv, 2)), Cell(f"{inside:.0f} %")]


def _noise(results: Mapping[str, EvaluationResult], titles: Mapping[str, str], report: str) -> list[PageBlock]:
    blocks: list[PageBlock] = [Paragraph(NOISE)]
    for part, result in results.items():
        known = [f"{e.name} {number(e.joint_nll, 2)}" for e in result.evaluations if e.joint_nll is not None]
        blocks += [
            Paragraph(f"{sentence(titles[part])} (joint NLL of energy and forces: {', '.join(known)}):"),
            metric_table(result.evaluations, PAPER_METRICS),
        ]
    return [*blocks, Paragraph(f"All metrics, figures and structures: {report}")]
