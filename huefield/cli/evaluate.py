"""``huefield evaluate`` and ``calibrate``."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from huefield.cli.baselines import CommandOption, ComputedOption, given_baseline
from huefield.cli.data import ReaderOption, parse_reader
from huefield.cli.options import GrowthOption
from huefield.support.defaults import BINS, FIT_FRACTION, RESAMPLES

if TYPE_CHECKING:
    from huefield.baselines import AbstractBaseline
    from huefield.evaluation.calibrate import CalibrationCheck
    from huefield.predict import PredictionKeys, Predictions

PredictionsOption = Annotated[
    list[Path] | None,
    typer.Option("--predictions", metavar="FILE", help="Predictions of any code, instead of models and data."),
]
ReferenceOption = Annotated[
    Path | None, typer.Option(help="File with the reference values for --predictions, if it is another one.")
]
KeysOption = Annotated[
    str | None,
    typer.Option(
        help='Names in the file of predictions, as JSON: \'{"energy": "my_energy", "reference_energy": "dft_energy"}\'.'
    ),
]
PartOption = Annotated[
    str | None, typer.Option(help="Part of the data, if DATA is the folder of a run: validation, test, ...")
]

DatasetOfDataOption = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        metavar="TAG",
        help="Data set of DATA, for a model of several data sets; by default its main one. Structures of a run have "
        "their own: those of this data set are used, by default all.",
    ),
]


class MethodName(StrEnum):
    """Calibration methods."""

    COHERENT = "coherent"
    ISOTONIC = "isotonic"
    SCALE = "scale"
    GAMMA = "gamma"
    CONFORMAL = "conformal"


def evaluate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="MODEL... DATA",
            help="Model files, then labelled structures: a file, a store, or the folder of a run.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for metrics, tables, figures and the report page.")] = Path(
        "evaluation"
    ),
    predictions: PredictionsOption = None,
    reference: ReferenceOption = None,
    keys: KeysOption = None,
    reader: ReaderOption = None,
    part: PartOption = None,
    baseline: ComputedOption = None,
    baseline_command: CommandOption = None,
    bins: Annotated[int, typer.Option(min=1, help="Number of bins of reliability diagrams.")] = BINS,
    resamples: Annotated[
        int, typer.Option(min=0, help="Number of resamples for confidence intervals; 0 for no intervals.")
    ] = RESAMPLES,
    members: Annotated[
        bool, typer.Option("--members", help="Write the predictions of each ensemble member, too.")
    ] = False,
    dataset: DatasetOfDataOption = None,
    growth: GrowthOption = True,
) -> None:
    """Evaluate predictions and their uncertainties: metrics, figures and a report page.

    Structures with unknown elements are skipped; the rest are evaluated.
    """
    from huefield.cli.progress import counting_progress, use_compilation_cache
    from huefield.evaluation.evaluate import evaluate as run
    from huefield.evaluation.evaluate import evaluate_predictions

    models, data = _models_and_data(paths, predictions)
    _refuse(predictions is None, reference=reference, keys=keys)
    unused = {"reader": reader, "part": part, "members": members or None}
    unused |= {"baseline": baseline, "baseline_command": baseline_command}
    _refuse(predictions is not None, **unused, dataset=dataset, no_growth=None if growth else True)
    if predictions:
        found = _read(predictions, reference, keys)
        source = ", ".join(map(str, predictions))
        result = evaluate_predictions(found, out, source=source, bins=bins, resamples=resamples)
    else:
        use_compilation_cache()
        chosen = parse_reader(reader)
        with counting_progress() as report:
            result = run(
                models,
                data,
                out,
                part=part,
                reader=chosen,
                bins=bins,
                resamples=resamples,
                members=members,
                dataset=dataset,
                growth=growth,
                baseline=given_baseline(baseline, baseline_command),
                report=report,
            )
    _note(result.remarks)
    typer.echo(result.table)
    typer.echo("Wrote " + ", ".join(str(path) for path in result.files))
    typer.echo(f"Open {result.files[0]} in a browser")


def calibrate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="MODEL DATA",
            help="A model file, then labelled structures that it was not trained on: a file, a store, or the folder of "
            "a run.",
        ),
    ] = None,
    method: Annotated[
        MethodName | None,
        typer.Option(
            help="coherent, usual for models: factors for the parts of the noise and tails of the errors, which keep "
            "the force noise the derivative of the energy noise; isotonic, usual for predictions of other codes: a "
            "non-decreasing map of variances; scale: one factor; conformal: intervals with a nominal coverage, "
            "guaranteed only for data that neither trained nor selected the model; gamma: refit γ only. All but "
            "coherent and gamma treat energies and forces separately."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the calibrated model or predictions; by default NAME-calibrated beside the input."),
    ] = None,
    predictions: PredictionsOption = None,
    reference: ReferenceOption = None,
    keys: KeysOption = None,
    reader: ReaderOption = None,
    part: PartOption = None,
    baseline: ComputedOption = None,
    baseline_command: CommandOption = None,
    group_size: Annotated[
        int | None, typer.Option(min=1, help="Errors averaged before isotonic regression; 1 for plain regression.")
    ] = None,
    fit_fraction: Annotated[
        float, typer.Option(help="Share of the structures for the fit of the check; the others are for the comparison.")
    ] = FIT_FRACTION,
    seed: Annotated[int, typer.Option(help="Seed of the random draw of these structures.")] = 0,
    dataset: DatasetOfDataOption = None,
) -> None:
    """Calibrate uncertainties, and compare before and after on structures that were not used for the fit.

    The calibration that is written is then fitted to all structures. Quantities with too little data are left
    uncalibrated.
    """
    models, data = _models_and_data(paths, predictions)
    _refuse(predictions is None, reference=reference, keys=keys)
    _refuse(predictions is not None, reader=reader, part=part, dataset=dataset)
    _refuse(predictions is not None, baseline=baseline, baseline_command=baseline_command)
    method = method or (MethodName.ISOTONIC if predictions else MethodName.COHERENT)
    _refuse(method is not MethodName.ISOTONIC, group_size=group_size)
    if len(predictions or models) != 1:
        raise typer.BadParameter("one model is calibrated at a time")
    options: _Options = {"group_size": group_size, "fit_fraction": fit_fraction, "seed": seed}
    if predictions:
        _calibrate_predictions(predictions[0], out, method, reference, keys, options)
    else:
        given = given_baseline(baseline, baseline_command)
        _calibrate_model(models[0], data, out, method, reader, part, dataset, given, options)


class _Options(TypedDict):
    group_size: int | None
    fit_fraction: float
    seed: int


def _calibrate_model(
    source: Path,
    data: Path,
    out: Path | None,
    method: MethodName,
    reader: str | None,
    part: str | None,
    dataset: str | None,
    baseline: "AbstractBaseline | None",
    options: _Options,
) -> None:
    from huefield.cli.progress import counting_progress, use_compilation_cache
    from huefield.evaluation.calibrate import calibrate as run

    target = _target(source, out, source.suffix)
    use_compilation_cache()
    chosen = parse_reader(reader)
    with counting_progress() as report:
        found = run(
            source,
            data,
            method.value,
            part=part,
            reader=chosen,
            dataset=dataset,
            baseline=baseline,
            report=report(source.stem),
            **options,
        )
    found.save(target)
    _say(found.check)
    typer.echo(f"Wrote {target}")


def _calibrate_predictions(
    source: Path, out: Path | None, method: MethodName, reference: Path | None, keys: str | None, options: _Options
) -> None:
    from huefield.evaluation.calibrate import calibrate_predictions as run
    from huefield.predict import write_predictions
    from huefield.support.files import write_bytes

    target = _target(source, out, ".extxyz")
    given = _read([source], reference, keys)[0]
    calibration, check = run(given, method.value, **options)
    write_predictions(target, given.calibrated(calibration))
    written = target.with_name(f"{target.stem}-calibration.json")
    write_bytes(written, (calibration.model_dump_json(indent=1) + "\n").encode())
    _say(check)
    typer.echo(f"Wrote {target}, and the calibration of the variances of {source} as {written}")


def _target(source: Path, out: Path | None, suffix: str) -> Path:
    """The file to write, which must differ from the input; checked before any work is done."""
    from huefield.support.files import require_writable

    target = out or source.with_name(f"{source.stem}-calibrated{suffix}")
    if target.resolve() == source.resolve():
        raise typer.BadParameter(f"{source} would be overwritten: write to another file", param_hint="--out")
    if target.is_dir():
        raise typer.BadParameter(f"{target} is a folder: name a file in it", param_hint="--out")
    require_writable(target.parent)
    return target


def _refuse(wrong: bool, **options: object) -> None:
    """Raise for options without effect."""
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


def _say(check: "CalibrationCheck") -> None:
    """Print the comparison; remarks go to the error output."""
    typer.echo(check.text())
    _note(check.remarks)


def _note(remarks: tuple[str, ...]) -> None:
    for remark in remarks:
        typer.echo(f"note: {remark}", err=True)
