"""Compare predictions with what was observed: metrics, tables, figures, and a page to look at."""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from huefield.data.dataset import Part
from huefield.evaluation.report.figures import CAPTIONS, KINDS, save_figures
from huefield.evaluation.report.page import write_report
from huefield.evaluation.report.tables import latex_table, markdown_table
from huefield.evaluation.slices import Evaluation, summarise
from huefield.model import modelfile
from huefield.predict import (
    OnProgress,
    differing_structures,
    predict_part,
    remarks_on,
    write_predictions,
)
from huefield.predict.names import names_of
from huefield.predict.predictions import Predictions
from huefield.support.files import write_bytes
from huefield.support.folders import folder_for_results

METRICS = "metrics.json"
REPORT = "report.html"
FIGURES = "figures"
RESAMPLES = 200
"""Of structures, for confidence intervals."""


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """What was found about one or more models, and where it was written."""

    evaluations: tuple[Evaluation, ...]
    table: str
    remarks: tuple[str, ...]
    files: tuple[Path, ...]
    """The page first; none where nothing was to be written."""


def evaluate(
    models: Sequence[str | Path] | str | Path,
    part: Part,
    out: Path | None = None,
    *,
    bins: int = 10,
    resamples: int = RESAMPLES,
    members: bool = False,
    report: Callable[[str], OnProgress] = lambda name: lambda done, total: None,
) -> EvaluationResult:
    """Predict labelled structures with one or more models, and say how good predictions and error bars are.

    Args:
        models: model files.
        part: the structures, as :func:`huefield.data.open_part` gives them.
        out: folder for metrics, tables, predictions, figures and the page; None to write nothing.
        bins: of reliability diagrams.
        resamples: of structures, for confidence intervals; zero for none.
        members: whether what each member says is among the predictions that are written.
        report: given the name of a model, what is told how far its predictions are.
    """
    paths = [Path(models)] if isinstance(models, str | Path) else [Path(path) for path in models]
    with _ready(out):
        loaded = [modelfile.load(path) for path in paths]
        found = [
            predict_part(ensemble, part, name, report(name), members=members)
            for name, ensemble in zip(names_of(paths), loaded, strict=True)
        ]
        return evaluate_predictions(found, out, source=part.name, bins=bins, resamples=resamples)


def evaluate_predictions(
    found: Sequence[Predictions], out: Path | None, *, source: str, bins: int = 10, resamples: int = RESAMPLES
) -> EvaluationResult:
    """The same for predictions that are there already.

    Args:
        found: predictions of each model for the same structures.
        out: see :func:`evaluate`.
        source: what the structures are, for headings.
        bins: see :func:`evaluate`.
        resamples: see :func:`evaluate`.
    """
    predictions = _with_names_of_their_own(found)
    evaluations = tuple(summarise(each, bins=bins, resamples=resamples) for each in predictions)
    differing = differing_structures(predictions)
    remarks = (*(remark for each in predictions for remark in remarks_on(each)), *([differing] if differing else []))
    table = markdown_table(evaluations)
    if out is None:
        return EvaluationResult(evaluations, table, remarks, ())
    uncalibrated = [each.uncalibrated() for each in predictions]
    before = [summarise(each, bins=bins) for each in uncalibrated if each is not None]
    with _ready(out):
        files = _write(out, predictions, evaluations, before, remarks, source)
    return EvaluationResult(evaluations, table, remarks, files)


def _ready(out: Path | None) -> AbstractContextManager[None]:
    return nullcontext() if out is None else folder_for_results(out)


def _with_names_of_their_own(found: Sequence[Predictions]) -> list[Predictions]:
    """The same with numbers behind repeated names, which files and rows are told apart by."""
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
    before: Sequence[Evaluation],
    remarks: tuple[str, ...],
    source: str,
) -> tuple[Path, ...]:
    """Write everything beside the folder, then move it there: an interruption leaves what was there before."""
    plain = {"source": source, "remarks": remarks, "models": [each.as_dict() for each in evaluations]}
    notes = (f"{len(predictions[0])} structures of {source}.", *remarks)
    with tempfile.TemporaryDirectory(dir=out.resolve().parent, prefix=f".{out.name}.") as folder:
        new = Path(folder)
        figures = save_figures(evaluations, predictions, new / FIGURES, before=before)
        write_report(new / REPORT, evaluations, predictions, figures=figures, before=before, notes=notes)
        write_bytes(new / METRICS, (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode())
        write_bytes(new / "table.md", markdown_table(evaluations).encode())
        write_bytes(new / "table.tex", latex_table(evaluations).encode())
        for each in predictions:
            write_predictions(new / f"predictions-{each.name.replace('/', '-')}.extxyz", each)
        _move(new, out)
    own = sorted(path for path in out.glob("predictions-*.extxyz"))
    return (out / REPORT, out / METRICS, out / "table.md", out / "table.tex", *own, out / FIGURES)


def _move(new: Path, out: Path) -> None:
    """Put files in place of those of an earlier evaluation; whatever else is there stays."""
    drawn = (out / FIGURES / f"{name}.{kind}" for name in CAPTIONS for kind in KINDS)
    for old in (*out.glob("predictions-*.extxyz"), *drawn):
        old.unlink(missing_ok=True)
    (out / FIGURES).mkdir(exist_ok=True)
    for path in sorted(path for path in new.rglob("*") if path.is_file()):
        path.replace(out / path.relative_to(new))
