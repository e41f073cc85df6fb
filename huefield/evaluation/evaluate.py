"""Evaluate models or predictions: metrics, tables, figures, and a report page."""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from huefield.baselines import BaselineLike
from huefield.data.opening import DataSource, of_dataset, open_data
from huefield.data.readers.detect import ReaderConfig
from huefield.evaluation.baseline_alone import baselines_alone
from huefield.evaluation.report.figures import CAPTIONS, KINDS, save_figures
from huefield.evaluation.report.notebook import evaluations_html
from huefield.evaluation.report.page import write_report
from huefield.evaluation.report.tables import latex_table, markdown_table
from huefield.evaluation.slices import Evaluation, summarise
from huefield.model.ensemble import Ensemble
from huefield.model.modelfile import HasEnsemble, ModelSource
from huefield.predict import OnProgress, differing_structures, predict_part, remarks_on, write_predictions
from huefield.predict.names import named_models
from huefield.predict.predictions import Predictions
from huefield.support.defaults import BINS, RESAMPLES
from huefield.support.errors import HuefieldError
from huefield.support.files import write_bytes
from huefield.support.folders import folder_for_results
from huefield.support.names import file_stems

FITTED_ENERGIES = "energies of a baseline alone are compared after a fit of one energy for each element to these labels"
NO_GROWTH = (
    "error bars of {} do not grow with the distance to the training data, as was asked: they are for structures like "
    "those of training, and too narrow for others"
)
METRICS = "metrics.json"
REPORT = "report.html"
FIGURES = "figures"


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationResult:
    """Metrics of one or more models, and the files that were written. Printing it shows the table of metrics."""

    evaluations: tuple[Evaluation, ...]
    """One evaluation per model."""
    baselines: tuple[Evaluation, ...]
    """Errors of the baselines that the models correct."""
    table: str
    """Markdown table of the metrics."""
    remarks: tuple[str, ...]
    files: tuple[Path, ...]
    """The report page first; empty if nothing was written."""

    def __str__(self) -> str:
        return "\n".join([self.table, *(f"note: {remark}" for remark in self.remarks)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return evaluations_html((*self.baselines, *self.evaluations), self.remarks)


def evaluate(
    models: ModelSource | Sequence[ModelSource],
    data: DataSource,
    out: str | Path | None = None,
    *,
    part: str | None = None,
    reader: ReaderConfig | None = None,
    bins: int = BINS,
    resamples: int = RESAMPLES,
    members: bool = False,
    dataset: str | None = None,
    growth: bool = True,
    baseline: BaselineLike | None = None,
    report: Callable[[str], OnProgress] = lambda name: lambda done, total: None,
) -> EvaluationResult:
    """Evaluate predictions and uncertainties of one or more models on labelled structures.

    Structures with unknown elements are skipped; the rest are evaluated.

    Args:
        models: ensembles, model files, or results of ``huefield.train`` and ``huefield.calibrate``.
        data: labelled structures: ASE atoms, files, a store, or the folder of a run.
        out: folder for metrics, tables, predictions, figures and the report page; None to write nothing.
        part: name of the part, if ``data`` is the folder of a run; None for ``test``.
        reader: how to read ``data``; None to find out.
        bins: number of bins of reliability diagrams.
        resamples: number of resamples for confidence intervals; zero for none.
        members: whether the written predictions contain those of each ensemble member.
        dataset: data set of the structures, for models of several; None for the main one of each model. Structures of a
            run have data sets of their own: those of this one are evaluated, or all for None.
        growth: whether noise may grow with the distance to the training data.
        baseline: the ASE calculator that models correct; None for a built-in one, or for results in the data.
        report: receives the name of a model and returns a function that receives the progress of its predictions.
    """
    sources = [models] if isinstance(models, Ensemble | str | Path | HasEnsemble) else list(models)
    if not sources:
        raise HuefieldError("there is no model to evaluate: the list is empty")
    folder = None if out is None else Path(out)
    with _ready(folder):
        structures = of_dataset(open_data(data, part=part, usual_part="test", reader=reader), dataset)
        named = named_models(sources, dataset=dataset, growth=growth)
        found = [
            predict_part(
                ensemble,
                structures,
                name,
                report(name),
                members=members,
                baseline=None if ensemble.baseline is None else baseline,
            )
            for name, ensemble, _ in named
        ]
        remarks = tuple(NO_GROWTH.format(each.name) for each in named if each.growth_left_out)
        return evaluate_predictions(
            found, folder, source=structures.name, bins=bins, resamples=resamples, remarks=remarks
        )


def evaluate_predictions(
    found: Sequence[Predictions],
    out: Path | None,
    *,
    source: str,
    bins: int = BINS,
    resamples: int = RESAMPLES,
    remarks: tuple[str, ...] = (),
) -> EvaluationResult:
    """Evaluate predictions of any code.

    Args:
        found: predictions of each model for the same structures.
        out: see :func:`evaluate`.
        source: name of the structures, for headings.
        bins: see :func:`evaluate`.
        resamples: see :func:`evaluate`.
        remarks: on the predictions, before those that are found here.
    """
    predictions = _with_unique_names(found)
    evaluations = tuple(summarise(each, bins=bins, resamples=resamples) for each in predictions)
    differing = differing_structures(predictions)
    found_here = (remark for each in predictions for remark in remarks_on(each))
    remarks = (*remarks, *found_here, *([differing] if differing else []))
    baselines = baselines_alone(predictions, resamples=resamples)
    remarks = (*remarks, FITTED_ENERGIES) if any(each.energy for each in baselines) else remarks
    table = markdown_table((*baselines, *evaluations))
    if out is None:
        return EvaluationResult(evaluations, baselines, table, remarks, ())
    uncalibrated = [each.uncalibrated() for each in predictions]
    before = [summarise(each, bins=bins) for each in uncalibrated if each is not None]
    with _ready(out):
        files = _write(out, predictions, evaluations, baselines, before, remarks, source)
    return EvaluationResult(evaluations, baselines, table, remarks, files)


def _ready(out: Path | None) -> AbstractContextManager[None]:
    return nullcontext() if out is None else folder_for_results(out)


def _with_unique_names(found: Sequence[Predictions]) -> list[Predictions]:
    """Predictions with numbers after repeated names, since names distinguish rows and files."""
    seen: Counter[str] = Counter()
    result = []
    for each in found:
        seen[each.name] += 1
        again = seen[each.name]
        result.append(each if again == 1 else replace(each, name=f"{each.name} ({again})"))
    return result


def _write(
    out: Path,
    predictions: Sequence[Predictions],
    evaluations: tuple[Evaluation, ...],
    baselines: tuple[Evaluation, ...],
    before: Sequence[Evaluation],
    remarks: tuple[str, ...],
    source: str,
) -> tuple[Path, ...]:
    """Write everything into a temporary folder, then move it: an interruption leaves the old files."""
    rows = (*baselines, *evaluations)
    plain = {"source": source, "remarks": remarks, "models": [each.as_dict() for each in evaluations]}
    plain |= {"baselines": [each.as_dict() for each in baselines]} if baselines else {}
    notes = (f"{len(predictions[0])} structures of {source}.", *remarks)
    with tempfile.TemporaryDirectory(dir=out.resolve().parent, prefix=f".{out.name}.") as folder:
        new = Path(folder)
        figures = save_figures(evaluations, predictions, new / FIGURES, before=before)
        write_report(
            new / REPORT, evaluations, predictions, figures=figures, before=before, baselines=baselines, notes=notes
        )
        write_bytes(new / METRICS, (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode())
        write_bytes(new / "table.md", markdown_table(rows).encode())
        write_bytes(new / "table.tex", latex_table(rows).encode())
        for each, stem in zip(predictions, file_stems(each.name for each in predictions), strict=True):
            write_predictions(new / f"predictions-{stem}.extxyz", each)
        _move(new, out)
    own = sorted(path for path in out.glob("predictions-*.extxyz"))
    return (out / REPORT, out / METRICS, out / "table.md", out / "table.tex", *own, out / FIGURES)


def _move(new: Path, out: Path) -> None:
    """Replace the files of an earlier evaluation; other files stay."""
    drawn = (out / FIGURES / f"{name}.{kind}" for name in CAPTIONS for kind in KINDS)
    for old in (*out.glob("predictions-*.extxyz"), *drawn):
        old.unlink(missing_ok=True)
    (out / FIGURES).mkdir(exist_ok=True)
    for path in sorted(path for path in new.rglob("*") if path.is_file()):
        path.replace(out / path.relative_to(new))
