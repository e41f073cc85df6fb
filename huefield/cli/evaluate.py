"""``huefield evaluate`` and ``calibrate``."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from huefield.cli.data import ReaderOption, parse_reader

if TYPE_CHECKING:
    from huefield.data.dataset import Part
    from huefield.evaluation.calibrate import CalibrationResult
    from huefield.predict import PredictionKeys, Predictions

PredictionsOption = Annotated[
    list[Path] | None,
    typer.Option("--predictions", metavar="FILE", help="Predictions that any code has written, instead of a model."),
]
ReferenceOption = Annotated[
    Path | None, typer.Option(help="Reference values for --predictions, where they are in another file.")
]
KeysOption = Annotated[
    str | None,
    typer.Option(help='Names in the file, as JSON: \'{"energy": "my_energy", "reference_energy": "dft_energy"}\'.'),
]


PartOption = Annotated[
    str | None, typer.Option(help="Which part, where DATA is the folder of a run: validation, test, ...")
]


class MethodName(StrEnum):
    """How variances are calibrated."""

    ISOTONIC = "isotonic"
    SCALE = "scale"
    GAMMA = "gamma"
    CONFORMAL = "conformal"


def evaluate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="MODEL... DATA", help="Model files, and structures: file, store or run."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for metrics, tables, figures and the page.")] = Path("evaluation"),
    predictions: PredictionsOption = None,
    reference: ReferenceOption = None,
    keys: KeysOption = None,
    reader: ReaderOption = None,
    part: PartOption = None,
    bins: Annotated[int, typer.Option(min=1, help="Of reliability diagrams.")] = 10,
    resamples: Annotated[
        int, typer.Option(min=0, help="Draws of structures for confidence intervals; 0 for none.")
    ] = 200,
    members: Annotated[
        bool, typer.Option("--members", help="Write what each member of an ensemble says with the predictions.")
    ] = False,
) -> None:
    """Say how good predictions and their error bars are, in numbers, figures and a page to look at."""
    from huefield.cli.progress import counting_progress, use_compilation_cache
    from huefield.evaluation.evaluate import evaluate as run
    from huefield.evaluation.evaluate import evaluate_predictions

    models, data = _models_and_data(paths, predictions)
    _refuse(predictions is None, reference=reference, keys=keys)
    _refuse(predictions is not None, reader=reader, part=part, members=members or None)
    if predictions:
        found = _read(predictions, reference, keys)
        source = ", ".join(map(str, predictions))
        judged = evaluate_predictions(found, out, source=source, bins=bins, resamples=resamples)
    else:
        use_compilation_cache()
        structures = _opened(data, reader, part, "test")
        with counting_progress() as report:
            judged = run(models, structures, out, bins=bins, resamples=resamples, members=members, report=report)
    for remark in judged.remarks:
        typer.echo(f"note: {remark}", err=True)
    typer.echo(judged.table)
    typer.echo("Wrote " + ", ".join(str(path) for path in judged.files))
    typer.echo(f"Look at {judged.files[0]} in a browser")


def calibrate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="MODEL DATA", help="A model file, and structures it was not trained on."),
    ] = None,
    method: Annotated[MethodName, typer.Option(help="How variances are mapped; gamma refits γ alone.")] = (
        MethodName.ISOTONIC
    ),
    out: Annotated[
        Path | None, typer.Option(help="The calibrated model, or predictions; else NAME-calibrated beside the input.")
    ] = None,
    predictions: PredictionsOption = None,
    reference: ReferenceOption = None,
    keys: KeysOption = None,
    reader: ReaderOption = None,
    part: PartOption = None,
    group_size: Annotated[
        int | None, typer.Option(min=1, help="Errors averaged before isotonic regression; 1 for the plain one.")
    ] = None,
    fit_fraction: Annotated[float, typer.Option(help="Share of the structures to fit to; the rest checks.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Of the draw of these structures.")] = 0,
) -> None:
    """Make error bars have the right size, and show before and after on structures that were not used for it."""
    models, data = _models_and_data(paths, predictions)
    _refuse(predictions is None, reference=reference, keys=keys)
    _refuse(predictions is not None, reader=reader, part=part)
    _refuse(method is not MethodName.ISOTONIC, group_size=group_size)
    if len(predictions or models) != 1:
        raise typer.BadParameter("one model is calibrated at a time")
    options: _Options = {"group_size": group_size, "fit_fraction": fit_fraction, "seed": seed}
    if predictions:
        _calibrate_predictions(predictions[0], out, method, reference, keys, options)
    else:
        _calibrate_model(models[0], _opened(data, reader, part, "validation"), out, method, options)


class _Options(TypedDict):
    group_size: int | None
    fit_fraction: float
    seed: int


def _calibrate_model(source: Path, part: "Part", out: Path | None, method: MethodName, options: _Options) -> None:
    from huefield.cli.progress import counting_progress, use_compilation_cache
    from huefield.evaluation.calibrate import calibrate as run
    from huefield.model.modelfile import load, save

    target = _target(source, out, source.suffix)
    use_compilation_cache()
    with counting_progress() as report:
        ensemble, done = run(load(source), part, method.value, report=report(source.stem), **options)
    save(ensemble, target)
    _say(done, method)
    typer.echo(f"Wrote {target}")


def _calibrate_predictions(
    source: Path, out: Path | None, method: MethodName, reference: Path | None, keys: str | None, options: _Options
) -> None:
    from huefield.evaluation.calibrate import calibrate_predictions as run
    from huefield.predict import write_predictions
    from huefield.support.files import write_bytes

    target = _target(source, out, ".extxyz")
    given = _read([source], reference, keys)[0]
    calibration, done = run(given, method.value, **options)
    write_predictions(target, given.calibrated(calibration))
    written = target.with_name(f"{target.stem}-calibration.json")
    write_bytes(written, (calibration.model_dump_json(indent=1) + "\n").encode())
    _say(done, method)
    typer.echo(f"Wrote {target}, and the map of the variances of {source} as {written}")


def _target(source: Path, out: Path | None, suffix: str) -> Path:
    """Where to write, which is not where it was read from; found out before any work is done."""
    from huefield.support.files import require_writable

    target = out or source.with_name(f"{source.stem}-calibrated{suffix}")
    if target.resolve() == source.resolve():
        raise typer.BadParameter(f"{source} would be overwritten: write to another file", param_hint="--out")
    if target.is_dir():
        raise typer.BadParameter(f"{target} is a folder: name a file in it", param_hint="--out")
    require_writable(target.parent)
    return target


def _refuse(wrong: bool, **options: object) -> None:
    """Options that would have no effect are said to have none."""
    for name, value in options.items():
        if wrong and value is not None:
            raise typer.BadParameter("it has no effect here", param_hint=f"--{name.replace('_', '-')}")


def _models_and_data(paths: list[Path] | None, predictions: list[Path] | None) -> tuple[list[Path], Path]:
    given = paths or []
    if predictions and given:
        raise typer.BadParameter("give either models and data, or --predictions, not both", param_hint="MODEL... DATA")
    if not predictions and len(given) < 2:
        raise typer.BadParameter(
            "give a model file and a file or store with labelled structures, or --predictions FILE",
            param_hint="MODEL... DATA",
        )
    return given[:-1], given[-1] if given else Path()


def _opened(data: Path, reader: str | None, part: str | None, usual_part: str) -> "Part":
    from huefield.data.dataset import open_part
    from huefield.data.runs import is_run, part_of_run

    if is_run(data):
        _refuse(True, reader=reader)
        return part_of_run(data, part or usual_part)
    _refuse(True, part=part)
    return open_part(str(data), [data], parse_reader(reader))


def _read(paths: list[Path], reference: Path | None, keys: str | None) -> "list[Predictions]":
    from huefield.predict import read_predictions

    chosen = _parsed_keys(keys)
    return [read_predictions(path, keys=chosen, reference=reference) for path in paths]


def _parsed_keys(keys: str | None) -> "PredictionKeys | None":
    from pydantic import ValidationError

    from huefield.predict import PredictionKeys
    from huefield.support.config import explain

    try:
        return None if keys is None else PredictionKeys.model_validate_json(keys)
    except ValidationError as error:
        raise typer.BadParameter(explain(error, "--keys"), param_hint="--keys") from error


def _say(done: "CalibrationResult", method: MethodName) -> None:
    """Metrics before and after, on what was not fitted to."""
    from huefield.evaluation.report.tables import markdown_table

    before, after = done.evaluations()
    typer.echo(f"Fitted to {done.fitted_to} structures; on the {len(done.after)} others:")
    typer.echo(markdown_table((before, after)))
    if method is MethodName.CONFORMAL:
        _say_coverage(done)
    elif done.pairs is not None and len(done.pairs):
        held = ", ".join(
            f"{100 * share:g} % intervals hold {100 * found:.0f} %"
            for share, found in done.coverage()["differences of energies"]
        )
        typer.echo(f"Differences of energies ({len(done.pairs)} pairs): {held}")
    for remark in done.remarks:
        typer.echo(f"note: {remark}", err=True)


def _say_coverage(done: "CalibrationResult") -> None:
    for name, shares in done.coverage().items():
        held = ", ".join(f"{100 * observed:.1f} % of {100 * nominal:g} %" for nominal, observed in shares)
        typer.echo(f"Intervals for {name} hold {held}")
