"""From a configuration to a trained ensemble, in a folder that documents the run.

=========================  =================================================================
``config.yaml``            the complete configuration
``references.json``        energies of isolated atoms
``split.json``             the structures of each part, by their numbers in the data
``digests.json``           hashes of the data for training and validation
``history.jsonl``          losses, metrics and other events, one per line
``tensorboard/``           the same for TensorBoard, if the configuration asks for it
``checkpoints/``           the last states, to resume from
``model.safetensors``      the trained ensemble, when the run is finished
``candidates/``            the ensembles it was selected from (``selection: ensemble``)
``scores.json``            metrics on validation data and on every other part of a split
``structures.hues``        the structures, if they were given as ``Atoms`` in memory
``baseline.log``           results of the baseline, if there is one and it was computed here
=========================  =================================================================
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from huefield.baselines import BaselineLike
from huefield.data.batches.prepared import Prepared
from huefield.data.dataset import Part, Parts
from huefield.data.opening import AtomsOrPaths
from huefield.data.readers.base import MixedLabelsError, Remark, reader_of_training
from huefield.data.references import AtomicReferences
from huefield.data.runs import CONFIG, digest
from huefield.model.ensemble import Ensemble
from huefield.model.modelfile import load
from huefield.support.errors import HuefieldError
from huefield.support.files import alone_in, leaving_no_empty, require_writable
from huefield.training.checkpoint import CHECKPOINTS, checkpoints_in, saying_what_is_safe
from huefield.training.config import TrainConfig
from huefield.training.datachecks import label_warnings, overview, require_trainable
from huefield.training.diagnosis import diagnose
from huefield.training.feed import Feed, prepare, validation_batches
from huefield.training.initial import initial_ensemble, order_keys
from huefield.training.inputs import DECISIVE, fingerprint, member_folder, with_elements, write_inputs
from huefield.training.learning import LearningData, learning_data
from huefield.training.mesh import Layout, first_process
from huefield.training.outcome import MODEL, Candidates, Trained, conclude
from huefield.training.progress import run_progress
from huefield.training.references import references_of
from huefield.training.reports import OnTrainingEvent
from huefield.training.request import ConfigLike, DataLike, Overrides, baseline_of, resolved, run_folder
from huefield.training.run import Run
from huefield.training.setting import LoopSettings, Setting
from huefield.training.tensorboard import require_tensorboard
from huefield.training.transfer import require_same_baseline, require_transferable
from huefield.training.validation import Validator


def train(
    config: ConfigLike,
    out: str | Path | None = None,
    *,
    data: DataLike | None = None,
    validation: AtomsOrPaths | None = None,
    overrides: Overrides = (),
    member: int | None = None,
    baseline: BaselineLike | None = None,
    report: OnTrainingEvent | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_saved: Callable[[], None] = lambda: None,
    **settings: Any,
) -> Trained:
    """Train an ensemble, or resume an interrupted run.

    Args:
        config: a preset (``"small"``), a YAML file, or a configuration.
        out: folder of the run. An unfinished run in it with the same configuration and data is resumed. None for a new
            folder ``huefield-run`` (``huefield-run-2``, ...) in the current one.
        data: files, a list of ``ase.Atoms`` with energies and forces, or a configuration of data; None for the data
            of ``config``. Structures in memory are kept in ``out``. Without ``validation``, and unless ``config``
            splits them otherwise, a random tenth is for validation.
        validation: files or a list of ``ase.Atoms`` for validation.
        overrides: settings by their places, such as ``{"stages.0.steps": 100}``.
        member: train this member alone, into a folder of its own within ``out``;
            :func:`~huefield.training.assembly.assemble` assembles the members. None for all in one program.
        baseline: an ASE calculator whose errors the networks learn, or the configuration of a built-in one, such as
            ``{"kind": "tblite"}``; None for that of ``config``.
        report: receives progress and messages; None to show them.
        should_stop: is called after each step (in a job of several processes, at each report); if it returns True, the
            state is saved and ``TrainingStoppedError`` raised.
        on_saved: is called after each checkpoint.
        settings: further settings of the configuration by name, such as ``members=3``.
    """
    calculator, named = baseline_of(baseline)
    with run_folder(out) as folder, run_progress() if report is None else nullcontext(report) as show:
        changes = (overrides, {**named, **settings})
        chosen = resolved(config, data, validation, changes, folder, lambda r: show(f"warning: {r}"))
        return _train_into(chosen, folder, member, Callbacks(show, should_stop, on_saved, calculator))


@dataclass(frozen=True)
class Callbacks:
    """Functions that a run calls; see :func:`train`."""

    report: OnTrainingEvent
    should_stop: Callable[[], bool]
    on_saved: Callable[[], None]
    baseline: BaselineLike | None = None


def _train_into(config: TrainConfig, out: Path, member: int | None, callbacks: Callbacks) -> Trained:
    if member is not None and not 0 <= member < config.members:
        raise HuefieldError(f"there is no member {member}: the configuration has {config.members}, counted from 0")
    folder = out if member is None else member_folder(out, member)
    if member is None:
        _require_no_members_alone(folder, config.members)
    elif (out / CHECKPOINTS).exists():
        raise HuefieldError(f"{out} has a run of all members: resume it without --member, or choose another folder")
    with jax.enable_x64(config.precision == "float64"), saying_what_is_safe(folder), leaving_no_empty(folder):
        return _train(config, folder, range(config.members) if member is None else range(member, member + 1), callbacks)


def _require_no_members_alone(folder: Path, members: int) -> None:
    """Raise if members were trained one by one: a run of all members would ignore them and start anew."""
    alone = [name for name in range(members) if (member_folder(folder, name) / CONFIG).exists()]
    if alone and not (folder / CHECKPOINTS).exists():
        done = (
            "they are assembled already"
            if (folder / MODEL).exists()
            else "train the others with --member, then use huefield assemble"
        )
        raise HuefieldError(
            f"{folder} has members that were trained alone ({', '.join(map(str, alone))}): {done}, or train all of "
            "them into another folder"
        )


def _train(config: TrainConfig, folder: Path, members: range, callbacks: Callbacks) -> Trained:
    if config.tensorboard:
        require_tensorboard()
    require_writable(folder)
    layout, cutoff = Layout(len(members), config.mesh), cutoff_of(config)
    saved = None if config.start_from is None else load(config.start_from, dtype=config.precision)
    remarks: list[Remark] = []
    parts = _loaded(config, remarks)
    config = with_elements(config, parts["train"], saved)
    if saved is not None:
        require_transferable(saved, config.model, members)
        require_same_baseline(saved, config.baseline, callbacks.baseline)
    digests = {name: digest(parts[name]) for name in DECISIVE}
    resumed = bool(checkpoints_in(folder / CHECKPOINTS))
    doubts = list(label_warnings(parts, config.data, resumed=resumed))  # or raise, before a baseline takes hours
    if not resumed:
        _require_no_model(folder)
    data = _learning_data(config, parts, folder, callbacks)
    references = references_for(config, data.learnt("train"), saved)
    prepared = {name: prepare(data.learnt(name), cutoff, references, config.data.datasets) for name in DECISIVE}
    warnings = (f"warning: {remark.advised(reader_of_training)}" for remark in remarks)
    for line in (*overview(data.parts, references, members, config.members), *warnings, *doubts):
        if first_process():
            callbacks.report(line)
    ensemble = initial_ensemble(config, members, references, prepared["train"], saved).with_baseline(data.record)
    setting = Setting(
        loop=loop_settings(config),
        layout=layout,
        validator=Validator(
            validation_batches(prepared["validation"], layout, config.batch_size),
            layout,
            "auto",
            ensemble.members.noise.has_variance,
        ),
        feed_for=partial(_feed, config, prepared["train"], layout, members),
        folder=folder,
        fingerprint=fingerprint(config, members, digests),
        report=callbacks.report,
        should_stop=callbacks.should_stop,
        on_saved=callbacks.on_saved,
        diagnose=lambda one, batches, stage: diagnose(one, prepared["train"], batches, stage),
        atoms=float(prepared["train"].sizes.mean()),
    )
    with alone_in(folder) if first_process() else nullcontext():
        run = Run(setting, ensemble.members)
        run.resume()  # or raise if settings or data changed, before anything is written
        if not run.resumed:
            _require_no_model(folder)
        if first_process():
            write_inputs(config, parts, references, digests, folder)
        ends = (replace(ensemble, members=layout.on_device(end)) for end in run())
        return conclude(Candidates(*ends), prepared["validation"], data.parts, config, folder, callbacks.report)


def _loaded(config: TrainConfig, remarks: list[Remark]) -> Parts:
    """The data, if training can use them; remarks of the readers are appended."""
    try:
        parts = config.data.load(remarks.append)
    except MixedLabelsError as error:
        raise error.advised(reader_of_training) from None
    require_trainable(parts, remarks)
    return parts


def _feed(config: TrainConfig, data: Prepared, layout: Layout, members: range, stage: int) -> Feed:
    keys = order_keys(config, members, stage)
    return Feed(data, layout, config.batch_size, config.buckets, keys, steps=config.stages[stage].steps)


def _learning_data(config: TrainConfig, parts: Parts, folder: Path, callbacks: Callbacks) -> LearningData:
    """The data as networks learn them; a baseline is computed by one process of a folder at a time."""
    computes = config.baseline is not None and config.baseline.kind != "columns" and first_process()
    with alone_in(folder) if computes else nullcontext():
        return learning_data(
            parts,
            config.baseline,
            folder,
            given=callbacks.baseline,
            skip_bad=config.skip_bad,
            report=callbacks.report if first_process() else lambda line: None,
        )


def _require_no_model(folder: Path) -> None:
    """Raise if there is a model without the checkpoints of its run: a new run would replace it."""
    if (folder / MODEL).exists():
        raise HuefieldError(
            f"{folder / MODEL} exists, but the checkpoints of its run do not: train into another folder with --out, or "
            "move the model away"
        )


def loop_settings(config: TrainConfig) -> LoopSettings:
    """The settings of a configuration that the loop reads."""
    return LoopSettings(**{field.name: getattr(config, field.name) for field in fields(LoopSettings)})


def references_for(config: TrainConfig, part: Part, saved: Ensemble | None) -> AtomicReferences:
    """Energies of isolated atoms of each data set, the main one first."""
    return references_of(config.references, next(iter(config.data.datasets)), part, saved)


def cutoff_of(config: TrainConfig) -> float:
    """Cutoff of the potential [Å]."""
    cutoff = getattr(config.model.potential, "cutoff_angstrom", None)
    if cutoff is None:
        raise HuefieldError(
            f"the potential {config.model.potential.kind!r} does not take structures of atoms: use painn"
        )
    return float(cutoff)
