"""One row of the table at a time: trained, calibrated in every way, tested on everything, and kept."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from huefield.apps.calibrate import fit_calibration, fit_gamma, with_gamma_times
from huefield.apps.predictions import Together
from huefield.apps.reproduce.plan import RUN, AbstractSize, Job, Showing
from huefield.core.files import FolderInUseError, alone_in, write_bytes
from huefield.core.plain import plain, rounded
from huefield.evaluation.predictions import Predictions
from huefield.evaluation.slices import Evaluation, summarise
from huefield.evaluation.summaries import Summary
from huefield.forcefield import Ensemble
from huefield.modelfile import load
from huefield.noise import ColoredNoise
from huefield.training import TrainConfig, TrainingDivergedError
from huefield.training.outcome import MODEL

RESULT = "result.json"
KEPT = ("count", "mae", "rmse", "nll", "rzv", "ence", "cv", "rmv", "crps", "rank_correlation", "miscalibration_area")
"""Metrics of a quantity that results keep."""
DIGITS = 6
"""Of numbers in results: more than is known."""


@dataclass(frozen=True)
class Done:
    """How far the table is."""

    finished: tuple[Job, ...]
    elsewhere: tuple[Job, ...]
    """Those that other processes are at work with."""


def work_through(
    jobs: list[Job], size: AbstractSize, out: Path, showing: Showing, should_stop: Callable[[], bool] = lambda: False
) -> Done:
    """Do all jobs that are not done yet. Several processes may do so at the same time, and share them out.

    Args:
        jobs: in the order in which they are wanted.
        size: networks and steps.
        out: folder of the table.
        showing: see :data:`Showing`.
        should_stop: is asked after each step.
    """
    finished, left = list[Job](), list(jobs)
    while True:
        taken = [job for job in left if _done_here(job, size, out, showing, should_stop)]
        finished += taken
        left = [job for job in left if job not in taken]
        if not left or not taken:
            return Done(tuple(finished), tuple(left))


def _done_here(job: Job, size: AbstractSize, out: Path, showing: Showing, should_stop: Callable[[], bool]) -> bool:
    """Whether a job is done, and not another process at work with it."""
    try:
        do(job, size, out, showing, should_stop)
    except FolderInUseError:
        return False
    jax.clear_caches()  # programs of one row are of no use to the next, and half a gigabyte
    return True


def do(job: Job, size: AbstractSize, out: Path, showing: Showing, should_stop: Callable[[], bool]) -> None:
    """Train a row and write its result, unless it is there; what was trained before is gone on with."""
    folder = job.folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        if (folder / RESULT).exists():
            return
        begun = time.monotonic()
        try:
            size.train(job, out, showing, should_stop)
            tested = _tested(job, size.config(job, out), load(folder / RUN / MODEL))
        except TrainingDivergedError as error:
            tested = {"failed": str(error)}
        result = {
            "data": job.source.name,
            "seed": job.seed,
            "row": job.row.name,
            "seconds_of_this_process": round(time.monotonic() - begun, 1),
            **tested,
        }
        write_bytes(folder / RESULT, (json.dumps(result) + "\n").encode())


def _tested(job: Job, config: TrainConfig, ensemble: Ensemble) -> dict[str, Any]:
    """Scores on each test, before and after each calibration on the validation data."""
    parts = config.data.load()
    blocks = {"validation": parts["validation"], **job.source.test_parts(parts)}
    everything = Together.of(blocks)
    before = everything.predicted(ensemble, "model")
    methods = {"none": before, **dict(_calibrated(ensemble, before, everything))}
    return {
        "tests": {name: {method: scores(summarise(each[name])) for method, each in methods.items()} for name in blocks},
        "noise": rounded({n: np.asarray(v) for n, v in ensemble.members.noise.watched().items()}, DIGITS),
    }


def _calibrated(
    ensemble: Ensemble, before: dict[str, Predictions], everything: Together
) -> Iterator[tuple[str, dict[str, Predictions]]]:
    """By method: predictions with calibrated variances."""
    for method in ("scale", "isotonic", "conformal"):
        try:
            calibration = fit_calibration(before["validation"], method).calibration
        except ValueError:
            continue  # too few validation data for it
        yield method, {name: each.calibrated(calibration) for name, each in before.items()}
    if isinstance(ensemble.members.noise, ColoredNoise):
        doubled = everything.predicted(with_gamma_times(ensemble, 2.0), "twice γ")
        factor = fit_gamma(before["validation"], doubled["validation"]).factor
        yield "gamma", everything.predicted(with_gamma_times(ensemble, factor), "other γ")


def scores(found: Evaluation) -> dict[str, Any]:
    """What is kept of an evaluation."""
    return {
        "energy": None if found.energy is None else _kept(found.energy),
        "forces": None if found.forces is None else _kept(found.forces),
        "joint_nll": plain(found.joint_nll),
    }


def _kept(summary: Summary) -> dict[str, Any]:
    coverage = {f"{entry.nominal:g}": entry.observed for entry in summary.coverage}
    curve = {"rmv": summary.reliability.rmv, "rmse": summary.reliability.rmse}
    kept = {**{name: getattr(summary, name) for name in KEPT}, "coverage": coverage, "reliability": curve}
    return rounded(kept, DIGITS)
