"""Compare predictions with what was observed: metrics, tables, figures, and a page to look at."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from huefield import modelfile
from huefield.apps.predictions import Predicted, Report, predict_part, unit_remark, write_predictions
from huefield.core.files import require_writable, write_bytes
from huefield.data.dataset import Part
from huefield.evaluation.figures import save_figures
from huefield.evaluation.predictions import Predictions
from huefield.evaluation.report import write_report
from huefield.evaluation.slices import Evaluation, summarise
from huefield.evaluation.tables import latex_table, markdown_table

METRICS = "metrics.json"
REPORT = "report.html"
RESAMPLES = 200
"""Of structures, for confidence intervals."""


@dataclass(frozen=True, eq=False)
class Judged:
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
    report: Callable[[str], Report] = lambda name: lambda done, total: None,
) -> Judged:
    """Predict labelled structures with one or more models, and say how good predictions and error bars are.

    Args:
        models: model files.
        part: the structures, as :func:`huefield.data.open_part` gives them.
        out: folder for metrics, tables, predictions, figures and the page; None to write nothing.
        bins: of reliability diagrams.
        resamples: of structures, for confidence intervals; zero for none.
        report: given the name of a model, what is told how far its predictions are.
    """
    paths = [Path(models)] if isinstance(models, str | Path) else [Path(path) for path in models]
    if out is not None:
        require_writable(out)
    loaded = [modelfile.load(path) for path in paths]
    found = [
        predict_part(ensemble, part, name, report(name)) for name, ensemble in zip(names_of(paths), loaded, strict=True)
    ]
    return judge(found, out, source=part.name, bins=bins, resamples=resamples)


def judge(
    found: Sequence[Predicted], out: Path | None, *, source: str, bins: int = 10, resamples: int = RESAMPLES
) -> Judged:
    """The same for predictions that are there already.

    Args:
        found: predictions of each model for the same structures.
        out: see :func:`evaluate`.
        source: what the structures are, for headings.
        bins: see :func:`evaluate`.
        resamples: see :func:`evaluate`.
    """
    predictions = [each.predictions for each in found]
    evaluations = tuple(summarise(each, bins=bins, resamples=resamples) for each in predictions)
    remarks = tuple(remark for each in predictions for remark in remarks_on(each))
    table = markdown_table(evaluations)
    if out is None:
        return Judged(evaluations, table, remarks, ())
    files = _write(out, found, evaluations, remarks, table, source)
    return Judged(evaluations, table, remarks, files)


def names_of(paths: Sequence[Path]) -> list[str]:
    """Names for models: that of the file, or of its folder where the file is just called model."""
    names = [path.parent.resolve().name if path.stem == "model" else path.stem for path in paths]
    repeated = {name for name in names if names.count(name) > 1}
    return [
        f"{path.parent.resolve().parent.name}/{name}" if name in repeated else name
        for path, name in zip(paths, names, strict=True)
    ]


def remarks_on(predictions: Predictions) -> list[str]:
    """What a reader should know before the numbers."""
    left_out = [
        f"{predictions.name}: {count} structures {why}; left out" for why, count in predictions.left_out.items()
    ]
    block = predictions.structures
    missing = [
        f"{int((~there).sum())} of {len(block)} structures have no {what}"
        for what, there in (("energy", block.has_energy), ("forces", block.has_forces))
        if not there.all()
    ]
    units = unit_remark(predictions)
    return [*left_out, *missing, *([f"{predictions.name}: {units}"] if units else [])]


def _write(
    out: Path,
    found: Sequence[Predicted],
    evaluations: tuple[Evaluation, ...],
    remarks: tuple[str, ...],
    table: str,
    source: str,
) -> tuple[Path, ...]:
    predictions = [each.predictions for each in found]
    plain = {"source": source, "remarks": remarks, "models": [each.as_dict() for each in evaluations]}
    write_bytes(out / METRICS, (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode())
    write_bytes(out / "table.md", table.encode())
    write_bytes(out / "table.tex", latex_table(evaluations).encode())
    written = []
    for each in predictions:
        written.append(out / f"predictions-{each.name.replace('/', '-')}.extxyz")
        write_predictions(written[-1], each)
    before = [summarise(each.uncalibrated) for each in found if each.uncalibrated is not None]
    figures = save_figures(evaluations, predictions, out / "figures", before=before)
    notes = (f"{len(predictions[0])} structures of {source}.", *remarks)
    write_report(out / REPORT, evaluations, predictions, figures=figures, before=before, notes=notes)
    return (out / REPORT, out / METRICS, out / "table.md", out / "table.tex", *written, out / "figures")
