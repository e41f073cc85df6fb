"""Predict the structures of a file of any size, in constant memory."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from huefield.baselines import BaselineLike
from huefield.data.convert import read_any
from huefield.data.readers.base import BadFrameError, Fault, Remark, warn_of
from huefield.data.readers.detect import ReaderConfig
from huefield.data.store.store import Store, is_store
from huefield.model.modelfile import ModelSource
from huefield.model.size import size_remark
from huefield.predict.batches import predict_blocks
from huefield.predict.files import writing_predictions
from huefield.predict.names import named_models
from huefield.support.errors import HuefieldError
from huefield.support.folders import folder_for_results

SUFFIXES = (".xyz", ".extxyz")


@dataclass(frozen=True)
class Skipped:
    """Structures that were skipped for one reason."""

    first: Fault
    count: int


@dataclass(frozen=True)
class PredictedFile:
    """The file with predictions, and how many structures are in it."""

    path: Path
    structures: int
    with_stress: int
    skipped: tuple[Skipped, ...]


def predict_file(
    model: ModelSource,
    source: str | Path,
    out: str | Path,
    *,
    reader: ReaderConfig | None = None,
    stress: bool = True,
    members: bool = False,
    skip_bad: bool = False,
    overwrite: bool = False,
    dataset: str | None = None,
    growth: bool = True,
    baseline: BaselineLike | None = None,
    report: Callable[[int, int | None], None] = lambda done, total: None,
) -> PredictedFile:
    """Predict all structures of a file, in its order, and write them as extended xyz (docs/predictions.md).

    The file is read, predicted and written some thousand structures at a time, and written whole or not at all.

    Args:
        model: an ensemble, a model file, or a result of ``huefield.train`` or ``huefield.calibrate``.
        source: a file that readers know, or a store.
        out: the file to write, ``NAME.xyz`` or ``NAME.extxyz``.
        reader: how to read the source; None to detect it.
        stress: whether to predict the stress of periodic structures.
        members: whether to write the mean of each member.
        skip_bad: whether to skip frames that are damaged or that the model cannot predict, instead of raising.
        overwrite: whether a file at ``out`` is replaced.
        dataset: tag of the data set whose energies to predict; None for the main one of the model.
        growth: whether noise may grow with the distance to the training data.
        baseline: the ASE calculator that the model corrects; None for a built-in one, or for results in the source.
        report: called with the number of structures done, and the number of all if it is known.
    """
    source, target = Path(source), Path(out)
    _require_free(source, target, overwrite)
    name, ensemble, _ = named_models([model], dataset=dataset, growth=growth)[0]
    skipped: dict[str, Skipped] = {}

    def skip(fault: Fault) -> None:
        before = skipped.get(fault.reason, Skipped(fault, 0))
        skipped[fault.reason] = Skipped(before.first, before.count + 1)

    total = len(Store.open(source)) if is_store(source) else None
    structures = with_stress = 0
    told = False
    with folder_for_results(target.parent), writing_predictions(target) as write:
        blocks = read_any(source, reader, on_fault=skip if skip_bad else _refuse_damaged, on_remark=_warn)
        for found in predict_blocks(
            ensemble,
            blocks,
            name,
            stress=stress,
            members=members,
            baseline=baseline,
            on_fault=skip if skip_bad else _refuse_strange,
            report=lambda done: report(done, total),
        ):
            remark = "" if told else size_remark(ensemble, int(found.structures.sizes.max()))
            if remark:
                told = True
                warnings.warn(remark, stacklevel=2)
            write(found)
            structures += len(found)
            with_stress += 0 if found.stress is None else int(np.isfinite(found.stress.mean).all((1, 2)).sum())
        if not structures:
            reasons = "; ".join(f"{each.first} ({each.count})" for each in skipped.values())
            raise BadFrameError(f"{source} has no structure that can be predicted: {reasons}")
    return PredictedFile(target, structures, with_stress, tuple(skipped.values()))


def _warn(remark: Remark) -> None:
    """Warn of a charge or of unpaired electrons; a file to predict needs no labels."""
    if remark.kind == "electrons":
        warn_of(remark)


def _require_free(source: Path, target: Path, overwrite: bool) -> None:
    """Raise before any work if the result could not be written."""
    if not source.exists():
        raise FileNotFoundError(f"there is no file or store {source}")
    if target.suffix.lower() not in SUFFIXES:
        raise HuefieldError(f"predictions are written as extended xyz: call them NAME.extxyz or NAME.xyz, not {target}")
    if target.resolve() == source.resolve():
        raise HuefieldError(f"{source} would be overwritten with its predictions: write to another file")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder: name a file in it")
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists: choose another name, or replace it with --overwrite")


def _refuse_damaged(fault: Fault) -> None:
    raise BadFrameError(f"{fault}. Correct it, or skip such structures with --skip-bad")


def _refuse_strange(fault: Fault) -> None:
    raise BadFrameError(f"{fault}. Leave such structures out with --skip-bad, or use a model that can predict them")
