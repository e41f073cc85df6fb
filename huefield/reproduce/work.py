"""Jobs of a table: train a row, calibrate it with every method, score it on every test set, save the result."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from huefield import __version__
from huefield.data.dataset import Parts
from huefield.evaluation.coherent import fit_predictions, with_joint_tails
from huefield.evaluation.fits import fit_calibration, fit_gamma, with_gamma_times
from huefield.evaluation.slices import Evaluation, summarise
from huefield.evaluation.summaries import MetricSummary
from huefield.model.ensemble import Ensemble
from huefield.model.modelfile import load
from huefield.noise import ColoredNoise
from huefield.predict import predictions_by_part
from huefield.predict.predictions import Predictions
from huefield.reproduce.plan import RUN, AbstractSize, Job, ShowProgress
from huefield.reproduce.settings import origins, same_settings, settings_of
from huefield.support.errors import HuefieldError
from huefield.support.files import FolderInUseError, alone_in, read_json, write_bytes
from huefield.support.plain import plain, rounded
from huefield.training import TrainConfig, TrainingDivergedError, TrainingStoppedError
from huefield.training.outcome import MODEL

RESULT = "result.json"
KEPT = ("count", "mae", "rmse", "nll", "rzv", "ence", "cv", "rmv")
"""Metrics in a result."""
TAILS = ("coverage", "dof")
"""Further numbers in a result: observed coverage by nominal coverage, and ν of a Student t."""
DIGITS = 6
"""Significant digits of numbers in results."""
SECONDS_TO_WAIT = 10
"""Time between two checks whether another process has finished."""


def run_jobs(
    jobs: Sequence[Job],
    size: AbstractSize,
    out: Path,
    showing: ShowProgress,
    tell: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
    on_saved: Callable[[], None] = lambda: None,
) -> None:
    """Run all jobs without a result. Several processes may run the same list and share the jobs.

    Returns when every job is finished, by this process or another one.

    Args:
        jobs: in order of priority.
        size: networks and steps.
        out: folder of the table.
        showing: opens a progress display for a training.
        tell: receives messages about waiting and failures.
        should_stop: called after each step and while waiting for other processes.
        on_saved: called after each checkpoint.
    """
    left, waiting = list(jobs), False
    while left:
        undone = [job for job in left if not _finished(job, size, out, showing, tell, should_stop, on_saved)]
        if len(undone) == len(left):
            if not waiting:
                tell(f"waiting for another process, which works on {_named(undone)}")
            _wait(should_stop)
        waiting, left = len(undone) == len(left), undone


def _named(jobs: Sequence[Job]) -> str:
    first = f"{jobs[0].row.name}, seed {jobs[0].seed}"
    return first if len(jobs) == 1 else f"{first} and {len(jobs) - 1} more, or the means they start from"


def _wait(should_stop: Callable[[], bool]) -> None:
    for _ in range(SECONDS_TO_WAIT):
        if should_stop():
            raise TrainingStoppedError("stopped while waiting for other processes")
        time.sleep(1)


def _finished(
    job: Job,
    size: AbstractSize,
    out: Path,
    showing: ShowProgress,
    tell: Callable[[str], None],
    should_stop: Callable[[], bool],
    on_saved: Callable[[], None],
) -> bool:
    """Run a job unless it has a result; False if another process works on it."""
    try:
        run_job(job, size, out, showing, tell, should_stop, on_saved)
    except FolderInUseError:
        return False
    jax.clear_caches()  # compiled programs of a row take half a gigabyte and the next row cannot use them
    return True


def run_job(
    job: Job,
    size: AbstractSize,
    out: Path,
    showing: ShowProgress,
    tell: Callable[[str], None],
    should_stop: Callable[[], bool],
    on_saved: Callable[[], None],
) -> None:
    """Train a row, or resume it, and write its result, unless there is one."""
    folder = job.folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        if (folder / RESULT).exists():
            _require_same(folder / RESULT, job, size, out)
            return
        begun = time.monotonic()
        try:
            size.train(job, out, showing, should_stop, on_saved)
            tested = origins(job, size, out) | _tested(job, size.config(job, out), load(folder / RUN / MODEL))
        except TrainingDivergedError as error:
            tell(f"{job.title} failed and is ignored in the table; remove {folder} to try again. {error}")
            tested = {"failed": str(error)}
        result = {
            "data": job.source.name,
            "seed": job.seed,
            "row": job.row.name,
            "settings": settings_of(job, size, out),
            "huefield": __version__,
            "seconds_of_this_process": round(time.monotonic() - begun, 1),
            **tested,
        }
        write_bytes(folder / RESULT, (json.dumps(result) + "\n").encode())


def _require_same(path: Path, job: Job, size: AbstractSize, out: Path) -> None:
    """Raise if a result was made with other settings."""
    if not same_settings(read_json(path).get("settings"), job, size, out):
        raise HuefieldError(
            f"{path} was made with other settings, perhaps by another version of huefield: choose another folder "
            "with --out, or remove it"
        )


def _tested(job: Job, config: TrainConfig, ensemble: Ensemble) -> dict[str, Any]:
    """Score an ensemble on each test set, uncalibrated and after each calibration on the validation data."""
    parts = config.data.load()
    blocks = {"validation": parts["validation"], **job.source.test_parts(parts)}
    before = predictions_by_part(ensemble, blocks, "model")
    methods, remarks = {"none": before}, {}
    for method, predicted, told in _calibrated(ensemble, before, blocks):
        methods[method], remarks[method] = predicted, list(told)
    return {
        "remarks": {method: told for method, told in remarks.items() if told},
        "tests": {
            name: {method: scores(summarise(each[name])) for method, each in methods.items() if each} for name in blocks
        },
    }


def _calibrated(
    ensemble: Ensemble, before: dict[str, Predictions], parts: Parts
) -> Iterator[tuple[str, dict[str, Predictions], tuple[str, ...]]]:
    """Yield for each method its name, the predictions with calibrated variances, and remarks on the fit."""
    for method in ("scale", "isotonic", "conformal"):
        try:
            fit = fit_calibration(before["validation"], method)
        except HuefieldError as fault:  # too few validation data for this method
            yield method, {}, (str(fault),)
            continue
        yield method, {name: each.calibrated(fit.calibration) for name, each in before.items()}, fit.remarks
    try:
        yield "coherent", *_coherent(ensemble, before["validation"], parts)
    except HuefieldError as fault:
        yield "coherent", {}, (str(fault),)
    if isinstance(ensemble.members.noise, ColoredNoise):
        doubled = predictions_by_part(with_gamma_times(ensemble, 2.0), parts, "twice γ")
        gamma = fit_gamma(before["validation"], doubled["validation"])
        changed = predictions_by_part(with_gamma_times(ensemble, gamma.factor), parts, "other γ")
        yield "gamma", changed, (gamma.remark,) if gamma.remark else ()


def _coherent(
    ensemble: Ensemble, validation: Predictions, parts: Parts
) -> tuple[dict[str, Predictions], tuple[str, ...]]:
    """Predictions of the ensemble with a coherent calibration, and remarks on the fit."""
    calibration, remarks = fit_predictions(validation, grows=False)
    found = predictions_by_part(ensemble.with_calibration(calibration), parts, "coherent")
    tails = with_joint_tails(calibration, found["validation"]).tails
    return {name: each.with_joint_dof(tails.joint) for name, each in found.items()}, remarks


def scores(found: Evaluation) -> dict[str, Any]:
    """Select the numbers of an evaluation that a result keeps."""
    return {
        "energy": None if found.energy is None else _kept(found.energy),
        "forces": None if found.forces is None else _kept(found.forces),
        "joint_nll": plain(found.joint_nll),
    }


def _kept(summary: MetricSummary) -> dict[str, Any]:
    curve = {"rmv": summary.reliability.rmv, "rmse": summary.reliability.rmse}
    kept = {name: getattr(summary, name) for name in KEPT}
    coverage = {f"{each.nominal:g}": each.observed for each in summary.coverage}
    return rounded({**kept, "coverage": coverage, "dof": summary.dof, "reliability": curve}, DIGITS)
